import { describe, expect, it } from 'vitest'
import { gently } from './gentle'

const SIGNAL = new AbortController().signal

function broker(tookMs: number) {
  const state = { now: 0, asked: 0 }
  const ask = gently(
    async () => {
      state.now += tookMs
      return ++state.asked
    },
    () => state.now,
  )
  return { state, ask }
}

describe('gently', () => {
  it('does not ask again before a hundred times what the answer took', async () => {
    const { state, ask } = broker(50)
    expect(await ask(SIGNAL)).toBe(1)
    state.now += 4_999
    expect(await ask(SIGNAL)).toBe(1)
    state.now += 1
    expect(await ask(SIGNAL)).toBe(2)
  })

  it('waits no longer than a minute', async () => {
    const { state, ask } = broker(5_000)
    await ask(SIGNAL)
    state.now += 60_000
    expect(await ask(SIGNAL)).toBe(2)
  })

  it('asks at once when the question is another one', async () => {
    const { ask } = broker(50)
    expect([await ask(SIGNAL, 'a'), await ask(SIGNAL, 'a'), await ask(SIGNAL, 'b')]).toEqual([1, 1, 2])
  })

  it('remembers no failure', async () => {
    let fails = true
    const ask = gently(
      async () => {
        if (fails) throw new Error('away')
        return 'here'
      },
      () => 0,
    )
    await expect(ask(SIGNAL)).rejects.toThrow('away')
    fails = false
    expect(await ask(SIGNAL)).toBe('here')
  })
})

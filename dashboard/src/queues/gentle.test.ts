import { describe, expect, it } from 'vitest'
import { gently } from './gentle'

const SIGNAL = new AbortController().signal

function broker(tookMs: number) {
  const state = { now: 0, asked: 0, tookMs }
  const ask = gently(
    async () => {
      state.now += state.tookMs
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

  it('waits no longer than a minute, and after the first answer than five seconds', async () => {
    const { state, ask } = broker(5_000)
    await ask(SIGNAL)
    state.now += 5_000
    expect(await ask(SIGNAL)).toBe(2)
    state.now += 59_999
    expect(await ask(SIGNAL)).toBe(2)
    state.now += 1
    expect(await ask(SIGNAL)).toBe(3)
  })

  it('does not take one late answer for a large one', async () => {
    const { state, ask } = broker(20)
    await ask(SIGNAL)
    state.now += 2_000
    state.tookMs = 3_000
    expect(await ask(SIGNAL)).toBe(2)
    state.now += 2_000
    expect(await ask(SIGNAL)).toBe(3)
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

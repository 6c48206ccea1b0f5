import { expect, it } from 'vitest'
import { each, told } from './bulk'

it('asks for everything once, a few at a time', async () => {
  let open = 0
  let most = 0
  const seen: number[] = []
  const steps: number[] = []
  const items = Array.from({ length: 20 }, (_, index) => index)
  const outcome = await each(
    items,
    async (item) => {
      open += 1
      most = Math.max(most, open)
      await Promise.resolve()
      seen.push(item)
      open -= 1
    },
    (finished) => steps.push(finished),
  )
  expect(seen.sort((a, b) => a - b)).toEqual(items)
  expect(most).toBeLessThanOrEqual(4)
  expect(outcome).toEqual({ done: 20, failed: [] })
  expect(steps.at(-1)).toBe(20)
})

it('one that fails does not stop the others', async () => {
  const outcome = await each([1, 2, 3], async (item) => {
    if (item === 2) throw new Error('leased')
  })
  expect(outcome.done).toBe(2)
  expect(told(outcome, 'deleted')).toBe('2 deleted, 1 not: leased')
})

it('if none works the reason is the result', async () => {
  const outcome = await each([1], async () => {
    throw new Error('forbidden')
  })
  expect(() => told(outcome, 'deleted')).toThrow('forbidden')
})

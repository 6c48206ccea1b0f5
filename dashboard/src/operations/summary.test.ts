import { expect, it } from 'vitest'
import { fallRate, remember, summarise, type OperationStats, type Sample } from './summary'

const row = (operation_type: string, status: string, count: number): OperationStats => ({
  operation_type,
  status,
  count,
  priority: 0,
  oldest: '',
  newest: '',
  avg_latency_seconds: 0,
})

it('kinds are added up by status', () => {
  const stats = [row('PUSH', 'pending', 3), row('ACK_BATCH', 'pending', 4), row('PUSH', 'failed', 1), row('PUSH', 'odd', 9)]
  expect(summarise(stats)).toEqual({ pending: 7, processing: 0, failed: 1, completed: 0, cancelled: 0 })
})

it('no more samples are kept than are shown', () => {
  let samples: Sample[] = []
  for (let at = 1; at <= 5; at += 1) samples = remember(samples, { at, values: [at] }, 3)
  expect(samples.map(({ at }) => at)).toEqual([3, 4, 5])
})

it('a rate needs two samples, and never counts what grows', () => {
  const samples: Sample[] = [
    { at: 0, values: [1000, 0] },
    { at: 10, values: [100, 0] },
    { at: 20, values: [50, 7] },
  ]
  expect(fallRate(samples.slice(0, 1), 0, 60)).toBeNull()
  expect(fallRate([], 0, 60)).toBeNull()
  expect(fallRate(samples, 0, 60)).toBe(47.5)
  expect(fallRate(samples, 0, 10)).toBe(5)
  expect(fallRate(samples, 1, 60)).toBe(0)
})

import { expect, it } from 'vitest'
import type { Schema } from '../api/client'
import { added, lines } from './replicas'

function replica(workerId: string, ...steps: [minute: number, rss: number | undefined][]): Schema<'Replica'> {
  return {
    hostname: 'h',
    port: 1,
    workerId,
    timeSeries: steps.map(([minute, avg]) => ({
      timestamp: new Date(minute * 60_000).toISOString(),
      sampleCount: 1,
      // Described as any object.
      metrics: (avg === undefined ? {} : { memory: { rss_bytes: { avg, min: 0, max: 0, last: 0 } } }) as Record<string, never>,
    })),
  }
}

it('puts brokers on one axis, with gaps where one was not there', () => {
  const told = lines([replica('a', [1, 10], [2, 20]), replica('b', [2, 5], [3, undefined])], ['memory', 'rss_bytes'])
  expect(told.times).toEqual([60, 120, 180])
  expect(told.lines).toEqual([
    { label: 'a', values: [10, 20, null] },
    { label: 'b', values: [null, 5, null] },
  ])
})

it('adds measurements up', () => {
  const one = lines([replica('a', [1, 10], [2, undefined])], ['memory', 'rss_bytes'], 0.5)
  expect(added(one, one).lines).toEqual([{ label: 'a', values: [10, null] }])
})

it('knows nothing of what was not measured', () => {
  expect(lines([replica('a', [1, 10])], ['memory', 'nothing']).lines[0]!.values).toEqual([null])
})

import { expect, it } from 'vitest'
import type { Schema } from '../api/client'
import { asRange, finished, laidOut } from './series'

const START = Date.parse('2026-01-01T10:00:00Z')

function steps(...minutes: number[]): Schema<'WorkerStep'>[] {
  return minutes.map(
    (minute) =>
      ({ timestamp: new Date(START + minute * 60_000).toISOString(), pushMessages: minute }) as Schema<'WorkerStep'>,
  )
}

it('leaves out the step that is not over', () => {
  expect(finished(steps(0, 1, 2), 1, START + 2.5 * 60_000)).toHaveLength(2)
  expect(finished(steps(0, 1, 2), 1, START + 3 * 60_000)).toHaveLength(3)
  expect(finished(steps(0, 5), 5, START + 9 * 60_000)).toHaveLength(1)
})

it('draws a gap where nothing was measured', () => {
  const laid = laidOut(steps(0, 1, 5), 1)
  expect(laid.times.map((time) => (time * 1000 - START) / 60_000)).toEqual([0, 1, 2, 5])
  expect(laid.values((step) => step.pushMessages)).toEqual([0, 1, null, 5])
})

it('takes a range it does not know for an hour', () => {
  expect(asRange('24h')).toBe('24h')
  expect(asRange('1y')).toBe('1h')
  expect(asRange(null)).toBe('1h')
})

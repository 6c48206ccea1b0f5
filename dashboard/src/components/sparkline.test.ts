import { expect, it } from 'vitest'
import { spark } from './sparkline'

it('starts at zero and ends at the largest', () => {
  expect(spark([0, 5, 10], 100, 22)!.line).toBe('M0 21L50 11L100 1')
})

it('draws nothing for nothing', () => {
  expect(spark([], 100, 22)).toBeNull()
  expect(spark([5], 100, 22)).toBeNull()
  expect(spark([0, 0, null], 100, 22)).toBeNull()
})

it('takes a gap for zero', () => {
  expect(spark([4, null, Number.NaN], 10, 10)!.line).toBe('M0 1L5 9L10 9')
})

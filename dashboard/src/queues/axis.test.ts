import { expect, it } from 'vitest'
import { age, perSecond } from './axis'

it('tells an age in one unit', () => {
  expect([0, 0.35, 42, 60, 97, 600, 3_600, 10_500, 86_400, 1_000_000].map(age)).toEqual([
    '0 s',
    '350 ms',
    '42 s',
    '1 min',
    '1.6 min',
    '10 min',
    '1 h',
    '2.9 h',
    '1 d',
    '12 d',
  ])
})

it('tells small rates apart', () => {
  expect([0, 0.005, 0.0133, 0.5, 1200].map(perSecond)).toEqual(['0/s', '0.005/s', '0.013/s', '0.5/s', '1,200/s'])
})

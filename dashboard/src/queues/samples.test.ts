import { expect, it } from 'vitest'
import { SAMPLES_MAX, sampled } from './samples'

it('keeps the last ones, the newest at the end', () => {
  let samples: number[] = []
  for (let n = 0; n < SAMPLES_MAX + 5; n += 1) samples = sampled(samples, n)
  expect(samples).toHaveLength(SAMPLES_MAX)
  expect([samples[0], samples.at(-1)]).toEqual([5, SAMPLES_MAX + 4])
})

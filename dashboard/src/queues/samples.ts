// The latest values of a polled number, for a sparkline of the last few minutes.

export const SAMPLES_MAX = 60

export function sampled(samples: number[], value: number): number[] {
  return [...samples.slice(-(SAMPLES_MAX - 1)), value]
}

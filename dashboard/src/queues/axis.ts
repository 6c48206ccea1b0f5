// Compact numbers, as for the axis of a chart: one number and one unit.

import { duration, rate } from '../format'

const UNITS: [seconds: number, name: string][] = [
  [86_400, 'd'],
  [3_600, 'h'],
  [60, 'min'],
]

/** 350 ms, 42 s, 1.6 min, 2.9 h, 12 d. */
export function age(seconds: number): string {
  const unit = UNITS.find(([size]) => seconds >= size)
  if (unit === undefined) return duration(seconds)
  const count = seconds / unit[0]
  return `${count < 9.95 ? Number(count.toFixed(1)) : Math.round(count)} ${unit[1]}`
}

/** Two ticks of an axis must not have the same label. */
export function perSecond(value: number): string {
  return value > 0 && value < 0.1 ? `${Number(value.toPrecision(2))}/s` : rate(value)
}

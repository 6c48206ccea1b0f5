// Prepares the brokers' recorded history for charts.

import type { Schema } from '../api/client'

type Step = Schema<'WorkerStep'>

export const RANGES = [
  { id: 'live', label: 'Live', minutes: 0 },
  { id: '1h', label: '1 h', minutes: 60 },
  { id: '6h', label: '6 h', minutes: 360 },
  { id: '24h', label: '24 h', minutes: 1440 },
] as const

export type Range = (typeof RANGES)[number]['id']

export function asRange(text: string | null): Range {
  return RANGES.find((range) => range.id === text)?.id ?? '1h'
}

export function minutesOf(range: Range): number {
  return RANGES.find((known) => known.id === range)!.minutes
}

/** Complete steps only: the last one would look like a drop. */
export function finished(steps: Step[], bucketMinutes: number, now: number): Step[] {
  return steps.filter((step) => Date.parse(step.timestamp) + bucketMinutes * 60_000 <= now)
}

/** The x range of a chart for this time range, in seconds since 1970. */
export function spanOf(range: Schema<'TimeRange'>): [number, number] {
  return [Date.parse(range.from) / 1000, Date.parse(range.to) / 1000]
}

export interface Chosen {
  times: number[]
  values: (pick: (step: Step) => number) => (number | null)[]
}

/** With gaps where no broker ran, so that the line is interrupted. */
export function laidOut(steps: Step[], bucketMinutes: number): Chosen {
  const width = bucketMinutes * 60
  const times: number[] = []
  const rows: (Step | null)[] = []
  for (const step of steps) {
    const at = Date.parse(step.timestamp) / 1000
    const last = times.at(-1)
    if (last !== undefined && at - last > width * 1.5) {
      times.push(last + width)
      rows.push(null)
    }
    times.push(at)
    rows.push(step)
  }
  return { times, values: (pick) => rows.map((row) => (row === null ? null : pick(row))) }
}

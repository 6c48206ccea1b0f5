// A summary of deferred operations, and trends of numbers while the page is open.

import type { Schema } from '../api/client'

export type OperationStats = Schema<'OperationStats'>

export interface Summary {
  pending: number
  processing: number
  failed: number
  /** Completed in the last five minutes; the server does not count older ones. */
  completed: number
  cancelled: number
}

export function summarise(stats: readonly OperationStats[]): Summary {
  const summary: Summary = { pending: 0, processing: 0, failed: 0, completed: 0, cancelled: 0 }
  for (const { status, count } of stats) {
    if (status in summary) summary[status as keyof Summary] += count
  }
  return summary
}

export interface Sample {
  /** Unix seconds. */
  at: number
  values: number[]
}

/** The newest samples, oldest first. */
export function remember(samples: readonly Sample[], sample: Sample, most: number): Sample[] {
  return [...samples.slice(Math.max(0, samples.length + 1 - most)), sample]
}

/** Decrease per second over the samples of the last `span` seconds; null if unknown yet. */
export function fallRate(samples: readonly Sample[], index: number, span: number): number | null {
  const last = samples.at(-1)
  if (last === undefined) return null
  const first = samples.find(({ at }) => at >= last.at - span)
  if (first === undefined || first.at >= last.at) return null
  const fall = (first.values[index] ?? 0) - (last.values[index] ?? 0)
  return Math.max(0, fall / (last.at - first.at))
}

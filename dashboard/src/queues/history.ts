// Queue history for charts and sparklines: one value per step, gaps filled.

import type { Schema } from '../api/client'

type Ops = Schema<'QueueOps'>
type Step = Schema<'QueueStep'>

/** An incomplete step shorter than this says too little to be shown. */
const PART_SECONDS = 15

export interface Range {
  id: string
  label: string
  seconds: number
}

export const RANGES: Range[] = [
  { id: '1h', label: '1 hour', seconds: 3600 },
  { id: '6h', label: '6 hours', seconds: 6 * 3600 },
  { id: '24h', label: '24 hours', seconds: 24 * 3600 },
  { id: '7d', label: '7 days', seconds: 7 * 24 * 3600 },
]

/** The step size that the broker uses for a range in seconds. */
function stepSeconds(seconds: number): number {
  if (seconds <= 3600) return 60
  if (seconds <= 6 * 3600) return 300
  if (seconds <= 24 * 3600) return 900
  return 3600
}

/** The start of the request, so that the first step is complete and the steps are those of the range. */
export function since(seconds: number, now: number): string {
  const step = stepSeconds(seconds) * 1000
  return new Date(Math.ceil((now - seconds * 1000) / step) * step).toISOString()
}

export interface History {
  /** Unix seconds, start of each step. */
  times: number[]
  pushed: (number | null)[]
  delivered: (number | null)[]
  acknowledged: (number | null)[]
  /** Refused acknowledgements, for example because the lease had expired. */
  refused: (number | null)[]
  empty: (number | null)[]
  waiting: (number | null)[]
  /** Seconds; null in steps without deliveries. */
  averageAge: (number | null)[]
  longestAge: (number | null)[]
}

/** One queue, rates per second. */
export function history(ops: Ops): History {
  const axis = steps(ops)
  const known = new Map(ops.series.map((step) => [Date.parse(step.bucket) / 1000, step]))
  const rates = (read: (step: Step) => number) => axis.times.map((at) => rate(known.get(at), read, axis.lengthOf(at)))
  const counts = (read: (step: Step) => number) => axis.times.map((at) => read(known.get(at) ?? NOTHING))
  const ages = (read: (step: Step) => number) =>
    axis.times.map((at) => {
      const step = known.get(at)
      return step && step.popMessages > 0 ? read(step) / 1000 : null
    })
  return {
    times: axis.times,
    pushed: rates((step) => step.pushMessages),
    delivered: rates((step) => step.popMessages),
    acknowledged: rates((step) => step.ackSuccess),
    refused: rates((step) => step.ackFailed),
    empty: rates((step) => step.popEmpty),
    waiting: counts((step) => step.parkedCount),
    averageAge: ages((step) => step.avgLagMs),
    longestAge: ages((step) => step.maxLagMs),
  }
}

export interface Traffic {
  pushes: number[]
  lagSeconds: number | null
}

/** Final steps over which the delivery lag of a queue is averaged. */
const LAG_STEPS = 5

/** Many queues, by name. */
export function traffic(ops: Ops): Map<string, Traffic> {
  const axis = steps(ops)
  const place = new Map(axis.times.map((at, index) => [at, index]))
  const sums = new Map<string, { pushes: number[]; lag: number; delivered: number }>()
  for (const step of ops.series) {
    const index = place.get(Date.parse(step.bucket) / 1000)
    if (index === undefined) continue
    let sum = sums.get(step.queueName)
    if (!sum) {
      sum = { pushes: new Array<number>(axis.times.length).fill(0), lag: 0, delivered: 0 }
      sums.set(step.queueName, sum)
    }
    sum.pushes[index] = rate(step, (it) => it.pushMessages, axis.lengthOf(axis.times[index] ?? 0))
    if (index >= axis.times.length - LAG_STEPS) {
      sum.lag += step.avgLagMs * step.popMessages
      sum.delivered += step.popMessages
    }
  }
  return new Map(
    [...sums].map(([name, sum]) => [
      name,
      { pushes: sum.pushes, lagSeconds: sum.delivered > 0 ? sum.lag / sum.delivered / 1000 : null },
    ]),
  )
}

interface Axis {
  times: number[]
  /** Elapsed seconds of the step. */
  lengthOf(at: number): number
}

/** All steps of the range, except a last one that has just begun. */
function steps(ops: Ops): Axis {
  const step = ops.bucketMinutes * 60
  const from = Date.parse(ops.timeRange.from) / 1000
  const to = Date.parse(ops.timeRange.to) / 1000
  const times: number[] = []
  for (let at = Math.floor(from / step) * step; at + PART_SECONDS <= to; at += step) times.push(at)
  return { times, lengthOf: (at) => Math.min(step, to - at) }
}

/** The broker divides by the whole step even if it is incomplete; this does not. */
function rate(step: Step | undefined, read: (step: Step) => number, seconds: number): number {
  return step ? read(step) / seconds : 0
}

const NOTHING = { parkedCount: 0 } as Step

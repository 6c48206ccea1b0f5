// What happened in queues, step by step, as charts and sparklines want it: one value for each step, gaps filled.

import type { Schema } from '../api/client'

type Ops = Schema<'QueueOps'>
type Step = Schema<'QueueStep'>

/** Below this a step that is not over yet says too little to be shown. */
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

/** The steps the broker answers in for a range of so many seconds. */
function stepSeconds(seconds: number): number {
  if (seconds <= 3600) return 60
  if (seconds <= 6 * 3600) return 300
  if (seconds <= 24 * 3600) return 900
  return 3600
}

/** From when to ask, so that the first step is a whole one and the steps are those of the range. */
export function since(seconds: number, now: number): string {
  const step = stepSeconds(seconds) * 1000
  return new Date(Math.ceil((now - seconds * 1000) / step) * step).toISOString()
}

export interface History {
  /** Unix seconds, the start of each step. */
  times: number[]
  pushed: (number | null)[]
  delivered: (number | null)[]
  acknowledged: (number | null)[]
  /** Acknowledgements that were not accepted, because of a lease that had ended for instance. */
  refused: (number | null)[]
  empty: (number | null)[]
  waiting: (number | null)[]
  /** Seconds; null in steps in which nothing was delivered. */
  averageAge: (number | null)[]
  longestAge: (number | null)[]
}

/** Of one queue: rates are per second. */
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

/** Steps at the end that the delivery lag of a queue is averaged over. */
const LAG_STEPS = 5

/** Of many queues, by name. */
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
  /** Seconds of the step that are over. */
  lengthOf(at: number): number
}

/** Every step of the range but a last one that has only just begun. */
function steps(ops: Ops): Axis {
  const step = ops.bucketMinutes * 60
  const from = Date.parse(ops.timeRange.from) / 1000
  const to = Date.parse(ops.timeRange.to) / 1000
  const times: number[] = []
  for (let at = Math.floor(from / step) * step; at + PART_SECONDS <= to; at += step) times.push(at)
  return { times, lengthOf: (at) => Math.min(step, to - at) }
}

/** The broker divides by the whole step, also when it is not over: this does not. */
function rate(step: Step | undefined, read: (step: Step) => number, seconds: number): number {
  return step ? read(step) / seconds : 0
}

const NOTHING = { parkedCount: 0 } as Step

// Current rates of a broker, from two samples of its counters.

import type { Schema } from '../api/client'

export type Metrics = Schema<'Metrics'>

export interface Look {
  /** Milliseconds since 1970. */
  at: number
  metrics: Metrics
}

export interface Lane {
  name: string
  label: string
  callsPerSecond: number
  itemsPerSecond: number
  /** Items per call: messages of a push, claims of a pop, acknowledgements. */
  batch: number | null
  waitSeconds: number | null
  databaseSeconds: number | null
}

/** Messages per second. */
export interface Rates {
  push: number
  pop: number
  ack: number
  requests: number
  /** Share of one core. */
  cpu: number
}

const LANES: [name: string, label: string][] = [
  ['push', 'Push'],
  ['pop', 'Pop'],
  ['ack', 'Acknowledge'],
  ['transaction', 'Transaction'],
  ['renew_lease', 'Renew'],
]

/** The samples of the last `keepMs`. A restarted broker, or another one behind the same address, starts over. */
export function seen(looks: Look[], next: Look, keepMs: number): Look[] {
  const last = looks.at(-1)
  const anew = last !== undefined && !follows(last, next)
  const kept = anew ? [] : looks.filter((look) => next.at - look.at <= keepMs)
  return [...kept, next]
}

/** Counters only grow, and the uptime grows by the elapsed time. */
function follows(before: Look, after: Look): boolean {
  const passed = (after.at - before.at) / 1000
  const aged = after.metrics.uptime - before.metrics.uptime
  return after.metrics.requests.total >= before.metrics.requests.total && Math.abs(aged - passed) < 5 + passed / 10
}

/** The first and last sample within `overMs`; `null` before there are two. */
export function span(looks: Look[], overMs: number): [Look, Look] | null {
  const last = looks.at(-1)
  if (last === undefined) return null
  const first = looks.find((look) => last.at - look.at <= overMs)
  return first === undefined || first.at >= last.at ? null : [first, last]
}

export function lanes(looks: Look[], overMs: number): Lane[] {
  const ends = span(looks, overMs)
  return LANES.map(([name, label]) => {
    const nothing = { name, label, callsPerSecond: 0, itemsPerSecond: 0, batch: null, waitSeconds: null, databaseSeconds: null }
    if (ends === null) return nothing
    const [first, last] = ends
    const before = first.metrics.sidecar.operations[name]
    const after = last.metrics.sidecar.operations[name]
    if (before === undefined || after === undefined) return nothing
    const seconds = (last.at - first.at) / 1000
    const calls = after.count - before.count
    const items = after.items - before.items
    // Converts averages since the start to sums.
    const spent = (field: 'avg_ms' | 'avg_wait_ms') =>
      calls > 0 && after[field] !== undefined
        ? Math.max(0, (after[field] * after.count - before[field] * before.count) / calls / 1000)
        : null
    return {
      name,
      label,
      callsPerSecond: calls / seconds,
      itemsPerSecond: items / seconds,
      batch: calls > 0 ? items / calls : null,
      waitSeconds: spent('avg_wait_ms'),
      databaseSeconds: spent('avg_ms'),
    }
  })
}

export function rates(looks: Look[], overMs: number): Rates | null {
  const ends = span(looks, overMs)
  return ends === null ? null : between(...ends)
}

function between(first: Look, last: Look): Rates {
  const seconds = (last.at - first.at) / 1000
  const [before, after] = [first.metrics.cluster, last.metrics.cluster]
  const used = (look: Look) => (look.metrics.cpu.user + look.metrics.cpu.system) / 1e6
  return {
    push: (after.pushed - before.pushed) / seconds,
    pop: (after.popped - before.popped) / seconds,
    ack: (after.acknowledged - before.acknowledged) / seconds,
    requests: (last.metrics.requests.total - first.metrics.requests.total) / seconds,
    cpu: (used(last) - used(first)) / seconds,
  }
}

/** From each sample to the next. */
export function history(looks: Look[]): { times: number[]; push: number[]; pop: number[]; ack: number[] } {
  const times: number[] = []
  const steps: Rates[] = []
  for (const [index, look] of looks.entries()) {
    const before = looks[index - 1]
    if (before === undefined || look.at <= before.at) continue
    times.push(look.at / 1000)
    steps.push(between(before, look))
  }
  return {
    times,
    push: steps.map((step) => step.push),
    pop: steps.map((step) => step.pop),
    ack: steps.map((step) => step.ack),
  }
}

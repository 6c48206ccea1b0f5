// Prepares the brokers' own measurements for charts.

import type { Schema } from '../api/client'

type Replica = Schema<'Replica'>

export interface Line {
  label: string
  values: (number | null)[]
}

export interface Lines {
  times: number[]
  lines: Line[]
}

/** Average of the measurement at `path`: ['memory', 'rss_bytes']. One line per broker, on one axis. */
export function lines(replicas: Replica[], path: string[], scale = 1): Lines {
  const all = new Set<number>()
  const read = replicas.map((replica) => {
    const values = new Map<number, number>()
    for (const step of replica.timeSeries) {
      const at = Date.parse(step.timestamp) / 1000
      const value = average(step.metrics, path)
      all.add(at)
      if (value !== null) values.set(at, value * scale)
    }
    return { label: replica.workerId, values }
  })
  const times = [...all].sort((a, b) => a - b)
  return {
    times,
    lines: read.map(({ label, values }) => ({ label, values: times.map((at) => values.get(at) ?? null) })),
  }
}

/** The sum of several measurements: CPU has two. */
export function added(a: Lines, b: Lines): Lines {
  return {
    times: a.times,
    lines: a.lines.map((line, index) => ({
      label: line.label,
      values: line.values.map((value, at) => {
        const other = b.lines[index]?.values[at] ?? null
        return value === null || other === null ? null : value + other
      }),
    })),
  }
}

function average(metrics: unknown, path: string[]): number | null {
  let at: unknown = metrics
  for (const name of [...path, 'avg']) {
    if (typeof at !== 'object' || at === null) return null
    at = (at as Record<string, unknown>)[name]
  }
  return typeof at === 'number' ? at : null
}

// The overall health in one sentence, and the problems.

import type { Schema } from '../api/client'

export type Finding = Schema<'DoctorFinding'>
export type Tone = 'good' | 'warn' | 'bad'

export interface Known {
  /** `undefined` before the first response. */
  doctor: Schema<'DoctorReport'> | undefined
  metrics: Schema<'Metrics'> | undefined
  /** The broker did not respond. */
  unreachable: boolean
}

export interface Verdict {
  tone: Tone | 'unknown'
  words: string
  findings: Finding[]
}

const RANK: Record<string, number> = { problem: 0, warning: 1, info: 2 }

export function verdict(known: Known): Verdict {
  const findings = [...own(known), ...(known.doctor?.findings ?? [])]
  findings.sort((a, b) => (RANK[a.severity] ?? 3) - (RANK[b.severity] ?? 3))
  if (known.unreachable) return { tone: 'bad', words: 'Broker unreachable', findings }
  if (known.doctor === undefined) return { tone: 'unknown', words: 'Loading', findings }
  if (!known.doctor.reachable) return { tone: 'bad', words: 'Database unavailable', findings }
  const of = (severity: string) => findings.filter((finding) => finding.severity === severity).length
  const [problems, warnings] = [of('problem'), of('warning')]
  const words = [counted(problems, 'problem'), counted(warnings, 'warning')].filter((part) => part !== '').join(', ')
  if (problems > 0) return { tone: 'bad', words, findings }
  if (warnings > 0) return { tone: 'warn', words, findings }
  return { tone: 'good', words: 'Healthy', findings }
}

/** Problems of the broker itself; the doctor only examines the database. */
function own({ doctor, metrics }: Known): Finding[] {
  const findings: Finding[] = []
  if (doctor !== undefined && !doctor.reachable) {
    findings.push({
      severity: 'problem',
      code: 'database_away',
      message:
        'This broker cannot reach its database. Pushes go to its spool on disk if it has one, and pops wait. ' +
        'Restore the database or the connection to it; the broker then recovers by itself.',
    })
  }
  if (metrics !== undefined && metrics.database.connected && metrics.database.waitingRequests > 0) {
    const { poolSize, idleConnections, waitingRequests } = metrics.database
    if (idleConnections === 0) {
      findings.push({
        severity: 'warning',
        code: 'pool_busy',
        message:
          `All ${poolSize} connections of this broker are busy and ${waitingRequests} requests are waiting for one. ` +
          'Look for slow statements and locks; raise SIDECAR_POOL_SIZE if PostgreSQL has free connections.',
      })
    }
  }
  return findings
}

function counted(count: number, word: string): string {
  return count === 0 ? '' : `${count} ${word}${count === 1 ? '' : 's'}`
}

export function severityTone(severity: string): 'bad' | 'warn' | 'plain' {
  return severity === 'problem' ? 'bad' : severity === 'warning' ? 'warn' : 'plain'
}

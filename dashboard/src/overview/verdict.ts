// Is everything well, in one sentence, and what is not.

import type { Schema } from '../api/client'

export type Finding = Schema<'DoctorFinding'>
export type Tone = 'good' | 'warn' | 'bad'

export interface Known {
  /** `undefined`: not asked yet. */
  doctor: Schema<'DoctorReport'> | undefined
  metrics: Schema<'Metrics'> | undefined
  /** The broker did not answer. */
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
  if (known.unreachable) return { tone: 'bad', words: 'The broker does not answer', findings }
  if (known.doctor === undefined) return { tone: 'unknown', words: 'Asking the broker', findings }
  if (!known.doctor.reachable) return { tone: 'bad', words: 'The database is away', findings }
  const of = (severity: string) => findings.filter((finding) => finding.severity === severity).length
  const [problems, warnings] = [of('problem'), of('warning')]
  const words = [counted(problems, 'problem'), counted(warnings, 'warning')].filter((part) => part !== '').join(', ')
  if (problems > 0) return { tone: 'bad', words, findings }
  if (warnings > 0) return { tone: 'warn', words, findings }
  return { tone: 'good', words: 'Everything is well', findings }
}

/** What the doctor does not say, because it looks at the database and not at a broker. */
function own({ doctor, metrics }: Known): Finding[] {
  const findings: Finding[] = []
  if (doctor !== undefined && !doctor.reachable) {
    findings.push({
      severity: 'problem',
      code: 'database_away',
      message:
        'This broker cannot reach its database. Pushes go to its spool on disk if it has one, and pops wait. ' +
        'Bring the database back, or the way to it; nothing has to be done here afterwards.',
    })
  }
  if (metrics !== undefined && metrics.database.connected && metrics.database.waitingRequests > 0) {
    const { poolSize, idleConnections, waitingRequests } = metrics.database
    if (idleConnections === 0) {
      findings.push({
        severity: 'warning',
        code: 'pool_busy',
        message:
          `All ${poolSize} connections of this broker are busy and ${waitingRequests} callers wait for one. ` +
          'Look for slow statements and locks; raise SIDECAR_POOL_SIZE if PostgreSQL has connections left.',
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

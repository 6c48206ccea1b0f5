import { expect, it } from 'vitest'
import type { Schema } from '../api/client'
import { verdict } from './verdict'

function doctor(reachable: boolean, ...severities: string[]): Schema<'DoctorReport'> {
  const findings = severities.map((severity) => ({ severity, code: severity, message: '' }))
  return { healthy: reachable, reachable, ageSeconds: 1, findings, holders: [] }
}

const NOTHING = { doctor: undefined, metrics: undefined, unreachable: false }

it('is healthy only after a response', () => {
  expect(verdict(NOTHING).tone).toBe('unknown')
  expect(verdict({ ...NOTHING, doctor: doctor(true) })).toEqual({ tone: 'good', words: 'Healthy', findings: [] })
})

it('counts what is wrong, the worst first', () => {
  const told = verdict({ ...NOTHING, doctor: doctor(true, 'info', 'warning', 'problem', 'warning') })
  expect(told.tone).toBe('bad')
  expect(told.words).toBe('1 problem, 2 warnings')
  expect(told.findings.map((finding) => finding.severity)).toEqual(['problem', 'warning', 'warning', 'info'])
  expect(verdict({ ...NOTHING, doctor: doctor(true, 'warning') }).tone).toBe('warn')
  expect(verdict({ ...NOTHING, doctor: doctor(true, 'info') }).tone).toBe('good')
})

it('reports an unreachable broker first', () => {
  expect(verdict({ ...NOTHING, doctor: doctor(true), unreachable: true })).toMatchObject({ tone: 'bad' })
  const away = verdict({ ...NOTHING, doctor: doctor(false, 'warning') })
  expect(away.words).toBe('Database unavailable')
  expect(away.findings[0]!.code).toBe('database_away')
})

it('sees callers that wait for a connection', () => {
  const metrics = {
    database: { poolSize: 4, idleConnections: 0, waitingRequests: 9, connected: true },
  } as Schema<'Metrics'>
  expect(verdict({ ...NOTHING, doctor: doctor(true), metrics }).findings[0]!.message).toContain('All 4 connections')
})

import { describe, expect, it } from 'vitest'
import type { Schema } from '../api/client'
import { history, since, traffic } from './history'

type Ops = Schema<'QueueOps'>
type Step = Schema<'QueueStep'>

const START = Date.parse('2026-01-01T00:00:00Z') / 1000
const at = (seconds: number) => new Date((START + seconds) * 1000).toISOString()

function step(minute: number, fields: Partial<Step>): Step {
  return {
    bucket: at(minute * 60),
    queueName: 'orders',
    pushRequests: 0,
    pushMessages: 0,
    popMessages: 0,
    popEmpty: 0,
    ackRequests: 0,
    ackSuccess: 0,
    ackFailed: 0,
    transactions: 0,
    partitionsCreated: 0,
    partitionsDeleted: 0,
    partitionCount: 0,
    avgLagMs: 0,
    maxLagMs: 0,
    pushPerSecond: 0,
    popPerSecond: 0,
    ackPerSecond: 0,
    emptyPerSecond: 0,
    parkedCount: 0,
    ...fields,
  }
}

function ops(until: number, series: Step[]): Ops {
  return { timeRange: { from: at(0), to: at(until) }, bucketMinutes: 1, series, queues: [] }
}

describe('history', () => {
  it('fills steps without traffic with zero, and ages with nothing', () => {
    const seen = history(ops(180, [step(1, { pushMessages: 120, popMessages: 60, avgLagMs: 1500, maxLagMs: 4000 })]))
    expect(seen.times).toEqual([START, START + 60, START + 120])
    expect(seen.pushed).toEqual([0, 2, 0])
    expect(seen.delivered).toEqual([0, 1, 0])
    expect(seen.averageAge).toEqual([null, 1.5, null])
    expect(seen.longestAge).toEqual([null, 4, null])
  })

  it('divides a step that is not over by what is over of it', () => {
    expect(history(ops(90, [step(1, { pushMessages: 60 })])).pushed).toEqual([0, 2])
  })

  it('leaves out a step that has only just begun', () => {
    expect(history(ops(65, [step(1, { pushMessages: 60 })])).times).toEqual([START])
  })

  it('shows waiting consumers as they are, not per second', () => {
    expect(history(ops(60, [step(0, { parkedCount: 7 })])).waiting).toEqual([7])
  })
})

describe('traffic', () => {
  it('is separate for each queue, and averages the lag by message', () => {
    const seen = traffic(
      ops(120, [
        step(0, { pushMessages: 60, popMessages: 1, avgLagMs: 4000 }),
        step(1, { pushMessages: 120, popMessages: 3, avgLagMs: 0 }),
        step(1, { queueName: 'mail', pushMessages: 6 }),
      ]),
    )
    expect(seen.get('orders')).toEqual({ pushes: [1, 2], lagSeconds: 1 })
    expect(seen.get('mail')).toEqual({ pushes: [0, 0.1], lagSeconds: null })
  })

  it('forgets the lag of long ago', () => {
    const seen = traffic(ops(600, [step(0, { popMessages: 1, avgLagMs: 9000 })]))
    expect(seen.get('orders')?.lagSeconds).toBeNull()
  })
})

describe('since', () => {
  it('begins with a whole step and stays within the range', () => {
    const now = Date.parse('2026-01-01T12:34:56Z')
    expect(since(3600, now)).toBe('2026-01-01T11:35:00.000Z')
    expect(since(6 * 3600, now)).toBe('2026-01-01T06:35:00.000Z')
    expect(since(7 * 24 * 3600, now)).toBe('2025-12-25T13:00:00.000Z')
  })
})

import { describe, expect, it } from 'vitest'
import { history, lanes, rates, seen, type Look, type Metrics } from './live'

function look(second: number, flights: number, items: number, extra: Partial<Metrics> = {}): Look {
  const lane = { count: flights, items, avg_ms: flights === 0 ? 0 : 4, avg_wait_ms: flights === 0 ? 0 : 1 }
  const none = { count: 0, items: 0, avg_ms: 0, avg_wait_ms: 0 }
  return {
    at: second * 1000,
    metrics: {
      uptime: second,
      requests: { total: items * 2, rate: 0 },
      messages: { total: items, rate: 0 },
      cluster: { pushed: items, popped: 0, acknowledged: 0, deadLetters: 0, databaseErrors: 0 },
      database: { poolSize: 8, idleConnections: 4, waitingRequests: 0, connected: true, latencyMs: 1 },
      memory: { rss: 1 },
      cpu: { user: second * 250_000, system: second * 250_000 },
      sidecar: {
        connections: { total: 8, busy: 4 },
        queue: { pending: 0, completed: 0 },
        operations: { push: lane, pop: none, ack: none, transaction: none, renew_lease: none },
      },
      ...extra,
    },
  }
}

describe('lanes', () => {
  it('tells what happened between two looks', () => {
    const [push, pop] = lanes([look(100, 10, 100), look(110, 30, 500)], 10_000)
    expect(push).toMatchObject({ callsPerSecond: 2, itemsPerSecond: 40, batch: 20 })
    expect(push!.databaseSeconds).toBeCloseTo(0.004)
    expect(push!.waitSeconds).toBeCloseTo(0.001)
    expect(pop).toMatchObject({ callsPerSecond: 0, batch: null, databaseSeconds: null })
  })

  it('takes the average of the time in between, not since the start', () => {
    const before = look(100, 1000, 1000)
    const after = look(110, 1010, 1010)
    // 10 calls of 100 ms after 1000 of 4 ms.
    after.metrics.sidecar.operations.push!.avg_ms = (1000 * 4 + 10 * 100) / 1010
    expect(lanes([before, after], 10_000)[0]!.databaseSeconds).toBeCloseTo(0.1)
  })

  it('knows nothing from one look', () => {
    expect(lanes([look(100, 10, 100)], 10_000)[0]!.batch).toBeNull()
    expect(rates([look(100, 10, 100)], 10_000)).toBeNull()
    expect(rates([], 10_000)).toBeNull()
  })
})

describe('rates', () => {
  it('looks back only so far', () => {
    const looks = [look(0, 0, 0), look(100, 10, 1000), look(110, 20, 1100)]
    expect(rates(looks, 10_000)).toMatchObject({ push: 10, requests: 20, cpu: 0.5 })
  })

  it('has a history of steps', () => {
    const { times, push } = history([look(0, 0, 0), look(2, 1, 10), look(4, 2, 50)])
    expect(times).toEqual([2, 4])
    expect(push).toEqual([5, 20])
  })
})

describe('seen', () => {
  it('forgets what is old', () => {
    const looks = [look(0, 0, 0), look(50, 1, 1)]
    expect(seen(looks, look(100, 2, 2), 60_000)).toHaveLength(2)
  })

  it('begins anew after a restart', () => {
    const restarted = { ...look(2, 0, 0), at: 102_000 }
    expect(seen([look(100, 10, 100)], restarted, 60_000)).toEqual([restarted])
    const other = look(102, 50, 500, { uptime: 9_000 })
    expect(seen([look(100, 10, 100)], other, 60_000)).toEqual([other])
  })
})

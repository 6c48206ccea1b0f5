import { expect, it } from 'vitest'
import type { Schema } from '../api/client'
import { tableRows } from './tables'

const EMPTY = {
  tableSizes: [],
  deadTuples: [],
  hotUpdates: [],
  tableCache: [],
  autovacuumStatus: [],
} as unknown as Schema<'PostgresStats'>

it('joins five lists', () => {
  const rows = tableRows({
    ...EMPTY,
    tableSizes: [{ table: 'heads', totalSize: '8 kB', tableSize: '8 kB', indexSize: '0', totalBytes: 8192 }],
    deadTuples: [
      { table: 'heads', liveTuples: 75, deadTuples: 25, deadPercentage: 25, lastVacuum: null, lastAutovacuum: null },
      { table: 'other', liveTuples: 1, deadTuples: 0, deadPercentage: 0, lastVacuum: null, lastAutovacuum: null },
    ],
    hotUpdates: [{ table: 'heads', totalUpdates: 200, hotUpdates: 190, hotUpdatePercentage: 95 }],
    tableCache: [{ table: 'heads', diskReads: 1, cacheHits: 99, cacheHitRatio: 99 }],
    autovacuumStatus: [
      {
        table: 'heads',
        deadTuples: 25,
        autovacuumCount: 1,
        vacuumCount: 0,
        lastAutovacuum: '2026-01-01T00:00:00Z',
        lastAutoanalyze: null,
      },
    ],
  })
  expect(rows.map((row) => row.table)).toEqual(['heads', 'other'])
  expect(rows[0]).toMatchObject({ bytes: 8192, deadShare: 0.25, hotShare: 0.95, cached: 0.99, vacuumedAt: '2026-01-01T00:00:00Z' })
  expect(rows[1]).toMatchObject({ bytes: null, hotShare: null, vacuumedAt: null })
})

it('has no share of nothing', () => {
  const rows = tableRows({
    ...EMPTY,
    hotUpdates: [{ table: 't', totalUpdates: 0, hotUpdates: 0, hotUpdatePercentage: 0 }],
    tableCache: [{ table: 't', diskReads: 0, cacheHits: 0, cacheHitRatio: 0 }],
  })
  expect(rows[0]).toMatchObject({ hotShare: null, cached: null })
})

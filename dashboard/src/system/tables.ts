// Queen's tables in PostgreSQL: one row each, from five lists of statistics.

import type { Schema } from '../api/client'

export interface TableRow {
  table: string
  bytes: number | null
  size: string | null
  live: number | null
  dead: number | null
  /** Share of all row versions, 0 to 1. */
  deadShare: number | null
  /** Share of all updates, 0 to 1; `null` without any. */
  hotShare: number | null
  updates: number | null
  /** 0 to 1; `null` if nothing was read. */
  cached: number | null
  vacuumedAt: string | null
}

export function tableRows(stats: Schema<'PostgresStats'>): TableRow[] {
  const rows = new Map<string, TableRow>()
  const row = (table: string): TableRow => {
    let found = rows.get(table)
    if (found === undefined) {
      found = {
        table,
        bytes: null,
        size: null,
        live: null,
        dead: null,
        deadShare: null,
        hotShare: null,
        updates: null,
        cached: null,
        vacuumedAt: null,
      }
      rows.set(table, found)
    }
    return found
  }
  for (const { table, totalBytes, totalSize } of stats.tableSizes) {
    Object.assign(row(table), { bytes: totalBytes, size: totalSize })
  }
  for (const { table, liveTuples, deadTuples, deadPercentage, lastVacuum, lastAutovacuum } of stats.deadTuples) {
    Object.assign(row(table), {
      live: liveTuples,
      dead: deadTuples,
      deadShare: deadPercentage / 100,
      vacuumedAt: later(lastVacuum, lastAutovacuum),
    })
  }
  for (const { table, totalUpdates, hotUpdatePercentage } of stats.hotUpdates) {
    Object.assign(row(table), {
      updates: totalUpdates,
      hotShare: totalUpdates === 0 ? null : hotUpdatePercentage / 100,
    })
  }
  for (const { table, diskReads, cacheHits, cacheHitRatio } of stats.tableCache) {
    row(table).cached = diskReads + cacheHits === 0 ? null : cacheHitRatio / 100
  }
  for (const { table, lastAutovacuum } of stats.autovacuumStatus) {
    row(table).vacuumedAt = later(row(table).vacuumedAt, lastAutovacuum)
  }
  return [...rows.values()]
}

function later(a: string | null | undefined, b: string | null | undefined): string | null {
  if (!a) return b ?? null
  if (!b) return a
  return Date.parse(a) > Date.parse(b) ? a : b
}

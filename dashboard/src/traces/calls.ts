// API calls of the trace pages.

import { get, path, type Schema } from '../api/client'

export type TraceName = Schema<'TraceName'>
export type NamedTrace = Schema<'NamedTrace'>

export function names(limit: number, offset: number): Promise<Schema<'TraceNames'>> {
  return get('/api/v1/traces/names', { limit, offset })
}

export function byName(name: string, limit: number, offset: number): Promise<Schema<'NamedTraces'>> {
  return get(path`/api/v1/traces/by-name/${name}`, { limit, offset })
}

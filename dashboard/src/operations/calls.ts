// API calls of the operations pages.

import { del, get, path, post, type Schema } from '../api/client'

export type Deferred = Schema<'DeferredOperation'>
export type Stats = Schema<'OperationsStats'>
export type Buffers = Schema<'Buffers'>
export type Maintenance = Schema<'Maintenance'>

export interface OperationFilter {
  status?: string
  queue?: string
  olderThanSeconds?: string
}

/** The most that one response contains. */
export const PAGE_MAX = 1_000

export function stats(signal: AbortSignal): Promise<Stats> {
  return get('/api/v1/operations/stats', undefined, signal)
}

export async function operations(filter: OperationFilter, limit: number, offset: number): Promise<Deferred[]> {
  const page = await get<Schema<'Operations'>>('/api/v1/operations', { ...filter, limit, offset })
  return page.operations
}

export function operation(id: string, signal: AbortSignal): Promise<Deferred> {
  return get(path`/api/v1/operations/${id}`, undefined, signal)
}

export function retry(id: string): Promise<Schema<'OperationChanged'>> {
  return post(path`/api/v1/operations/${id}/retry`)
}

export function cancel(id: string): Promise<Schema<'OperationChanged'>> {
  return del(path`/api/v1/operations/${id}`)
}

export function buffers(signal: AbortSignal): Promise<Buffers> {
  return get('/api/v1/status/buffers', undefined, signal)
}

export function maintenance(signal: AbortSignal): Promise<Maintenance> {
  return get('/api/v1/system/maintenance', undefined, signal)
}

export function switchPushes(enabled: boolean): Promise<Maintenance> {
  return post('/api/v1/system/maintenance', { enabled })
}

export function switchPops(enabled: boolean): Promise<Schema<'PopMaintenance'>> {
  return post('/api/v1/system/maintenance/pop', { enabled })
}

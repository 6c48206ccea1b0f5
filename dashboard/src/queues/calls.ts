// API calls of the queue pages.

import { del, get, path, post, type Schema } from '../api/client'
import type { Options, Value } from './options'

/** The most queues that a broker lists at once. */
export const QUEUES_MAX = 10_000
const BUSY_MAX = 1_000

export type QueueStatus = Omit<Schema<'StatusQueueDetail'>, 'queue'> & {
  queue: Schema<'StatusDetailQueue'> & { options?: Options }
}

export async function listQueues(search: string | undefined, signal: AbortSignal): Promise<Schema<'Queue'>[]> {
  const page = await get<Schema<'Queues'>>('/api/v1/resources/queues', { search, limit: QUEUES_MAX }, signal)
  return page.queues
}

/** The notable partitions of all queues. */
export async function busiest(signal: AbortSignal): Promise<Schema<'BusyPartition'>[]> {
  const page = await get<Schema<'BusyPartitions'>>('/api/v1/resources/partitions', { limit: BUSY_MAX }, signal)
  return page.partitions
}

/** Partitions of one queue, most unread first. */
export async function partitionsOf(
  queue: string,
  search: string,
  limit: number,
  offset: number,
): Promise<Schema<'BusyPartition'>[]> {
  const page = await get<Schema<'BusyPartitions'>>('/api/v1/resources/partitions', { queue, search, limit, offset })
  return page.partitions
}

/** A queue with its options and totals, and only one of its partitions, because those are listed in pages. */
export function queueStatus(queue: string, signal: AbortSignal): Promise<QueueStatus> {
  return get(path`/api/v1/status/queues/${queue}`, { limit: 1 }, signal)
}

/** Without a queue: the busiest ones. */
export function queueOps(from: string, queue: string | undefined, signal: AbortSignal): Promise<Schema<'QueueOps'>> {
  return get('/api/v1/analytics/queue-ops', { from, queue }, signal)
}

export function configure(queue: string, options: Record<string, Value | null>): Promise<Schema<'Configured'>> {
  return post('/api/v1/configure', { queue, options })
}

export function clear(queue: string, partition?: string): Promise<Schema<'QueueCleared'>> {
  return del(path`/api/v1/queues/${queue}/clear`, { partition })
}

export function remove(queue: string): Promise<Schema<'QueueDeleted'>> {
  return del(path`/api/v1/resources/queues/${queue}`)
}

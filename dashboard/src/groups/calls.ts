// API calls of the consumer group pages.

import { del, get, path, post, type Schema } from '../api/client'
import type { Forecast, SeekBody } from './seek'

export type Group = Schema<'ConsumerGroup'>

export type GroupPartition = Schema<'GroupInPartition'>

type ByQueue = Record<string, { partitions: GroupPartition[] }>

/** The most groups that a broker lists at once. */
export const GROUPS_MAX = 10_000

/** One entry per group and queue. */
export function listGroups(queue: string | undefined, signal: AbortSignal): Promise<Group[]> {
  return get('/api/v1/consumer-groups', { queue, limit: GROUPS_MAX }, signal)
}

/** The queues that a group reads. */
export async function queuesOf(group: string, signal: AbortSignal): Promise<string[]> {
  const queues = await get<ByQueue>(path`/api/v1/consumer-groups/${group}`, { limit: 1 }, signal)
  return Object.keys(queues)
}

/** The partitions of a queue with the most unread messages of a group. */
export async function partitionsOf(
  group: string,
  queue: string,
  search: string,
  limit: number,
  offset: number,
): Promise<GroupPartition[]> {
  const queues = await get<ByQueue>(path`/api/v1/consumer-groups/${group}`, { queue, search, limit, offset })
  return queues[queue]?.partitions ?? []
}

/** A preview of a seek. */
export function forecast(
  group: string,
  queue: string,
  partition: string | undefined,
  body: SeekBody,
  signal: AbortSignal,
): Promise<Forecast> {
  return post(seekPath(group, queue, partition), { ...body, dryRun: true }, signal)
}

export function seek(group: string, queue: string, partition: string | undefined, body: SeekBody): Promise<Forecast> {
  return post(seekPath(group, queue, partition), body)
}

function seekPath(group: string, queue: string, partition: string | undefined): string {
  return partition === undefined
    ? path`/api/v1/consumer-groups/${group}/queues/${queue}/seek`
    : path`/api/v1/consumer-groups/${group}/queues/${queue}/partitions/${partition}/seek`
}

/** In one queue, or in all. `start`: also delete its configured start position. */
export function forget(group: string, queue: string | undefined, start: boolean): Promise<Schema<'GroupDeleted'>> {
  const route =
    queue === undefined
      ? path`/api/v1/consumer-groups/${group}`
      : path`/api/v1/consumer-groups/${group}/queues/${queue}`
  return del(route, { deleteMetadata: start })
}

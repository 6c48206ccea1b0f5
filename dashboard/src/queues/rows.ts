// Rows of the queue list: four responses joined by name. Independent of the page.

import type { Schema } from '../api/client'
import type { Traffic } from './history'

export interface QueueRow {
  name: string
  createdAt: string
  /** Null until a newly filled queue has been measured. */
  partitions: number | null
  stored: number
  /** Not delivered yet, plus delivered under a lease: what is still to be done. */
  pending: number
  processing: number
  backlog: number
  /** Consumer groups; null without access to them. */
  groups: number | null
  /** Seconds that the oldest unread message has waited; null if there is none, or if unknown. */
  waiting: number | null
  /** Average age at delivery in the last minutes; null without deliveries. */
  lagSeconds: number | null
  /** Messages pushed per second, by minute; null if the queue is not among the busiest. */
  pushes: number[] | null
}

export type Show = 'all' | 'backlog' | 'waiting' | 'unread'

/** A group that waits longer than this is behind; the broker's state is then `Lagging`. */
export const BEHIND_SECONDS = 300

export function queueRows(
  queues: Schema<'Queue'>[],
  groups: Schema<'ConsumerGroup'>[] | undefined,
  busy: Schema<'BusyPartition'>[] | undefined,
  traffic: Map<string, Traffic> | undefined,
): QueueRow[] {
  const readers = new Map<string, number>()
  const waits = new Map<string, number>()
  const longest = (queue: string, seconds: number) => {
    if (seconds > (waits.get(queue) ?? -1)) waits.set(queue, seconds)
  }
  for (const group of groups ?? []) {
    readers.set(group.queueName, (readers.get(group.queueName) ?? 0) + 1)
    const seconds = waitOf(group)
    if (seconds !== null) longest(group.queueName, seconds)
  }
  // Without groups, the partitions provide the waiting time.
  for (const partition of busy ?? []) {
    if (!readers.has(partition.queue) && partition.lagSeconds !== null) longest(partition.queue, partition.lagSeconds)
  }
  return queues.map((queue) => {
    const { total, pending, processing } = queue.messages
    const past = traffic?.get(queue.name)
    return {
      name: queue.name,
      createdAt: queue.createdAt,
      partitions: queue.partitions === 0 && total > 0 ? null : queue.partitions,
      stored: total,
      pending,
      processing,
      backlog: pending + processing,
      groups: groups ? (readers.get(queue.name) ?? 0) : null,
      waiting: pending + processing > 0 ? (waits.get(queue.name) ?? null) : null,
      lagSeconds: past?.lagSeconds ?? null,
      pushes: past?.pushes ?? null,
    }
  })
}

export function chosen(rows: QueueRow[], search: string, show: Show): QueueRow[] {
  const part = search.trim().toLowerCase()
  return rows.filter((row) => row.name.toLowerCase().includes(part) && shown(row, show))
}

function shown(row: QueueRow, show: Show): boolean {
  switch (show) {
    case 'all':
      return true
    case 'backlog':
      return row.backlog > 0
    case 'waiting':
      return row.waiting !== null && row.waiting > BEHIND_SECONDS
    case 'unread':
      return row.backlog > 0 && row.groups === 0
  }
}

export function asShow(text: string | null): Show {
  return text === 'backlog' || text === 'waiting' || text === 'unread' ? text : 'all'
}

/** Seconds that the oldest unread message of a queue has waited; `null` if there is none, or if unknown. */
export function longestWait(groups: Schema<'ConsumerGroup'>[], unread: Schema<'BusyPartition'>[] | undefined): number | null {
  const waits =
    groups.length > 0
      ? groups.map(waitOf)
      : (unread ?? []).map((partition) => partition.lagSeconds)
  const known = waits.filter((seconds) => seconds !== null)
  return known.length > 0 ? Math.max(...known) : null
}

/** How long the oldest message unread by a group has waited. Null if it was not measured yet. */
export function waitOf(group: Schema<'ConsumerGroup'>): number | null {
  return group.totalLag > 0 && group.maxTimeLag > 0 ? group.maxTimeLag : null
}

// API calls of the dead letter pages.

import { del, get, path, post, type Schema } from '../api/client'
import { asked, type Filter } from './filter'
import type { Redrive } from './redrive'

export type Letter = Schema<'DeadLetter'>

/** Errors that differ only in parts that vary between messages. */
export interface Shape {
  shape: string
  count: number
  queues: number
  example: string | null
  firstFailedAt: string
  lastFailedAt: string
}

export interface Shapes {
  shapes: Shape[]
  total: number
  /** Less than the total if only the newest were counted. */
  counted: number
}

const SHAPES_MAX = 200

export function shapes(filter: Filter, signal: AbortSignal): Promise<Shapes> {
  return get(asked('/api/v1/dlq/shapes', filter, { limit: SHAPES_MAX }), undefined, signal)
}

export function letters(filter: Filter, limit: number, offset: number): Promise<Schema<'DeadLetters'>> {
  return get(asked('/api/v1/dlq', filter, { limit, offset }))
}

export function purge(filter: Filter): Promise<Schema<'Purged'>> {
  return del(asked('/api/v1/dlq', filter))
}

export async function countPurge(filter: Filter): Promise<number> {
  await understood(filter)
  return (await letters(filter, 1, 0)).total
}

/**
 * Throws if the broker does not support shapes. During an upgrade, an older broker behind the same address would ignore this
 * part of the filter and process all dead letters of the queue.
 */
async function understood(filter: Filter): Promise<void> {
  if (filter.shape !== undefined) await get(asked('/api/v1/dlq/shapes', filter, { limit: 1 }))
}

export interface RedriveAsk {
  filter: Filter & { queue: string }
  targetQueue?: string
  perSecond?: number
}

export async function countRedrive({ filter, targetQueue }: RedriveAsk): Promise<number> {
  await understood(filter)
  const { total } = await post<Schema<'RedriveCount'>>('/api/v1/dlq/redrive', { ...filter, targetQueue, dryRun: true })
  return total
}

export function startRedrive({ filter, targetQueue, perSecond }: RedriveAsk): Promise<Redrive> {
  return post('/api/v1/dlq/redrive', { ...filter, targetQueue, perSecond })
}

export async function redrives(signal: AbortSignal): Promise<Redrive[]> {
  const page = await get<{ redrives: Redrive[] }>('/api/v1/dlq/redrives', undefined, signal)
  return page.redrives
}

export function cancelRedrive(id: string): Promise<Redrive> {
  return del(path`/api/v1/dlq/redrives/${id}`)
}

/** The queues of the matching letters; an action applies to one of them. */
export async function queuesOf(filter: Filter): Promise<string[]> {
  if (filter.queue !== undefined) return [filter.queue]
  const page = await letters(filter, QUEUES_LOOK, 0)
  return [...new Set(page.messages.map(({ queue }) => queue))].sort()
}

/** Letters include their payloads, so pages are small. */
const QUEUES_LOOK = 200

// API calls of the message pages.

import { del, get, path, post, type Schema } from '../api/client'
import { getExact, postExact } from './exact'
import { compact, object } from './json'

export type Message = Schema<'StoredMessage'>
export type MessageDetail = Schema<'MessageDetail'>
export type PushResult = Schema<'PushResult'>

export interface MessageFilter {
  queue?: string
  partition?: string
  ns?: string
  task?: string
  status?: string
  from?: string
  to?: string
}

export function listMessages(filter: MessageFilter, limit: number, offset: number): Promise<Schema<'Messages'>> {
  return get('/api/v1/messages', { ...filter, limit, offset })
}

export function where(partition: string, transaction: string): string {
  return path`/api/v1/messages/${partition}/${transaction}`
}

/** `text` is the payload as it was written. */
export function message(
  partition: string,
  transaction: string,
  signal: AbortSignal,
): Promise<{ answer: MessageDetail; text: string }> {
  return getExact(where(partition, transaction), 'data', signal)
}

export function life(partition: string, transaction: string, signal: AbortSignal): Promise<Schema<'MessageLife'>> {
  return get(`${where(partition, transaction)}/life`, undefined, signal)
}

export function notes(partition: string, transaction: string, signal: AbortSignal): Promise<Schema<'MessageTraces'>> {
  return get(path`/api/v1/traces/${partition}/${transaction}`, undefined, signal)
}

export function remove(partition: string, transaction: string): Promise<Schema<'MessageDeleted'>> {
  return del(where(partition, transaction))
}

export function replay(partition: string, transaction: string): Promise<Schema<'MessageReplayed'>> {
  return post(`${where(partition, transaction)}/retry`)
}

export function bury(
  partition: string,
  transaction: string,
  consumerGroup: string,
  error: string,
): Promise<Schema<'MessageBuried'>> {
  return post(`${where(partition, transaction)}/dlq`, { consumerGroup, error: error === '' ? undefined : error })
}

export interface Draft {
  queue: string
  partition: string
  /** JSON. */
  payload: string
  transactionId: string
  traceId: string
  traceparent: string
  namespace: string
  task: string
}

/** The body of a push. Empty fields are omitted, and so is whitespace of the payload, which would be stored. */
export function pushBody(draft: Draft): string {
  const { payload, queue, ...rest } = draft
  const given = Object.fromEntries(Object.entries(rest).map(([key, value]) => [key, value.trim() || undefined]))
  return `{"items":[${object({ queue, ...given }, { payload: compact(payload) })}]}`
}

/** A broker with `OPQ_RESPONSE=object` responds to a deferred push with one object. */
export async function push(draft: Draft): Promise<PushResult | Schema<'Queued'>> {
  const answer = await postExact<PushResult[] | Schema<'Queued'>>('/api/v1/push', pushBody(draft))
  return Array.isArray(answer) ? answer[0]! : answer
}

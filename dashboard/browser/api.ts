// Acts as producers and consumers, and queries the API to compare pages with it.

import { randomUUID } from 'node:crypto'

export interface Pushed {
  message_id: string
  transaction_id: string
  partition_id: string
  status: string
  operationId?: string
}

export interface Message {
  id: string
  transactionId: string
  partitionId: string
  partition: string
  queue: string
  leaseId: string
  data: unknown
}

export interface Item {
  queue: string
  partition?: string
  payload?: unknown
  transactionId?: string
  traceId?: string
}

interface Pop {
  group?: string
  batch?: number
  partitions?: number
  leaseSeconds?: number
  /** How long to wait for a message. */
  waitMs?: number
}

export interface Answer<T> {
  status: number
  body: T
}

const PATIENCE_MS = 10_000

/** A unique name. */
export function named(word: string): string {
  return `${word}-${randomUUID().slice(0, 8)}`
}

export class Api {
  readonly url: string
  readonly #token: string | undefined

  constructor(url: string, token?: string) {
    this.url = url
    this.#token = token
  }

  /** With any response status. */
  async ask<T>(method: string, path: string, body?: unknown): Promise<Answer<T>> {
    const response = await fetch(this.url + path, {
      method,
      headers: this.#token === undefined ? {} : { authorization: `Bearer ${this.#token}` },
      body: body === undefined ? undefined : JSON.stringify(body),
    })
    const text = await response.text()
    return { status: response.status, body: (text === '' ? undefined : JSON.parse(text)) as T }
  }

  async get<T = any>(path: string): Promise<T> {
    return good(await this.ask<T>('GET', path), path)
  }

  async post<T = any>(path: string, body: unknown = {}): Promise<T> {
    return good(await this.ask<T>('POST', path, body), path)
  }

  async delete<T = any>(path: string): Promise<T> {
    return good(await this.ask<T>('DELETE', path), path)
  }

  /** The error message of a refusal. */
  async refusal(method: string, path: string, body?: unknown): Promise<string> {
    const { status, body: told } = await this.ask<{ error: string }>(method, path, body)
    if (status < 400) throw new Error(`${method} ${path} was not refused`)
    return told.error
  }

  push(items: Item[]): Promise<Pushed[]> {
    return this.post('/api/v1/push', { items })
  }

  /** `count` messages `{"n":0}`, `{"n":1}`, … in one partition. */
  pushMany(queue: string, count: number, partition = 'Default'): Promise<Pushed[]> {
    return this.push(Array.from({ length: count }, (_, n) => ({ queue, partition, payload: { n } })))
  }

  async pop(queue: string, { group, batch = 1, partitions = 1, leaseSeconds, waitMs }: Pop = {}): Promise<Message[]> {
    const query = new URLSearchParams({ batch: String(batch), partitions: String(partitions) })
    if (group !== undefined) query.set('consumerGroup', group)
    if (leaseSeconds !== undefined) query.set('leaseSeconds', String(leaseSeconds))
    if (waitMs !== undefined) {
      query.set('wait', 'true')
      query.set('timeout', String(waitMs))
    }
    const answer = await this.get<{ messages: Message[] } | undefined>(
      `/api/v1/pop/queue/${encodeURIComponent(queue)}?${query}`,
    )
    return answer?.messages ?? []
  }

  async ack(messages: Message[], group?: string, status = 'completed', error?: string): Promise<void> {
    const acknowledgments = messages.map(({ transactionId, partitionId, leaseId }) => ({
      transactionId,
      partitionId,
      leaseId,
      status,
      error,
    }))
    const results = await this.post<{ success: boolean }[]>('/api/v1/ack/batch', { consumerGroup: group, acknowledgments })
    if (!results.every(({ success }) => success)) throw new Error(`not acknowledged: ${JSON.stringify(results)}`)
  }

  /** Exactly this many, which are stored or on their way. */
  async take(queue: string, count: number, group?: string): Promise<Message[]> {
    const taken: Message[] = []
    while (taken.length < count) {
      const more = await this.pop(queue, { group, batch: count - taken.length, partitions: 100, waitMs: PATIENCE_MS })
      if (more.length === 0) throw new Error(`${taken.length} instead of ${count} messages in ${queue}`)
      taken.push(...more)
    }
    return taken
  }

  /** Reads and completes this many; returns their payloads. */
  async consume(queue: string, count: number, group?: string): Promise<unknown[]> {
    const messages = await this.take(queue, count, group)
    await this.ack(messages, group)
    return messages.map(({ data }) => data)
  }

  /** Makes each a dead letter of the group with its own error; `null` has none. */
  async bury(queue: string, group: string, errors: (string | null)[]): Promise<void> {
    await this.push(errors.map((error, n) => ({ queue, partition: `customer-${n % 3}`, payload: { n, error } })))
    for (const message of await this.take(queue, errors.length, group)) {
      await this.ack([message], group, 'dlq', (message.data as { error: string | null }).error ?? undefined)
    }
  }
}

function good<T>({ status, body }: Answer<T>, path: string): T {
  if (status >= 400) throw new Error(`${path}: ${status} ${JSON.stringify(body)}`)
  return body
}

/** The JSON types of the HTTP API, its paths and queries. Sends nothing. */

import { badUse, QueenError } from './errors.js';

export interface WirePushResult extends WireTicket {
  index: number;
  message_id: string;
  transaction_id: string;
  queueName: string;
  status: 'queued' | 'duplicate' | 'buffered' | 'failed';
  partition_id: string;
  trace_id: string | null;
  error?: string;
}

/** On elements of a 202. */
export interface WireTicket {
  operationId?: string;
  queuePosition?: number;
  /** Seconds. */
  estimatedWait?: number;
  reason?: string;
}

/** A 202 of brokers that are configured to respond with an object. */
export interface WireQueued extends WireTicket {
  operations: { operationId: string; queue: string; partition: string }[];
}

export interface WireMessage {
  id: string;
  transactionId: string;
  originalTransactionId?: string;
  traceId: string | null;
  traceparent?: string;
  tracestate?: string;
  data: unknown;
  producerSub: string | null;
  createdAt: string;
  partitionId: string;
  partition: string;
  queue: string;
  leaseId: string;
  consumerGroup: string;
  retryCount: number;
}

export interface WirePopped {
  leaseId: string;
  leaseSeconds?: number;
  messages: WireMessage[];
}

export interface WireAck {
  transactionId: string;
  /** Selects one of several messages with the same transaction id. */
  messageId: string;
  partitionId: string;
  leaseId: string;
  status: string;
  error?: string | undefined;
}

export interface WireAckResult extends WireTicket {
  index: number;
  transactionId: string;
  success: boolean;
  error: string | null;
  leaseReleased?: boolean;
  dlq: boolean;
  noop?: boolean;
}

export interface WireTransactionPush {
  type: 'push';
  transactionId: string;
  messageId: string;
  partitionId: string;
  queueName: string;
  duplicate?: boolean;
}

export interface WireTransactionAck {
  type: 'ack';
  transactionId: string;
  success: boolean;
  error: string | null;
  dlq: boolean;
}

export interface WireTransaction {
  transactionId: string;
  success: boolean;
  error?: string;
  results: (WireTransactionPush | WireTransactionAck)[];
}

export type Queryable = Readonly<Record<string, string | number | boolean | Date | undefined>>;

/** A path with names, which may contain anything: `path('/api/v1/pop/queue', name)`. */
export function path(base: string, ...names: readonly string[]): string {
  return [base, ...names.map(segment)].join('/');
}

function segment(name: string): string {
  // URL parsers resolve these as path steps, even percent-encoded.
  if (name === '.' || name === '..') {
    throw badUse(`"${name}" cannot be used in a URL path; choose another name`);
  }
  return encodeURIComponent(name);
}

/** `?a=1&b=2` without undefined values, or nothing. */
export function query(values: Queryable): string {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    if (value !== undefined) {
      query.set(name, value instanceof Date ? time(value) : String(value));
    }
  }
  const text = query.toString();
  return text && `?${text}`;
}

export function time(date: Date): string {
  if (Number.isNaN(date.getTime())) {
    throw badUse('invalid date');
  }
  return date.toISOString();
}

/** The broker counts leases in whole seconds. */
export function wholeSeconds(milliseconds: number): number {
  return Math.ceil(milliseconds / 1000);
}

export function asArray<T>(body: unknown, length: number): T[] {
  if (!Array.isArray(body) || body.length !== length) {
    throw unreadable(`a list of ${length}`);
  }
  return body as T[];
}

export function asObject<T extends object>(body: unknown): T {
  if (typeof body !== 'object' || body === null || Array.isArray(body)) {
    throw unreadable('an object');
  }
  return body as T;
}

function unreadable(expected: string): QueenError {
  return new QueenError('decode', `the response is not ${expected}: is this a Queen broker?`, { unsure: true });
}

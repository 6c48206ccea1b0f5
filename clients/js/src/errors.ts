/** Errors: a single class with a `kind`. Independent of requests and sockets. */

import type { AckResult } from './ack.js';
import type { PushResult } from './push.js';

/**
  * - `bad_use`: the call is invalid; nothing was sent
  * - `bad_request`, `unauthorized`, `forbidden`, `not_found`, `conflict`: the broker rejected it; a retry would not help
  * - `rate_limited`, `unavailable`, `server`: the broker cannot do it now
  * - `network`, `timeout`: no response arrived
  * - `refused`: the broker refused an acknowledgement, a renewal or an item
  * - `rolled_back`: a transaction had no effect
  * - `outcome_unknown`: it may have been executed: a response was lost, and retrying would do harm or was refused
  * - `operation_failed`: a deferred operation was accepted and then failed
  * - `buffer_full`: the buffer has no room, and is configured not to wait or is full of undelivered messages
  * - `closed`: the client or the buffer is closed
  * - `decode`: a response or a payload cannot be decoded
 */
export type ErrorKind =
  | 'bad_use'
  | 'bad_request'
  | 'unauthorized'
  | 'forbidden'
  | 'not_found'
  | 'conflict'
  | 'rate_limited'
  | 'unavailable'
  | 'server'
  | 'network'
  | 'timeout'
  | 'refused'
  | 'rolled_back'
  | 'outcome_unknown'
  | 'operation_failed'
  | 'buffer_full'
  | 'closed'
  | 'decode';

/** A message that a buffer could not deliver. Pushing it again with its transaction id stores it once. */
export interface Undelivered {
  readonly queue: string;
  readonly partition: string | undefined;
  readonly payload: unknown;
  readonly transactionId: string;
  readonly error: QueenError;
}

export interface ErrorDetails {
  /** HTTP status, if there was a response. */
  status?: number | undefined;
  /** The broker's error code, such as `rate_limited`. */
  code?: string | undefined;
  /** Milliseconds that the broker asked to wait. */
  retryAfter?: number | undefined;
  /** Number of attempts. */
  attempts?: number | undefined;
  /** Results of all items, if the broker returned them. */
  results?: readonly (PushResult | AckResult)[] | undefined;
  /** Id of the deferred operation. */
  operation?: string | undefined;
  /** The undelivered messages of a buffer. */
  undelivered?: readonly Undelivered[] | undefined;
  cause?: unknown;
  /** @internal An attempt may have been executed. */
  unsure?: boolean | undefined;
}

export class QueenError extends Error {
  override readonly name = 'QueenError';
  readonly kind: ErrorKind;
  readonly status: number | undefined;
  readonly code: string | undefined;
  readonly retryAfter: number | undefined;
  readonly attempts: number;
  readonly results: readonly (PushResult | AckResult)[] | undefined;
  readonly operation: string | undefined;
  readonly undelivered: readonly Undelivered[] | undefined;
  /** @internal An attempt may have been executed. */
  readonly unsure: boolean;

  constructor(kind: ErrorKind, message: string, details: ErrorDetails = {}) {
    super(message, details.cause === undefined ? undefined : { cause: details.cause });
    this.kind = kind;
    this.status = details.status;
    this.code = details.code;
    this.retryAfter = details.retryAfter;
    this.attempts = details.attempts ?? 0;
    this.results = details.results;
    this.operation = details.operation;
    this.undelivered = details.undelivered;
    this.unsure = details.unsure ?? false;
  }
}

/** A copy of an error with other or additional fields. */
export function retold(
  error: QueenError,
  { kind = error.kind, text = error.message, ...details }: ErrorDetails & { kind?: ErrorKind; text?: string },
): QueenError {
  return new QueenError(kind, text, { ...error, cause: error.cause, ...details });
}

export function badUse(message: string, cause?: unknown): QueenError {
  return new QueenError('bad_use', message, { cause });
}

const KINDS: Record<number, ErrorKind> = {
  401: 'unauthorized',
  403: 'forbidden',
  404: 'not_found',
  409: 'conflict',
  429: 'rate_limited',
  503: 'unavailable',
};

export function kindOfStatus(status: number): ErrorKind {
  return KINDS[status] ?? (status >= 500 ? 'server' : 'bad_request');
}

/** The text for the broker about something that was thrown. */
export function textOf(thrown: unknown): string {
  if (thrown instanceof Error) {
    return thrown.message || thrown.name;
  }
  return typeof thrown === 'string' ? thrown : String(thrown);
}

/** What can go wrong, in one class. Knows no request and no socket. */

import type { AckResult } from './ack.js';
import type { PushResult } from './push.js';

/**
 * - `bad_use`: the call makes no sense; nothing was sent
 * - `bad_request`, `unauthorized`, `forbidden`, `not_found`, `conflict`: the broker says no, and would again
 * - `rate_limited`, `unavailable`, `server`: the broker cannot now
 * - `network`, `timeout`: no answer came
 * - `refused`: the broker refused an acknowledgement, a renewal or an item
 * - `rolled_back`: a transaction did not happen
 * - `outcome_unknown`: it may have happened: an answer was lost, and to ask again would do harm or was refused
 * - `operation_failed`: a deferred operation was accepted and then failed
 * - `buffer_full`: the buffer has no room, and was told not to wait or holds nothing but what it could not deliver
 * - `closed`: the client or the buffer is closed
 * - `decode`: an answer or a payload cannot be read
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

/** A message that a buffer could not deliver. Push it again with its transaction id, and it is stored once. */
export interface Undelivered {
  readonly queue: string;
  readonly partition: string | undefined;
  readonly payload: unknown;
  readonly transactionId: string;
  readonly error: QueenError;
}

export interface ErrorDetails {
  /** HTTP status, if there was an answer. */
  status?: number | undefined;
  /** The broker's word for programs, such as `rate_limited`. */
  code?: string | undefined;
  /** Milliseconds the broker asked to wait. */
  retryAfter?: number | undefined;
  /** How often the request was sent. */
  attempts?: number | undefined;
  /** What became of every item, if the broker said so. */
  results?: readonly (PushResult | AckResult)[] | undefined;
  /** Id of the deferred operation this is about. */
  operation?: string | undefined;
  /** What a buffer could not deliver. */
  undelivered?: readonly Undelivered[] | undefined;
  cause?: unknown;
  /** @internal An attempt may have been carried out. */
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
  /** @internal An attempt may have been carried out. */
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

/** The same error, with more or something else to say. */
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

/** What to tell the broker about something that was thrown. */
export function textOf(thrown: unknown): string {
  if (thrown instanceof Error) {
    return thrown.message || thrown.name;
  }
  return typeof thrown === 'string' ? thrown : String(thrown);
}

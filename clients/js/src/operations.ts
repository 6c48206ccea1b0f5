/** Deferred operations (202): what they are to a caller, and waiting until they are done. */

import { now, sleep } from './clock.js';
import { QueenError, retold } from './errors.js';
import type { Http } from './http.js';
import type { WireQueued, WireTicket } from './wire.js';
import { asObject, path } from './wire.js';

/** The broker has accepted and stored a request, and will carry it out in order. */
export interface Operation {
  readonly id: string;
  /** About how many operations are in front of it. */
  readonly position: number;
  /** Milliseconds, estimated. */
  readonly estimatedWait: number;
  readonly reason: string | undefined;
}

/** A call whose operations are to be awaited. */
interface Polled {
  /** That accepted them. */
  readonly broker: string;
  readonly until: number;
  readonly signal?: AbortSignal | undefined;
}

const FIRST_PAUSE = 100;
const LONGEST_PAUSE = 1_000;

export function operationOf(ticket: WireTicket): Operation | undefined {
  if (ticket.operationId === undefined) {
    return undefined;
  }
  return {
    id: ticket.operationId,
    position: ticket.queuePosition ?? 0,
    estimatedWait: (ticket.estimatedWait ?? 0) * 1000,
    reason: ticket.reason,
  };
}

/** Some brokers answer a 202 with an object, which tells operations by partition, and no results. */
export function queuedOf(body: unknown): WireQueued | undefined {
  const queued = body as WireQueued | null | undefined;
  return Array.isArray(queued?.operations) ? queued : undefined;
}

/** The operation of a partition. None: what was asked for there was done at once. */
export function ticketOf(queued: WireQueued, queue: string, partition: string): WireTicket {
  const { operations, queuePosition, estimatedWait, reason } = queued;
  const named = operations.find((one) => one.queue === queue && one.partition === partition);
  // The broker that takes an acknowledgement may not know the name of its partition.
  const nameless = operations.length === 1 && operations[0]!.partition === '' ? operations[0] : undefined;
  const found = named ?? nameless;
  return found ? { operationId: found.operationId, queuePosition, estimatedWait, reason } : {};
}

/**
 * What became of results that were deferred, by their positions, once all operations have ended. One that fails says nothing
 * about the others.
 */
export async function pollOperations<R>(
  http: Http,
  operations: readonly (Operation | undefined)[],
  queued: WireQueued | undefined,
  call: Polled,
): Promise<Map<number, R | QueenError>> {
  const members = new Map<string, number[]>();
  operations.forEach((operation, index) => {
    if (operation) {
      const same = members.get(operation.id) ?? [];
      same.push(index);
      members.set(operation.id, same);
    }
  });
  const news = new Map<number, R | QueenError>();
  for (const [first, positions] of members) {
    // What is too large for one operation is several, in the order of the request.
    for (const id of siblings(queued, first)) {
      try {
        const results = await poll<R>(http, id, call);
        positions.splice(0, results.length).forEach((position, index) => news.set(position, results[index]!));
      } catch (error) {
        if (!(error instanceof QueenError)) {
          throw error;
        }
        positions.splice(0).forEach((position) => news.set(position, error));
      }
    }
  }
  return news;
}

/** All operations of the partition that this one is of. An object names only the first with its results. */
function siblings(queued: WireQueued | undefined, id: string): string[] {
  const own = queued?.operations.find((one) => one.operationId === id);
  const same = queued?.operations.filter((one) => one.queue === own?.queue && one.partition === own?.partition);
  return same?.map((one) => one.operationId) ?? [id];
}

/** The results of one operation, if the broker tells them. */
async function poll<R>(http: Http, id: string, { broker, until, signal }: Polled): Promise<R[]> {
  const late = (state: string) => {
    const text = `operation ${id} is still ${state}; it stays accepted, ask for it later`;
    return new QueenError('timeout', text, { operation: id });
  };
  if (now() >= until) {
    throw late('accepted');
  }
  for (let pause = FIRST_PAUSE; ; pause = Math.min(pause * 2, LONGEST_PAUSE)) {
    const { body } = await http
      .call({ method: 'GET', path: path('/api/v1/operations', id), route: { at: broker }, until, signal })
      .catch((error: unknown) => {
        throw error instanceof QueenError ? withOperation(error, id) : error;
      });
    const { status, error_message, result } = asObject<WireOperation>(body);
    if (status === 'completed') {
      return Array.isArray(result) ? result : [];
    }
    if (status === 'failed' || status === 'cancelled') {
      const why = error_message ? `: ${error_message}` : '';
      throw new QueenError('operation_failed', `operation ${id} ${status}${why}`, { operation: id });
    }
    if (now() + pause >= until) {
      throw late(status);
    }
    await sleep(pause, signal);
  }
}

interface WireOperation {
  status: string;
  error_message?: string | null;
  result?: unknown;
}

function withOperation(error: QueenError, operation: string): QueenError {
  const text = `operation ${operation} is accepted, but cannot be asked for: ${error.message}`;
  return retold(error, { text, operation, cause: error });
}

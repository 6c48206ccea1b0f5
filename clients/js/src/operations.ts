/** Deferred operations (202): their representation, and waiting until they complete. */

import { now, sleep } from './clock.js';
import { QueenError, retold } from './errors.js';
import type { Http } from './http.js';
import type { WireQueued, WireTicket } from './wire.js';
import { asObject, path } from './wire.js';

/** An operation that the broker has accepted durably and will execute in order. */
export interface Operation {
  readonly id: string;
  /** Approximate number of open operations when it was accepted, including itself. */
  readonly position: number;
  /** Estimated milliseconds. */
  readonly estimatedWait: number;
  readonly reason: string | undefined;
}

/** A call that awaits its operations. */
interface Polled {
  /** The broker that accepted them. */
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

/** Brokers can be configured to answer a 202 with an object that lists operations by partition, without results. */
export function queuedOf(body: unknown): WireQueued | undefined {
  const queued = body as WireQueued | null | undefined;
  return Array.isArray(queued?.operations) ? queued : undefined;
}

/** The operation of a partition. None: everything for it was executed at once. */
export function ticketOf(queued: WireQueued, queue: string, partition: string): WireTicket {
  const { operations, queuePosition, estimatedWait, reason } = queued;
  const named = operations.find((one) => one.queue === queue && one.partition === partition);
  // The broker that accepts an acknowledgement may not know the name of its partition.
  const nameless = operations.length === 1 && operations[0]!.partition === '' ? operations[0] : undefined;
  const found = named ?? nameless;
  return found ? { operationId: found.operationId, queuePosition, estimatedWait, reason } : {};
}

/**
  * Final results of deferred items by position, once all operations have ended. A failed operation does not affect the
  * others.
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
    // A large request is split into several operations, in order.
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

/** All operations of this operation's partition. An object names only the first with its results. */
function siblings(queued: WireQueued | undefined, id: string): string[] {
  const own = queued?.operations.find((one) => one.operationId === id);
  const same = queued?.operations.filter((one) => one.queue === own?.queue && one.partition === own?.partition);
  return same?.map((one) => one.operationId) ?? [id];
}

/** The results of one operation, if available. */
async function poll<R>(http: Http, id: string, { broker, until, signal }: Polled): Promise<R[]> {
  const late = (state: string) => {
    const text = `operation ${id} is still ${state}; it stays accepted; query it later`;
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
  const text = `operation ${operation} is accepted, but its state cannot be queried: ${error.message}`;
  return retold(error, { text, operation, cause: error });
}

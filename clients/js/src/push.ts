/** Pushes: items are created once, with their transaction ids, and retried unchanged. */

import type { Route } from './brokers.js';
import { routeKey } from './brokers.js';
import { checkName, checkNoMore } from './checks.js';
import { badUse, QueenError, retold } from './errors.js';
import type { CallOptions, Http } from './http.js';
import { toJson } from './http.js';
import { uuid } from './ids.js';
import type { Operation } from './operations.js';
import { operationOf, pollOperations, queuedOf, ticketOf } from './operations.js';
import type { WirePushResult, WireQueued } from './wire.js';
import { asArray } from './wire.js';

/** A value for all messages of a push, or a function called for each. */
export type PerMessage<T> = string | undefined | ((payload: T, index: number) => string | undefined);

export interface ItemOptions<T> {
  /** Your id of the message, for deduplication. Within the queue's window, a partition stores it once. Default: a new UUIDv7. */
  transactionId?: PerMessage<T>;
  /** W3C trace context, delivered to the consumer. */
  traceparent?: PerMessage<T>;
  tracestate?: PerMessage<T>;
  /** A UUID of your choice that is stored with the message. */
  traceId?: PerMessage<T>;
}

/** Without a fixed partition, a push may choose one. */
export interface PartitionOption<T> {
  partition?: PerMessage<T>;
}

export interface PushOptions<T> extends ItemOptions<T>, CallOptions {}

export interface PushResult {
  /** Id of the message; for a duplicate, of the first one. */
  readonly id: string;
  readonly transactionId: string;
  /** `buffered`: in the broker's spool until its database is available. */
  readonly status: 'queued' | 'duplicate' | 'buffered' | 'failed';
  readonly queue: string;
  readonly partition: string | undefined;
  readonly partitionId: string;
  /** Why it failed. */
  readonly error: string | undefined;
  /** Set if the broker deferred it. */
  readonly operation: Operation | undefined;
}

/** One message or many. An array means many: push a single array with `pushOne`. */
export type Payload<T> = T extends readonly unknown[] ? readonly T[] : T | readonly T[];

/** The broker's partition for pushes that name none. */
const DEFAULT_PARTITION = 'Default';

/** A serialized message. */
export interface Item {
  readonly queue: string;
  readonly partition: string | undefined;
  readonly payload: unknown;
  readonly transactionId: string;
  readonly json: string;
}

export function items<T>(
  queue: string,
  partition: string | undefined,
  payload: T | readonly T[],
  options: ItemOptions<T> & PartitionOption<T>,
): Item[] {
  checkItem(options);
  const payloads = (Array.isArray(payload) ? payload : [payload]) as readonly T[];
  if (typeof options.transactionId === 'string' && payloads.length > 1) {
    throw badUse('each message needs its own id: pass a function as transactionId');
  }
  return payloads.map((one, index) => make(queue, partition, one, options, index));
}

export function item<T>(
  queue: string,
  partition: string | undefined,
  payload: T,
  options: ItemOptions<T> & PartitionOption<T>,
): Item {
  checkItem(options);
  return make(queue, partition, payload, options, 0);
}

function checkItem(options: ItemOptions<never> & PartitionOption<never>): void {
  const { transactionId, traceparent, tracestate, traceId, partition, ...rest } = options;
  checkNoMore(rest);
}

function make<T>(
  queue: string,
  partition: string | undefined,
  payload: T,
  options: ItemOptions<T> & PartitionOption<T>,
  index: number,
): Item {
  const ask = (option: PerMessage<T>) => (typeof option === 'function' ? option(payload, index) : option);
  const chosen = ask(options.partition);
  if (chosen !== undefined && partition !== undefined) {
    throw badUse(`the partition ${JSON.stringify(partition)} is already set: omit the option`);
  }
  if (chosen !== undefined) {
    partition = checkName('partition', chosen);
  }
  const given = ask(options.transactionId);
  const transactionId = given === undefined ? uuid() : checkName('transactionId', given);
  const head = toJson({
    queue,
    partition,
    transactionId,
    traceparent: ask(options.traceparent),
    tracestate: ask(options.tracestate),
    traceId: ask(options.traceId),
  });
  // Serialized separately, so that an undefined payload is an error and not omitted.
  const json = `${head.slice(0, -1)},"payload":${toJson(payload)}}`;
  return { queue, partition, payload, transactionId, json };
}

export function laneKey({ queue, partition }: { queue: string; partition: string | undefined }): number {
  return routeKey(queue, partition ?? DEFAULT_PARTITION);
}

/** A partition uses one broker. */
export function routeOf(items: readonly Item[]): Route {
  const [first] = items;
  const same = items.every((item) => item.queue === first?.queue && item.partition === first.partition);
  return first && same ? { key: laneKey(first) } : {};
}

export async function push(
  http: Http,
  items: readonly Item[],
  options: CallOptions,
  route = routeOf(items),
): Promise<PushResult[]> {
  http.checkOpen();
  if (items.length === 0) {
    return [];
  }
  const sent = await send(http, items, options, route);
  const results = sent.map(({ result }) => result);
  const failed = sent.find(({ error }) => error);
  if (failed) {
    throw retold(failed.error!, { results });
  }
  return results;
}

/** The outcome of one item. */
export interface Sent {
  readonly result: PushResult;
  /** Why it was not stored, or is not known to be. */
  readonly error: QueenError | undefined;
}

/** One request. Throws errors that affect all items. */
export async function send(
  http: Http,
  items: readonly Item[],
  options: CallOptions,
  route: Route,
): Promise<Sent[]> {
  const until = http.until(options.deadline);
  const { signal } = options;
  const body = `{"items":[${items.map((item) => item.json).join(',')}]}`;
  const answer = await http.call({ method: 'POST', path: '/api/v1/push', body, route, until, signal });
  const { broker, attempts } = answer;
  const queued = queuedOf(answer.body);
  const told = queued ? unfold(items, queued) : asArray<WirePushResult>(answer.body, items.length);
  const results = items.map((item, index) => resultOf(item, told[index]!));
  const operations = answer.status === 202 && http.options.poll ? results.map((result) => result.operation) : [];
  const news = await pollOperations<WirePushResult>(http, operations, queued, { broker, until, signal });
  return results.map((before, index) => {
    const after = news.get(index);
    if (after instanceof QueenError) {
      const failed = after.kind === 'operation_failed';
      return { result: failed ? { ...before, status: 'failed', error: after.message } : before, error: after };
    }
    const result = after ? { ...resultOf(items[index]!, after), operation: before.operation } : before;
    return { result, error: result.status === 'failed' ? refusal(result, attempts) : undefined };
  });
}

function refusal(result: PushResult, attempts: number): QueenError {
  const text = `message ${result.transactionId} was not stored: ${result.error ?? 'no reason given'}`;
  return new QueenError('refused', text, { attempts, results: [result] });
}

function resultOf(item: Item, told: WirePushResult): PushResult {
  return {
    id: told.message_id,
    transactionId: told.transaction_id,
    status: told.status,
    queue: item.queue,
    partition: item.partition,
    partitionId: told.partition_id,
    error: told.error,
    operation: operationOf(told),
  };
}

/** A broker that responds with an object returns no message ids. */
function unfold(items: readonly Item[], queued: WireQueued): WirePushResult[] {
  return items.map(({ queue, partition = DEFAULT_PARTITION, transactionId }, index) => ({
    ...ticketOf(queued, queue, partition),
    index,
    message_id: '',
    transaction_id: transactionId,
    queueName: queue,
    status: 'queued',
    partition_id: '',
    trace_id: null,
  }));
}

/** Pops. */

import type { Route } from './brokers.js';
import { routeKey } from './brokers.js';
import { checkCount, checkNoMore, checkSpan, checkTime } from './checks.js';
import { now } from './clock.js';
import { badUse } from './errors.js';
import type { Answer, CallOptions, Http } from './http.js';
import type { Parse } from './message.js';
import { Message } from './message.js';
import type { WirePopped } from './wire.js';
import { asObject, path, query, time, wholeSeconds } from './wire.js';

/** What to pop from: a queue, one of its partitions, or all queues with these labels. */
export interface Source<T> {
  readonly queue?: string | undefined;
  readonly partition?: string | undefined;
  readonly namespace?: string | undefined;
  readonly task?: string | undefined;
  /** Without a group, consumers share one cursor. */
  readonly group?: string | undefined;
  readonly parse?: Parse<T> | undefined;
}

/** Where a new group starts: at the oldest message, at new messages only, or after a time. */
export type Subscription = 'all' | 'new' | Date;

/** Options of both pops and consumers. Times are milliseconds. */
export interface TakeOptions {
  /** Maximum messages. Default 1. */
  batch?: number | undefined;
  /** Maximum partitions. Default 1. */
  partitions?: number | undefined;
  /** Lease time (rounded up to seconds). Default: the queue's. */
  lease?: number | undefined;
  subscription?: Subscription | undefined;
}

export interface PopOptions extends TakeOptions, CallOptions {
  /** How long to wait for a message. Default: not at all. */
  wait?: number | undefined;
  /** Acknowledge at delivery: no lease, at-most-once. If the response is lost, so are the messages: `outcome_unknown`. */
  autoAck?: boolean | undefined;
}

/** The broker's maximum wait. */
const WAIT_MAX = 600_000;
/** Node's fetch gives up after five minutes without headers. */
export const WAIT_AT_ONCE_MAX = 240_000;
/** Extra time for the response after the wait. */
export const GRACE = 5_000;
/** Time for retries after a wait. */
const PATIENCE = 30_000;
/** For brokers that do not return the lease time. */
const LEASE_ASSUMED = 60_000;

export async function pop<T>(http: Http, source: Source<T>, options: PopOptions): Promise<Message<T>[]> {
  const { batch, partitions, lease, subscription, autoAck, deadline, signal, wait: longest, ...rest } = options;
  checkNoMore(rest);
  checkTake(source, options);
  checkTime('wait', longest);
  if (autoAck && lease !== undefined) {
    throw badUse('with autoAck there is no lease: omit lease or autoAck');
  }
  const wait = Math.min(longest ?? 0, WAIT_MAX);
  const end = now() + wait;
  const until = wait > 0 && deadline === undefined ? end + PATIENCE : http.until(deadline);
  for (;;) {
    const answer = await http.call({
      method: 'GET',
      path: ({ remaining }) => {
        const left = Math.min(end - now(), WAIT_AT_ONCE_MAX, remaining - Math.min(GRACE, remaining / 2));
        return popPath(source, { batch, partitions, lease, subscription, autoAck }, Math.max(0, left));
      },
      route: popRoute(source, 0),
      until,
      timeout: wait > 0 ? Math.min(wait, WAIT_AT_ONCE_MAX) + GRACE : undefined,
      signal,
      // A retry would not return lost messages, but the next ones.
      once: autoAck,
    });
    const messages = received(http, source, { lease }, answer);
    if (messages.length > 0 || wait <= WAIT_AT_ONCE_MAX || now() >= end - GRACE) {
      return messages;
    }
  }
}

export function checkTake(source: Source<unknown>, options: TakeOptions): void {
  checkCount('batch', options.batch);
  checkCount('partitions', options.partitions);
  checkSpan('lease', options.lease);
  const { subscription } = options;
  if (subscription === undefined) {
    return;
  }
  if (source.group === undefined) {
    throw badUse('a subscription needs a consumer group: use .group(name)');
  }
  if (subscription !== 'all' && subscription !== 'new' && !(subscription instanceof Date)) {
    throw badUse("subscription must be 'all', 'new' or a Date");
  }
}

export function popPath(source: Source<unknown>, options: PopOptions, wait: number, waitId?: string): string {
  const { queue, partition, namespace, task, group } = source;
  const { batch, partitions, lease, autoAck, subscription } = options;
  let base = '/api/v1/pop';
  if (queue !== undefined) {
    base = path('/api/v1/pop/queue', queue);
  }
  if (partition !== undefined) {
    base = path(`${base}/partition`, partition);
  }
  const timed = subscription instanceof Date;
  return (
    base +
    query({
      namespace,
      task,
      consumerGroup: group,
      batch: batch ?? 1,
      partitions,
      wait: wait > 0 ? true : undefined,
      timeout: wait > 0 ? Math.ceil(wait) : undefined,
      waitId,
      autoAck: autoAck || undefined,
      leaseSeconds: lease === undefined ? undefined : wholeSeconds(lease),
      subscriptionMode: timed ? undefined : subscription,
      subscriptionFrom: timed ? time(subscription) : undefined,
    })
  );
}

/** A partition uses one broker; consumers of all partitions are spread over the brokers. */
export function popRoute({ queue, partition, namespace, task, group }: Source<unknown>, worker: number): Route {
  if (queue !== undefined && partition !== undefined) {
    return { key: routeKey(queue, partition) };
  }
  return { key: routeKey(queue ?? `${namespace ?? ''}.${task ?? ''}`, group ?? '', worker) };
}

export function received<T>(http: Http, source: Source<T>, options: TakeOptions, answer: Answer): Message<T>[] {
  if (answer.status === 204 || answer.body === undefined) {
    return [];
  }
  const popped = asObject<WirePopped>(answer.body);
  const { leaseSeconds } = popped;
  const lease = leaseSeconds === undefined ? (options.lease ?? LEASE_ASSUMED) : leaseSeconds * 1000;
  const delivery = { broker: answer.broker, lease, parse: source.parse };
  return popped.messages.map((message) => new Message(http, message, delivery));
}

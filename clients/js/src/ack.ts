/** Acknowledges messages as completed, failed, returned or dead-lettered; and renews leases. */

import { checkChoice, checkSpan } from './checks.js';
import { badUse, QueenError, retold } from './errors.js';
import type { Answer, CallOptions, Http } from './http.js';
import { callOptions } from './http.js';
import type { Message } from './message.js';
import type { Operation } from './operations.js';
import { operationOf, pollOperations, queuedOf, ticketOf } from './operations.js';
import type { WireAck, WireAckResult } from './wire.js';
import { asArray, asObject, path, wholeSeconds } from './wire.js';

/**
  * - `completed`: done, together with everything delivered before it
  * - `failed`: redelivered until the queue's retries are exhausted, then a dead letter
  * - `retry`: redelivered, without counting a failure
  * - `dlq`: a dead letter now
 */
export type AckStatus = 'completed' | 'failed' | 'retry' | 'dlq';

export interface AckResult {
  readonly transactionId: string;
  readonly success: boolean;
  /** Why it was refused. */
  readonly error: string | undefined;
  readonly deadLettered: boolean;
  /** Whether this ended the lease on its partition. */
  readonly leaseReleased: boolean;
  /** Whether it was completed before. */
  readonly repeated: boolean;
  /** Set if the broker deferred it. */
  readonly operation: Operation | undefined;
}

export interface AckOptions extends CallOptions {
  status?: AckStatus | undefined;
  /** Why it failed. */
  error?: string | undefined;
}

/** A message and its outcome. */
export interface Settlement {
  readonly message: Message<unknown>;
  readonly status: AckStatus;
  readonly error?: string | undefined;
}

/** The broker's result for an acknowledgement. */
export interface Told {
  readonly result: AckResult;
  /** Why it was not applied, or is not known to be. */
  readonly error: QueenError | undefined;
}

/** A consumer that holds messages whose outcome may also be reported by others. */
export interface Holder {
  /** Sends pending acknowledgements. */
  tellAhead(): Promise<void>;
  /** An outcome was reported to the broker. `ended`: that ended the lease on its partition. */
  settled(message: Message<unknown>, ended: boolean): void;
}

/** One request for all. Refusals are among the results; it throws if the outcome of an accepted item is unknown. */
export async function ackAll(
  http: Http,
  messages: readonly Message<unknown>[],
  options: AckOptions,
): Promise<AckResult[]> {
  const { status = 'completed', error, ...call } = options;
  const told = await settle(http, messages.map((message) => ({ message, status, error })), call);
  const results = told.map(({ result }) => result);
  const open = told.find((one) => one.error && one.result.success);
  if (open) {
    throw retold(open.error!, { results });
  }
  return results;
}

/** For callers other than the holder of the messages. */
export async function settle(
  http: Http,
  settlements: readonly Settlement[],
  options: CallOptions,
): Promise<Told[]> {
  http.checkOpen();
  const call = callOptions(options);
  await tellAhead(settlements);
  return send(http, settlements, call);
}

/** Pending completions of earlier messages must be sent before a nack, which ends the lease. */
export async function tellAhead(settlements: readonly Settlement[]): Promise<void> {
  const nacked = settlements.filter(({ status }) => status === 'failed' || status === 'retry');
  for (const holder of new Set(nacked.map(({ message }) => message.holder))) {
    await holder?.tellAhead();
  }
}

/** One request. */
export async function send(http: Http, settlements: readonly Settlement[], options: CallOptions): Promise<Told[]> {
  const [first] = settlements;
  if (!first) {
    return [];
  }
  const until = http.until(options.deadline);
  const { signal } = options;
  const consumerGroup = first.message.group;
  const acknowledgments = settlements.map(wireAck);
  if (settlements.some(({ message }) => message.group !== consumerGroup)) {
    throw badUse('messages of different consumer groups cannot be acknowledged together');
  }
  const one = acknowledgments.length === 1;
  const body = one ? { ...acknowledgments[0], consumerGroup } : { acknowledgments, consumerGroup };
  const answer = await http.call({
    method: 'POST',
    path: one ? '/api/v1/ack' : '/api/v1/ack/batch',
    body: JSON.stringify(body),
    route: { at: first.message.broker },
    until,
    signal,
  });
  const queued = queuedOf(answer.body);
  const lines: WireAckResult[] = queued
    ? settlements.map(({ message }, index) => {
        const { transactionId, queue, partition } = message;
        return { ...ticketOf(queued, queue, partition), index, transactionId, success: true, error: null, dlq: false };
      })
    : asArray<WireAckResult>(answer.body, settlements.length);
  const results = lines.map(ackResult);
  const operations = answer.status === 202 && http.options.poll ? results.map((result) => result.operation) : [];
  const call = { broker: answer.broker, until, signal };
  const news = await pollOperations<WireAckResult>(http, operations, queued, call);
  const told = settlements.map((settlement, index) => toldOf(settlement, results[index]!, news.get(index), answer));
  told.forEach(({ result }, index) => note(settlements[index]!, result));
  return told;
}

function toldOf(
  settlement: Settlement,
  before: AckResult,
  news: WireAckResult | QueenError | undefined,
  answer: Answer,
): Told {
  if (news instanceof QueenError) {
    const failed = news.kind === 'operation_failed';
    return { result: failed ? { ...before, success: false, error: news.message } : before, error: news };
  }
  const result = news ? { ...ackResult(news), operation: before.operation } : before;
  return { result, error: result.success ? undefined : refusal(settlement, result, answer) };
}

function refusal({ status }: Settlement, result: AckResult, { unsure, attempts }: Answer): QueenError {
  const text = `the broker refused the acknowledgement: ${result.error ?? 'no reason given'}`;
  // The first attempt of a nack ends the lease, which is why a later one is refused.
  return unsure && status !== 'completed'
    ? new QueenError('outcome_unknown', `a response was lost, and then ${text}`, { attempts, results: [result] })
    : new QueenError('refused', text, { attempts, results: [result] });
}

export function wireAck({ message, status, error }: Settlement): WireAck {
  checkChoice('status', status, ['completed', 'failed', 'retry', 'dlq']);
  if (message.leaseId === '') {
    throw badUse('this message was popped with autoAck and is already acknowledged');
  }
  const { id: messageId, transactionId, partitionId, leaseId } = message;
  return { transactionId, messageId, partitionId, leaseId, status, error };
}

/** Keeps a consumer from acknowledging what its handler has acknowledged. */
export function note({ message, status }: Settlement, { success, deadLettered }: AckResult): void {
  if (success) {
    message.holder?.settled(message, (status === 'failed' || status === 'retry') && !deadLettered);
  }
}

/** False if the lease is lost. */
export async function extend(
  http: Http,
  message: Message<unknown>,
  milliseconds: number,
  options: CallOptions & { timeout?: number },
): Promise<{ extended: boolean; expiresAt: Date | undefined; error: string | undefined }> {
  checkSpan('the time to renew for', milliseconds);
  if (message.leaseId === '') {
    throw badUse('this message was popped with autoAck and has no lease');
  }
  const { body } = await http.call({
    method: 'POST',
    path: `${path('/api/v1/lease', message.leaseId)}/extend`,
    body: JSON.stringify({ seconds: wholeSeconds(milliseconds) }),
    route: { at: message.broker },
    until: http.until(options.deadline),
    timeout: options.timeout,
    signal: options.signal,
  });
  const told = asObject<{ success: boolean; expiresAt: string | null; error: string | null }>(body);
  return {
    extended: told.success,
    expiresAt: told.expiresAt ? new Date(told.expiresAt) : undefined,
    error: told.error ?? undefined,
  };
}

function ackResult(told: WireAckResult): AckResult {
  return {
    transactionId: told.transactionId,
    success: told.success,
    error: told.error ?? undefined,
    deadLettered: told.dlq,
    leaseReleased: told.leaseReleased ?? false,
    repeated: told.noop ?? false,
    operation: operationOf(told),
  };
}

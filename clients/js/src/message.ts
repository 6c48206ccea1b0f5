/** A delivered message. */

import type { AckResult, AckStatus, Holder } from './ack.js';
import { extend, settle } from './ack.js';
import { QueenError, textOf } from './errors.js';
import type { CallOptions, Http } from './http.js';
import { callOptions } from './http.js';
import type { TraceOptions } from './traces.js';
import { addTrace } from './traces.js';
import type { WireMessage } from './wire.js';

/** Converts a payload to the application's type, or throws. `schema.parse` of zod fits. */
export type Parse<T> = (payload: unknown) => T;

export class Message<out T> {
  readonly id: string;
  readonly transactionId: string;
  readonly queue: string;
  readonly partition: string;
  readonly partitionId: string;
  /** The consumer group it was delivered to. */
  readonly group: string;
  /** As it was sent, before `parse`. */
  readonly payload: unknown;
  readonly createdAt: Date;
  /** How often it has failed before. 0 for all but the first message of a partition. */
  readonly retryCount: number;
  /** Empty if it was popped with autoAck. */
  readonly leaseId: string;
  /** Duration of the lease in milliseconds, from delivery or renewal. */
  readonly lease: number;
  readonly traceId: string | undefined;
  readonly traceparent: string | undefined;
  readonly tracestate: string | undefined;
  /** The original transaction id of a dead letter that was replayed with a new `transactionId`. */
  readonly originalTransactionId: string | undefined;
  /** The authenticated producer, with access control. */
  readonly producer: string | undefined;
  /** URL of the broker that delivered it. */
  readonly broker: string;
  readonly #http: Http;
  #holder: Holder | undefined;
  readonly #decoded: { data: T } | { error: QueenError };

  /** @internal */
  constructor(http: Http, wire: WireMessage, delivery: { broker: string; lease: number; parse?: Parse<T> | undefined }) {
    this.#http = http;
    this.id = wire.id;
    this.transactionId = wire.transactionId;
    this.originalTransactionId = wire.originalTransactionId;
    this.queue = wire.queue;
    this.partition = wire.partition;
    this.partitionId = wire.partitionId;
    this.group = wire.consumerGroup;
    this.payload = wire.data;
    this.createdAt = new Date(wire.createdAt);
    this.retryCount = wire.retryCount;
    this.leaseId = wire.leaseId;
    this.lease = delivery.lease;
    this.traceId = wire.traceId ?? undefined;
    this.traceparent = wire.traceparent;
    this.tracestate = wire.tracestate;
    this.producer = wire.producerSub ?? undefined;
    this.broker = delivery.broker;
    this.#decoded = decode(wire.data, delivery.parse);
  }

  /** @internal The consumer that is handling it. */
  get holder(): Holder | undefined {
    return this.#holder;
  }

  /** @internal */
  set holder(holder: Holder) {
    this.#holder = holder;
  }

  /** The parsed payload. @throws QueenError of kind `decode` if it cannot be parsed. */
  get data(): T {
    if ('error' in this.#decoded) {
      throw this.#decoded.error;
    }
    return this.#decoded.data;
  }

  /** Marks it as completed, together with everything delivered before it in its partition. */
  ack(options: CallOptions = {}): Promise<AckResult> {
    return this.#settle('completed', undefined, options);
  }

  /** Marks it as failed: it is redelivered until the queue's retries are exhausted, then it becomes a dead letter. */
  nack(error?: unknown, options: CallOptions = {}): Promise<AckResult> {
    return this.#settle('failed', error, options);
  }

  /** Returns it for redelivery, without counting a failure. */
  retry(options: CallOptions = {}): Promise<AckResult> {
    return this.#settle('retry', undefined, options);
  }

  /** Makes it a dead letter now. */
  deadLetter(reason?: unknown, options: CallOptions = {}): Promise<AckResult> {
    return this.#settle('dlq', reason, options);
  }

  /**
    * Extends the lease of everything delivered with it to this many milliseconds from now (rounded up to seconds by the
    * broker). Default: its original duration. Returns when the lease ends.
   */
  async renew(milliseconds = this.lease, options: CallOptions = {}): Promise<Date> {
    const { extended, expiresAt, error } = await extend(this.#http, this, milliseconds, callOptions(options));
    if (!extended || !expiresAt) {
      throw new QueenError('refused', `the lease is lost${error ? `: ${error}` : ''}`);
    }
    return expiresAt;
  }

  /** Attaches a note to it, to be read with `queen.traces`. */
  trace(data: unknown, options: TraceOptions = {}): Promise<string> {
    return addTrace(this.#http, this, data, { group: this.group, ...options });
  }

  async #settle(status: AckStatus, reason: unknown, options: CallOptions): Promise<AckResult> {
    const error = reason === undefined ? undefined : textOf(reason);
    const [told] = await settle(this.#http, [{ message: this, status, error }], options);
    if (told!.error) {
      throw told!.error;
    }
    return told!.result;
  }
}

function decode<T>(payload: unknown, parse: Parse<T> | undefined): { data: T } | { error: QueenError } {
  try {
    return { data: parse ? parse(payload) : (payload as T) };
  } catch (cause) {
    return { error: new QueenError('decode', `cannot decode the payload: ${textOf(cause)}`, { cause }) };
  }
}

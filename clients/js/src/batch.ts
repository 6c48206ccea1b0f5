/** A batch of a consumer: runs handlers, acknowledges what is done, and renews the lease. */

import type { Holder, Settlement } from './ack.js';
import { extend, send } from './ack.js';
import { now, sleep } from './clock.js';
import { QueenError, textOf } from './errors.js';
import type { Http } from './http.js';
import type { Message } from './message.js';

export interface HandlerContext {
  /**
    * Aborted when the work has become useless: the lease is lost, or the consumer has waited long enough for its end.
    * Nothing handled afterwards is acknowledged.
   */
  readonly signal: AbortSignal;
  /** The consumer is stopping: it waits for this handler and starts no other. */
  readonly stopping: boolean;
  /** Number of the worker, from 0. */
  readonly worker: number;
  /** Stops the consumer once this handler is done. (Awaiting `consumer.stop()` in a handler would deadlock.) */
  stop(): void;
}

export type EachHandler<T> = (message: Message<T>, context: HandlerContext) => unknown;
export type BatchHandler<T> = (messages: readonly Message<T>[], context: HandlerContext) => unknown;

/** What an error is about. */
export interface ErrorContext {
  readonly during: 'pop' | 'handle' | 'ack' | 'renew';
  readonly messages: readonly Message<unknown>[];
}

/** What a batch needs from its consumer. */
export interface Work {
  readonly http: Http;
  readonly worker: number;
  readonly autoAck: boolean;
  readonly renew: boolean;
  /** Start no further handlers. */
  readonly stopping: AbortSignal;
  /** Stop waiting for running handlers. */
  readonly givingUp: AbortSignal;
  readonly stop: () => void;
  readonly onError: (error: unknown, context: ErrorContext) => void;
}

export interface Counts {
  handled: number;
  failed: number;
}

/** The messages of one partition. */
interface Lane {
  size: number;
  /** How many, from the first, are acknowledged: acknowledging one includes those before it. */
  settled: number;
}

/** Maximum delay of acknowledgements, so that a crash repeats little. */
const ACK_EVERY = 1_000;
/** If a renewal takes longer, another broker is tried. */
const RENEWAL_PATIENCE = 5_000;
/** Minimum time of a renewal that starts when the lease has nearly ended. */
const RENEWAL_SHORTEST = 100;

const GAVE_UP = Symbol('gave up');

/**
 * # Invariants
  * - Within a partition, nothing is handled after a message that failed.
  * - After `run`, no partition is leased, unless the lease was lost or the handlers acknowledge themselves.
 */
export class Batch<T> implements Holder {
  readonly counts: Counts = { handled: 0, failed: 0 };
  readonly #work: Work;
  readonly #messages: readonly Message<T>[];
  readonly #places = new Map<Message<unknown>, { lane: Lane; index: number }>();
  /** Handled, nacked, or left for redelivery. */
  readonly #touched = new Set<Message<T>>();
  /** To be acknowledged with the next request. */
  #done: Settlement[] = [];
  #telling: Promise<void> = Promise.resolve();
  /** Whether acknowledgements may be sent while a handler runs. */
  #tellsEarly = false;
  readonly #vain = new AbortController();
  #lost = false;
  /** The final acknowledgement is being sent, which ends the lease. */
  #ending = false;

  constructor(work: Work, messages: readonly Message<T>[]) {
    this.#work = work;
    this.#messages = messages;
    const lanes = new Map<string, Lane>();
    for (const message of messages) {
      const lane = lanes.get(message.partitionId) ?? { size: 0, settled: 0 };
      lanes.set(message.partitionId, lane);
      this.#places.set(message, { lane, index: lane.size });
      lane.size += 1;
      message.holder = this;
    }
  }

  each(handler: EachHandler<T>): Promise<void> {
    this.#tellsEarly = true;
    return this.#run(async (context) => {
      for (const message of this.#messages) {
        if (this.#work.stopping.aborted || this.#vain.signal.aborted) {
          return;
        }
        if (!this.#isOpen(message) || !this.#isReadable(message)) {
          continue;
        }
        this.#touched.add(message);
        const outcome = await this.#call(() => handler(message, context), [message]);
        if (outcome === GAVE_UP) {
          this.#touched.delete(message);
          return;
        }
        this.#settle([message], outcome);
      }
    });
  }

  batches(handler: BatchHandler<T>): Promise<void> {
    // Nothing is reported while the handler runs. A message that cannot be decoded may become a dead letter, and that completes
    // everything before it.
    return this.#run(async (context) => {
      if (this.#work.stopping.aborted) {
        return;
      }
      const readable: Message<T>[] = [];
      for (const message of this.#messages) {
        if (this.#isOpen(message) && this.#isReadable(message)) {
          this.#touched.add(message);
          readable.push(message);
        }
      }
      if (readable.length === 0) {
        return;
      }
      const outcome = await this.#call(() => handler(readable, context), readable);
      if (outcome === GAVE_UP) {
        readable.forEach((message) => this.#touched.delete(message));
        return;
      }
      this.#settle(readable, outcome);
    });
  }

  tellAhead(): Promise<void> {
    return this.#tellsEarly ? this.#tell() : Promise.resolve();
  }

  settled(message: Message<unknown>, ended: boolean): void {
    const { lane, index } = this.#places.get(message)!;
    lane.settled = ended ? Infinity : Math.max(lane.settled, index + 1);
  }

  async #run(handle: (context: HandlerContext) => Promise<void>): Promise<void> {
    const { stopping, givingUp, worker, renew, stop } = this.#work;
    const context: HandlerContext = {
      signal: this.#vain.signal,
      worker,
      get stopping() {
        return stopping.aborted;
      },
      stop,
    };
    const giveUp = () => this.#vain.abort(new QueenError('closed', 'the consumer has stopped waiting for this handler'));
    givingUp.addEventListener('abort', giveUp, { once: true });
    const telling = this.#tellsEarly ? setInterval(() => void this.#tell(), ACK_EVERY) : undefined;
    const finished = new AbortController();
    const lease = this.#messages[0]!.lease;
    if (renew && lease > 0) {
      void this.#keep(lease, finished.signal);
    }
    try {
      await handle(context);
      this.#giveBack();
      this.#ending = true;
      await this.#tell();
    } finally {
      finished.abort();
      clearInterval(telling);
      givingUp.removeEventListener('abort', giveUp);
    }
  }

  /** What the handler threw; undefined if it returned. */
  async #call(handler: () => unknown, messages: readonly Message<T>[]): Promise<unknown> {
    const { givingUp, onError } = this.#work;
    let leave = () => {};
    const gaveUp = new Promise<typeof GAVE_UP>((resolve) => {
      leave = () => resolve(GAVE_UP);
      givingUp.addEventListener('abort', leave, { once: true });
    });
    const run = async () => {
      try {
        await handler();
        return undefined;
      } catch (thrown) {
        onError(thrown, { during: 'handle', messages });
        return { thrown };
      }
    };
    try {
      return givingUp.aborted ? GAVE_UP : await Promise.race([run(), gaveUp]);
    } finally {
      givingUp.removeEventListener('abort', leave);
    }
  }

  /** `outcome`: undefined, or what was thrown. An outcome that the handler has reported takes precedence. */
  #settle(messages: readonly Message<T>[], outcome: unknown): void {
    // They are redelivered, and counted then.
    if (this.#lost) {
      return;
    }
    const failure = outcome as { thrown: unknown } | undefined;
    this.counts[failure ? 'failed' : 'handled'] += messages.length;
    const failed = new Set<string>();
    for (const message of messages.filter((one) => !this.#isSettled(one))) {
      if (failure) {
        this.#done.push({ message, status: 'failed', error: textOf(failure.thrown) });
        failed.add(message.partitionId);
      } else if (this.#work.autoAck) {
        this.#done.push({ message, status: 'completed' });
      }
    }
    if (failed.size > 0) {
      this.#giveBack((partitionId) => failed.has(partitionId));
    }
  }

  /** False for a payload that cannot be decoded; its message is nacked with the reason. */
  #isReadable(message: Message<T>): boolean {
    try {
      void message.data;
      return true;
    } catch (error) {
      this.#work.onError(error, { during: 'handle', messages: [message] });
      this.#touched.add(message);
      this.counts.failed += 1;
      this.#done.push({ message, status: 'failed', error: textOf(error) });
      this.#giveBack((partitionId) => partitionId === message.partitionId);
      return false;
    }
  }

  #isSettled(message: Message<T>): boolean {
    const { lane, index } = this.#places.get(message)!;
    return index < lane.settled;
  }

  /** Messages left to handle or to give back. */
  #isOpen(message: Message<T>): boolean {
    return !this.#touched.has(message) && !this.#isSettled(message);
  }

  /**
    * Returns unfinished messages of these partitions: `retry` on the first one of each ends the lease there, without counting a
    * failure. Needed behind a failure too, because if that became a dead letter the lease has not ended.
   */
  #giveBack(where: (partitionId: string) => boolean = () => true): void {
    const seen = new Set<string>();
    for (const message of this.#messages) {
      if (!this.#isOpen(message) || !where(message.partitionId)) {
        continue;
      }
      this.#touched.add(message);
      if (!seen.has(message.partitionId)) {
        seen.add(message.partitionId);
        this.#done.push({ message, status: 'retry' });
      }
    }
  }

  /**
    * A failure that exhausts its retries becomes a dead letter, which completes everything before it. If the handler has not
    * acknowledged some of that yet, the failed message is returned instead.
   */
  #withoutHarm(done: readonly Settlement[]): readonly Settlement[] {
    if (this.#work.autoAck) {
      return done;
    }
    const failing = new Set(done.filter(({ status }) => status === 'failed').map(({ message }) => message));
    const isHeld = (one: Message<T>) => this.#touched.has(one) && !this.#isSettled(one) && !failing.has(one);
    return done.map((settlement) => {
      const { lane, index } = this.#places.get(settlement.message)!;
      const isBefore = (one: Message<T>) => {
        const place = this.#places.get(one)!;
        return place.lane === lane && place.index < index;
      };
      const held = failing.has(settlement.message) && this.#messages.some((one) => isBefore(one) && isHeld(one));
      return held ? { message: settlement.message, status: 'retry' } : settlement;
    });
  }

  /** Requests are sequential. */
  #tell(): Promise<void> {
    this.#telling = this.#telling.then(async () => {
      const done = this.#withoutHarm(this.#done);
      this.#done = [];
      if (done.length === 0 || this.#lost) {
        return;
      }
      try {
        const told = await send(this.#work.http, done, {});
        told.forEach(({ result, error }, index) => {
          const { message, status } = done[index]!;
          // A message that is no longer held need not be given back.
          if (error && status !== 'retry') {
            this.#work.onError(error, { during: 'ack', messages: [message] });
          }
          // Another consumer has its partition, so continuing there would be useless.
          if (status === 'completed' && !result.success && !result.operation) {
            this.settled(message, true);
          }
        });
      } catch (error) {
        this.#work.onError(error, { during: 'ack', messages: done.map(({ message }) => message) });
      }
    });
    return this.#telling;
  }

  /** Renews the lease when a third of it has passed, until the batch is finished or acknowledged, or the lease is lost. */
  async #keep(lease: number, finished: AbortSignal): Promise<void> {
    const { http, onError } = this.#work;
    let began = now();
    let ends = began + lease;
    for (;;) {
      await sleep(Math.max(0, began + lease / 3 - now()), finished).catch(() => {});
      const open = this.#messages.find((message) => !this.#isSettled(message));
      if (finished.aborted || !open) {
        return;
      }
      began = now();
      const deadline = Math.max(RENEWAL_SHORTEST, Math.min(lease / 3, ends - began));
      const timeout = Math.max(RENEWAL_PATIENCE, lease / 6);
      try {
        const { extended } = await extend(http, open, lease, { deadline, timeout });
        if (extended) {
          ends = began + lease;
        } else if (!this.#ending && !this.#isSettled(open)) {
          return this.#lose('the lease is lost: these messages are redelivered');
        }
      } catch (error) {
        if (finished.aborted) {
          return;
        }
        onError(error, { during: 'renew', messages: this.#messages });
        if (!this.#ending && now() >= ends) {
          return this.#lose('the lease expired because it could not be renewed: these messages are redelivered');
        }
      }
    }
  }

  #lose(text: string): void {
    this.#lost = true;
    const error = new QueenError('refused', text);
    this.#work.onError(error, { during: 'renew', messages: this.#messages });
    this.#vain.abort(error);
  }
}

/** One delivery in the hands of a consumer: handlers run, what is done is acknowledged, the lease is kept. */

import type { Holder, Settlement } from './ack.js';
import { extend, send } from './ack.js';
import { now, sleep } from './clock.js';
import { QueenError, textOf } from './errors.js';
import type { Http } from './http.js';
import type { Message } from './message.js';

export interface HandlerContext {
  /**
   * Aborted when the work is in vain: the lease is gone, or the consumer has waited long enough for its end.
   * Nothing that is handled afterwards is acknowledged.
   */
  readonly signal: AbortSignal;
  /** The consumer was told to stop: it waits for this handler and begins no other. */
  readonly stopping: boolean;
  /** Number of the worker, from 0. */
  readonly worker: number;
  /** Stops the consumer, once this handler is done. (To await `consumer.stop()` in a handler is to wait for oneself.) */
  stop(): void;
}

export type EachHandler<T> = (message: Message<T>, context: HandlerContext) => unknown;
export type BatchHandler<T> = (messages: readonly Message<T>[], context: HandlerContext) => unknown;

/** What an error is about. */
export interface ErrorContext {
  readonly during: 'pop' | 'handle' | 'ack' | 'renew';
  readonly messages: readonly Message<unknown>[];
}

/** What a batch needs to know of its consumer. */
export interface Work {
  readonly http: Http;
  readonly worker: number;
  readonly autoAck: boolean;
  readonly renew: boolean;
  /** No further handlers. */
  readonly stopping: AbortSignal;
  /** No further waiting for those that run. */
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
  /** So many of them, from the first, are settled: what the broker is told of one counts for all before it. */
  settled: number;
}

/** What is done waits no longer for its acknowledgement, so that a crash repeats little. */
const ACK_EVERY = 1_000;
/** A renewal that is answered later is a reason to leave the broker. */
const RENEWAL_PATIENCE = 5_000;
/** For a renewal that begins when the lease is nearly over. */
const RENEWAL_SHORTEST = 100;

const GAVE_UP = Symbol('gave up');

/**
 * # Invariants
 * - Within a partition nothing is handled behind a message that failed.
 * - After `run`, no partition is leased any more, unless the lease is gone or the handlers settle for themselves.
 */
export class Batch<T> implements Holder {
  readonly counts: Counts = { handled: 0, failed: 0 };
  readonly #work: Work;
  readonly #messages: readonly Message<T>[];
  readonly #places = new Map<Message<unknown>, { lane: Lane; index: number }>();
  /** Handed out, or nacked, or left to come again. */
  readonly #touched = new Set<Message<T>>();
  /** To be told to the broker with the next request. */
  #done: Settlement[] = [];
  #telling: Promise<void> = Promise.resolve();
  /** Something may be told while a handler runs. */
  #tellsEarly = false;
  readonly #vain = new AbortController();
  #lost = false;
  /** The last acknowledgement is on its way, which ends the lease. */
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
    // Nothing is told while the handler runs. A message that cannot be read may become a dead letter, and the broker takes
    // everything before that for done.
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
    const giveUp = () => this.#vain.abort(new QueenError('closed', 'the consumer waits no longer for this handler'));
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

  /** What the handler threw, undefined if it returned. */
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

  /** `outcome`: undefined, or what was thrown. What the handler has settled itself is not spoken over. */
  #settle(messages: readonly Message<T>[], outcome: unknown): void {
    // They come again, and count then.
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

  /** False for a payload that cannot be read; it is nacked with the reason. */
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

  /** To be handled, or given back. */
  #isOpen(message: Message<T>): boolean {
    return !this.#touched.has(message) && !this.#isSettled(message);
  }

  /**
   * What is open in these partitions comes again: `retry` on the first message of each ends the lease there, at no cost.
   * Behind a failure it counts if that became a dead letter, which does not end the lease.
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
   * A failure whose retries are spent becomes a dead letter, and the broker takes everything before that for done. If the handler
   * has yet to acknowledge some of it, the failure is given back instead.
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

  /** Requests go one after the other. */
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
          // What is not ours any more need not be given back.
          if (error && status !== 'retry') {
            this.#work.onError(error, { during: 'ack', messages: [message] });
          }
          // Others have its partition by now: to go on there would be in vain.
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

  /** Extends the lease when a third of it has passed, until the batch is finished, or settled, or the lease is lost. */
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
          return this.#lose('the lease is gone: these messages come again');
        }
      } catch (error) {
        if (finished.aborted) {
          return;
        }
        onError(error, { during: 'renew', messages: this.#messages });
        if (!this.#ending && now() >= ends) {
          return this.#lose('the lease has run out, for it could not be renewed: these messages come again');
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

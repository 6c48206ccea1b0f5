/** Consumers: workers that pop and pass batches to handlers, and stop without leaving anything leased. */

import type { BatchHandler, EachHandler, ErrorContext } from './batch.js';
import { Batch } from './batch.js';
import { checkCount, checkFunction, checkNoMore, checkSpan, checkTime } from './checks.js';
import { after, now, sleep } from './clock.js';
import { badUse } from './errors.js';
import type { QueenError } from './errors.js';
import type { Http } from './http.js';
import { uuid } from './ids.js';
import { ConsumerLog } from './log.js';
import type { Message } from './message.js';
import type { Source, TakeOptions } from './pop.js';
import { checkTake, GRACE, popPath, popRoute, received, WAIT_AT_ONCE_MAX } from './pop.js';
import { backoff } from './retry.js';
import { tell } from './tell.js';
import { asObject, path } from './wire.js';

/** All times are milliseconds. */
export interface ConsumeOptions extends TakeOptions {
  /** Workers, each with one batch at a time. Default 1. */
  concurrency?: number | undefined;
  /** Stop after this many messages. */
  limit?: number | undefined;
  /** Stop after this long without a message; with an error, if no broker is reachable by then. */
  idleTimeout?: number | undefined;
  /** How long a pop waits for a message. Default 30 s. */
  wait?: number | undefined;
  /** Acknowledge a message when its handler returns; otherwise the handler does it. Failures are nacked in any case. Default true. */
  autoAck?: boolean | undefined;
  /** Renew the lease while handlers run. Default true. */
  renew?: boolean | undefined;
  /** How long `stop` waits for running handlers. Default 30 s. */
  stopTimeout?: number | undefined;
  /** Stops the consumer. */
  signal?: AbortSignal | undefined;
  /** Called for all errors that do not end the consumer. By default, they go to the client's `logger`. */
  onError?: ((error: unknown, context: ErrorContext) => void) | undefined;
}

export interface ConsumeSummary {
  /** Messages whose handler returned. */
  readonly handled: number;
  /** Messages whose handler threw, or that could not be decoded. */
  readonly failed: number;
  readonly batches: number;
}

/** Sets the handler and starts the consumer. */
export class Consume<T> {
  readonly #http: Http;
  readonly #source: Source<T>;
  readonly #options: ConsumeOptions;

  /** @internal */
  constructor(http: Http, source: Source<T>, options: ConsumeOptions) {
    if (typeof options !== 'object' || options === null) {
      throw badUse('consume(options, handler): the options come first');
    }
    this.#http = http;
    this.#source = source;
    this.#options = options;
  }

  /** Handles messages one at a time, in order. By default, one is popped at a time. */
  each(handler: EachHandler<T>): Consumer {
    checkFunction('the handler', handler);
    const options = { ...this.#options, batch: this.#options.batch ?? 1 };
    return new Consumer(this.#http, this.#source as Source<unknown>, options, (batch) =>
      batch.each(handler as EachHandler<unknown>),
    );
  }

  /** Handles whole batches, which succeed or fail together. By default, up to 100 messages. */
  batches(handler: BatchHandler<T>): Consumer {
    checkFunction('the handler', handler);
    const options = { ...this.#options, batch: this.#options.batch ?? 100 };
    return new Consumer(this.#http, this.#source as Source<unknown>, options, (batch) =>
      batch.batches(handler as BatchHandler<unknown>),
    );
  }
}

/** A pop in progress. */
interface Pop {
  readonly dropped: AbortController;
  /** Set while an attempt is in progress. */
  wait: { readonly id: string; readonly broker: string } | undefined;
  /** Drops it, once it was asked to end or is no longer needed. */
  patience: ReturnType<typeof setTimeout> | undefined;
  /** Set if the idle time has passed without a response from any broker. */
  failure: QueenError | undefined;
}

/** A broker responds at once when a pop's wait is ended. If not, the connection is dropped. */
const END_PATIENCE = 5_000;
/** When to repeat the request if the broker does not know the wait yet. */
const END_AGAIN = 50;
/** Pause after pops that return early without messages, as during maintenance. */
const EMPTY_RULES = { retryDelay: 100, maxRetryDelay: 1_000, retryOn429: true, honorRetryAfter: true };

export class Consumer implements AsyncDisposable {
  /** Settles when the consumer has ended; rejects if it could not continue. */
  readonly done: Promise<ConsumeSummary>;
  readonly #http: Http;
  readonly #source: Source<unknown>;
  readonly #options: ConsumeOptions & { batch: number };
  readonly #handle: (batch: Batch<unknown>) => Promise<void>;
  readonly #counts = { handled: 0, failed: 0, batches: 0 };
  readonly #allowance: Allowance;
  readonly #stopping = new AbortController();
  readonly #givingUp = new AbortController();
  readonly #pops = new Set<Pop>();
  #patience: ReturnType<typeof setTimeout> | undefined;
  readonly #log: ConsumerLog;
  #working = 0;
  #lastMessage = now();
  #fatal: { readonly error: unknown } | undefined;

  /** @internal */
  constructor(
    http: Http,
    source: Source<unknown>,
    options: ConsumeOptions & { batch: number },
    handle: (batch: Batch<unknown>) => Promise<void>,
  ) {
    http.checkStart();
    check(source, options);
    this.#http = http;
    this.#source = source;
    this.#options = options;
    this.#handle = handle;
    this.#log = new ConsumerLog(http.options.logger, source);
    this.#allowance = new Allowance(options.limit ?? Infinity);
    http.running.consumers.add(this);
    this.done = this.#run();
  }

  /**
    * Starts nothing new, waits for running handlers, and gives back unhandled messages. Afterwards nothing is leased, unless
    * handlers acknowledge themselves. To stop a consumer from its handler, call `context.stop()`.
   */
  stop(): Promise<ConsumeSummary> {
    this.#beginStop();
    return this.done;
  }

  /** Same as `stop`. */
  close(): Promise<ConsumeSummary> {
    return this.stop();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  async #run(): Promise<ConsumeSummary> {
    const { signal, concurrency = 1 } = this.#options;
    const stop = () => this.#beginStop();
    signal?.addEventListener('abort', stop, { once: true });
    if (signal?.aborted) {
      stop();
    }
    const workers = Array.from({ length: concurrency }, (_, worker) => this.#work(worker));
    const guarded = workers.map((worker) => {
      return worker.catch((error: unknown) => {
        this.#fatal ??= { error };
        stop();
      });
    });
    await Promise.all(guarded);
    clearTimeout(this.#patience);
    signal?.removeEventListener('abort', stop);
    this.#http.running.consumers.delete(this);
    if (this.#fatal) {
      throw this.#fatal.error;
    }
    return { ...this.#counts };
  }

  #beginStop(): void {
    if (this.#stopping.signal.aborted) {
      return;
    }
    this.#stopping.abort();
    this.#patience = after(this.#options.stopTimeout ?? 30_000, () => this.#givingUp.abort());
    for (const pop of this.#pops) {
      void this.#endPop(pop);
    }
  }

  async #work(worker: number): Promise<void> {
    let empties = 0;
    for (;;) {
      const size = await this.#allowance.take(this.#options.batch);
      const wait = this.#waitTime();
      if (size === 0 || wait === undefined || this.#stopping.signal.aborted) {
        this.#allowance.giveBack(size);
        return wait === undefined ? this.#beginStop() : undefined;
      }
      let used = 0;
      const began = now();
      try {
        const messages = await this.#pop(worker, size, wait);
        empties = messages.length > 0 ? 0 : empties + 1;
        used = await this.#handleBatch(worker, messages);
      } finally {
        this.#allowance.giveBack(Math.max(0, size - used));
      }
      if (empties > 0 && now() - began < wait / 2) {
        await sleep(backoff(empties, EMPTY_RULES, 1), this.#stopping.signal).catch(() => {});
      }
    }
  }

  /** Undefined once it was idle for too long. */
  #waitTime(): number | undefined {
    const left = this.#idleLeft();
    return left > 0 ? Math.min(this.#options.wait ?? 30_000, left, WAIT_AT_ONCE_MAX) : undefined;
  }

  #idleLeft(): number {
    const { idleTimeout = Infinity } = this.#options;
    return this.#working > 0 ? idleTimeout : this.#lastMessage + idleTimeout - now();
  }

  async #pop(worker: number, batch: number, wait: number): Promise<Message<unknown>[]> {
    const { partitions, lease, subscription } = this.#options;
    const pop: Pop = { dropped: new AbortController(), wait: undefined, patience: undefined, failure: undefined };
    this.#pops.add(pop);
    try {
      const answer = await this.#http.call({
        method: 'GET',
        path: ({ broker }) => {
          pop.wait = { id: uuid(), broker };
          return popPath(this.#source, { batch, partitions, lease, subscription }, wait, pop.wait.id);
        },
        route: popRoute(this.#source, worker),
        until: Infinity,
        timeout: wait + GRACE,
        patient: true,
        signal: pop.dropped.signal,
        onRetry: (error) => {
          pop.wait = undefined;
          this.#told(error, { during: 'pop', messages: [] });
          this.#dropIfOver(pop, error);
        },
      });
      this.#log.popWorked();
      return received(this.#http, this.#source, { lease }, answer);
    } catch (error) {
      if (pop.failure) {
        throw pop.failure;
      }
      if (pop.dropped.signal.aborted) {
        return [];
      }
      throw error;
    } finally {
      this.#pops.delete(pop);
      clearTimeout(pop.patience);
    }
  }

  /** A failing pop is retried forever, except when the consumer stops or was idle for too long. */
  #dropIfOver(pop: Pop, error: QueenError): void {
    if (this.#stopping.signal.aborted) {
      return pop.dropped.abort();
    }
    clearTimeout(pop.patience);
    // Timers may fire slightly early.
    pop.patience = after(Math.max(0, this.#idleLeft()) + 1, () => {
      // A request in progress is checked when it fails, too.
      if (!pop.wait && this.#idleLeft() <= 0) {
        pop.failure = error;
        pop.dropped.abort();
      }
    });
  }

  /** The response is awaited, because it may contain messages that were just leased. */
  async #endPop(pop: Pop): Promise<void> {
    const { wait, dropped } = pop;
    if (!wait) {
      return dropped.abort();
    }
    clearTimeout(pop.patience);
    pop.patience = after(END_PATIENCE, () => dropped.abort());
    const until = now() + END_PATIENCE;
    const where = path('/api/v1/pop/waits', wait.id);
    try {
      for (let ended = false; !ended && this.#pops.has(pop); ) {
        const route = { at: wait.broker };
        const { body } = await this.#http.call({ method: 'DELETE', path: where, route, until, signal: dropped.signal });
        ended = asObject<{ ended: boolean }>(body).ended;
        await sleep(ended ? 0 : END_AGAIN, dropped.signal);
      }
    } catch {
      // The broker cannot end waits, or is unreachable: give up after a while.
    }
  }

  /** Number of messages passed to handlers. */
  async #handleBatch(worker: number, messages: readonly Message<unknown>[]): Promise<number> {
    if (messages.length === 0) {
      return 0;
    }
    const { autoAck = true, renew = true } = this.#options;
    const work = {
      http: this.#http,
      worker,
      autoAck,
      renew,
      stopping: this.#stopping.signal,
      givingUp: this.#givingUp.signal,
      stop: () => this.#beginStop(),
      onError: (error: unknown, context: ErrorContext) => this.#told(error, context),
    };
    const batch = new Batch(work, messages);
    this.#working += 1;
    try {
      await this.#handle(batch);
    } finally {
      this.#working -= 1;
      this.#lastMessage = now();
    }
    const used = batch.counts.handled + batch.counts.failed;
    this.#counts.handled += batch.counts.handled;
    this.#counts.failed += batch.counts.failed;
    this.#counts.batches += used > 0 ? 1 : 0;
    return used;
  }

  #told(error: unknown, context: ErrorContext): void {
    const { onError } = this.#options;
    return onError ? tell(onError, error, context) : this.#log.failed(error, context);
  }
}

/**
  * Reserves how many messages may still be popped, so that all workers together stay within the limit.
 *
 * # Invariants
  * - What is reserved and not returned never exceeds the limit.
 */
class Allowance {
  #left: number;
  #holders = 0;
  #waiting: (() => void)[] = [];

  constructor(limit: number) {
    this.#left = limit;
  }

  /** 0 if the limit is reached. Waits while other workers may return some. */
  async take(most: number): Promise<number> {
    while (this.#left === 0 && this.#holders > 0) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
    const size = Math.min(most, this.#left);
    this.#left -= size;
    this.#holders += 1;
    return size;
  }

  giveBack(unused: number): void {
    this.#left += unused;
    this.#holders -= 1;
    this.#waiting.splice(0).forEach((wake) => wake());
  }
}

function check(source: Source<unknown>, options: ConsumeOptions): void {
  const { batch, partitions, lease, subscription, concurrency, limit, idleTimeout, wait, stopTimeout, ...more } = options;
  const { autoAck, renew, signal, onError, ...rest } = more;
  checkNoMore(rest);
  checkTake(source, options);
  checkCount('concurrency', concurrency);
  checkCount('limit', limit);
  checkSpan('idleTimeout', idleTimeout);
  checkSpan('wait', wait);
  checkTime('stopTimeout', stopTimeout);
}

/** Requests with retries, over one or several brokers. Knows no queues. */

import type { Failure, Received } from './attempt.js';
import { attempt } from './attempt.js';
import { Brokers } from './brokers.js';
import type { Route } from './brokers.js';
import { checkNoMore, checkSpan } from './checks.js';
import { now, sleep } from './clock.js';
import { badUse, QueenError, retold } from './errors.js';
import { isUnanswered, Outages } from './log.js';
import type { Options } from './options.js';
import { isRetryable, retryDelay } from './retry.js';

export interface Call {
  readonly method: 'GET' | 'POST' | 'DELETE';
  /** A function is called for each attempt, because a repeated pop has less time to wait. */
  readonly path: string | ((attempt: Attempt) => string);
  /** JSON, serialized once: retries send the same bytes. */
  readonly body?: string | undefined;
  readonly route: Route;
  /** When to give up, in terms of `now()`. */
  readonly until: number;
  /** Time limit of an attempt, if not the default. */
  readonly timeout?: number | undefined;
  readonly signal?: AbortSignal | undefined;
  /** Executing it twice would do harm, so it is not retried after an attempt that may have been executed. */
  readonly once?: boolean | undefined;
  /** A 429 is retried regardless of the options. */
  readonly patient?: boolean | undefined;
  /** Called for every failure except the last. */
  readonly onRetry?: ((error: QueenError) => void) | undefined;
}

export interface Attempt {
  readonly broker: string;
  /** Milliseconds until the call gives up. */
  readonly remaining: number;
}

export interface Answer extends Received {
  readonly broker: string;
  readonly attempts: number;
  /** An earlier attempt may have been executed too. */
  readonly unsure: boolean;
}

/** Options of every call. */
export interface CallOptions {
  /** Time limit of this call in milliseconds, including retries, instead of the client's. */
  deadline?: number | undefined;
  /** Aborts the call, which then throws the signal's reason. A request that was sent may still be executed. */
  signal?: AbortSignal | undefined;
}

/** The options of a call that takes no others. */
export function callOptions({ deadline, signal, ...rest }: CallOptions): CallOptions {
  checkNoMore(rest);
  return { deadline, signal };
}

interface Closable {
  close(): Promise<unknown>;
}

export class Http {
  readonly options: Options;
  /** Background work that closes with the client. */
  readonly running = { consumers: new Set<Closable>(), buffers: new Set<Closable>() };
  readonly #brokers: Brokers;
  readonly #outages: Outages;
  /** Aborts each call in progress. */
  readonly #ends = new Set<(error: QueenError) => void>();
  #state: 'open' | 'closing' | 'closed' = 'open';

  constructor(options: Options) {
    this.options = options;
    this.#brokers = new Brokers(options.urls);
    this.#outages = new Outages(options.logger);
  }

  /** @throws if the client is closed. */
  checkOpen(): void {
    if (this.#state === 'closed') {
      throw closed();
    }
  }

  /** @throws also while the client is closing: what starts now would never be closed. */
  checkStart(): void {
    this.checkOpen();
    if (this.#state === 'closing') {
      throw new QueenError('closed', 'this client is being closed');
    }
  }

  beginClose(): void {
    this.#state = 'closing';
  }

  /** Fails calls in progress, so that no connection stays open. */
  close(): void {
    this.#state = 'closed';
    this.#ends.forEach((end) => end(closed()));
  }

  /** The deadline of a call that starts now. */
  until(deadline: number | undefined): number {
    checkSpan('deadline', deadline);
    return now() + (deadline ?? this.options.deadline);
  }

  async call(call: Call): Promise<Answer> {
    this.checkOpen();
    const ended = new AbortController();
    const end = (error: QueenError) => ended.abort(error);
    const abort = () => ended.abort(call.signal?.reason);
    this.#ends.add(end);
    call.signal?.addEventListener('abort', abort, { once: true });
    if (call.signal?.aborted) {
      abort();
    }
    try {
      return await this.#attempts({ ...call, signal: ended.signal });
    } finally {
      this.#ends.delete(end);
      call.signal?.removeEventListener('abort', abort);
    }
  }

  async #attempts(call: Call & { signal: AbortSignal }): Promise<Answer> {
    const rules = call.patient ? { ...this.options, retryOn429: true } : this.options;
    let unsure = false;
    let before: QueenError | undefined;
    let pauses = 0;
    // Brokers tried since the last pause.
    let hops = 0;
    for (let attempts = 1; ; attempts++) {
      call.signal.throwIfAborted();
      const broker = this.#brokers.choose(call.route, now());
      const outcome = await attempt(call, broker, this.options);
      this.#watch(broker, outcome);
      if (!('error' in outcome)) {
        this.#brokers.up(broker);
        return { ...outcome, broker, attempts, unsure };
      }
      const { error: failed, down, cut } = outcome;
      if (down) {
        this.#brokers.down(broker, now());
      } else if (failed.status !== undefined) {
        this.#brokers.up(broker);
      }
      // A 503 almost always means that nothing was executed, and starting brokers send it often.
      if (call.once && failed.unsure && failed.kind !== 'unavailable') {
        const text = `it may have been executed, and is therefore not retried: ${failed.message}`;
        throw retold(failed, { kind: 'outcome_unknown', text, attempts });
      }
      const hidden = unsure && !failed.unsure && call.method !== 'GET';
      unsure ||= failed.unsure;
      // The previous error is more useful than a timeout.
      const error: QueenError = retold(cut && before ? before : failed, { attempts, unsure });
      const text = `${error.message}; an earlier attempt may have been executed`;
      const last = hidden ? retold(error, { text }) : error;
      if (!isRetryable(error, rules)) {
        throw last;
      }
      // Another broker is tried at once. If all fail, the problem is not limited to one of them.
      const hop = down && hops + 1 < this.#brokers.count && this.#brokers.anyHealthy(now());
      hops = hop ? hops + 1 : 0;
      pauses += hop ? 0 : 1;
      const delay = hop ? 0 : retryDelay(error, pauses, rules, Math.random());
      if (now() + delay >= call.until) {
        throw last;
      }
      before = error;
      call.onRetry?.(error);
      await sleep(delay, call.signal);
    }
  }

  /** Tracks outages. A caller's short deadline says nothing about the broker. */
  #watch(broker: string, outcome: Received | Failure): void {
    const failure = 'error' in outcome ? outcome : undefined;
    const silent = failure !== undefined && isUnanswered(failure.error);
    if (silent && !failure.down && !failure.cut) {
      return this.#outages.silent('token function', failure.error);
    }
    this.#outages.answered('token function');
    if (!silent) {
      this.#outages.answered(`broker ${broker}`);
    } else if (failure.down) {
      this.#outages.silent(`broker ${broker}`, failure.error);
    }
  }

  /**
   * For responses that are an object or a list, and fail as a whole. `options` are those of the
   * caller; others are rejected.
   */
  async ask<T>(
    method: Call['method'],
    path: string,
    options: CallOptions = {},
    more: Pick<Call, 'once'> & { body?: unknown } = {},
  ): Promise<T> {
    const { deadline, signal } = callOptions(options);
    const body = more.body === undefined ? undefined : toJson(more.body);
    const until = this.until(deadline);
    const { once } = more;
    const { body: answer, ...rest } = await this.call({ method, path, body, route: {}, until, signal, once });
    const failure = answer as { success?: unknown; error?: unknown } | null | undefined;
    if (failure?.success === false && failure.error) {
      throw new QueenError('refused', `${method} ${path}: ${String(failure.error)}`, rest);
    }
    return answer as T;
  }
}

function closed(): QueenError {
  return new QueenError('closed', 'this client is closed');
}

export function toJson(value: unknown): string {
  let text: string | undefined;
  try {
    text = JSON.stringify(value);
  } catch (cause) {
    throw badUse('cannot serialize the value as JSON', cause);
  }
  if (text === undefined) {
    throw badUse(`${typeof value} cannot be serialized as JSON`);
  }
  return text;
}

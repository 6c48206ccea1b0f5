/** Dead letters, the messages that consumer groups gave up on: list, redrive and purge. */

import { checkCount, checkName, checkNoMore } from './checks.js';
import { now, sleep } from './clock.js';
import { QueenError } from './errors.js';
import type { CallOptions, Http } from './http.js';
import type { Parse } from './message.js';
import type { Source } from './pop.js';
import type { MessageKey, Page } from './traces.js';
import { path, query, time } from './wire.js';

/** Filter. Omitted fields match everything. */
export interface DeadLetterFilter {
  /** Failed at this time or later. */
  from?: Date | undefined;
  /** Failed at this time or earlier. */
  to?: Date | undefined;
  /** Part of the error, case-insensitive. */
  error?: string | undefined;
}

export interface DeadLetter<T> extends MessageKey {
  readonly id: string;
  readonly queue: string;
  readonly partition: string;
  readonly group: string;
  readonly error: string | undefined;
  readonly retryCount: number;
  /** The parsed payload. @throws QueenError of kind `decode` if it cannot be parsed, which may be why it failed. */
  readonly data: T;
  readonly payload: unknown;
  readonly createdAt: Date;
  readonly failedAt: Date;
}

export interface RedriveOptions extends DeadLetterFilter, CallOptions {
  /** Target queue; partition names are kept. Default: the original queue. */
  targetQueue?: string | undefined;
  /** Messages per second. Default 100. */
  perSecond?: number | undefined;
}

interface WireDeadLetter extends MessageKey {
  id: string;
  queue: string;
  partition: string;
  consumerGroup: string;
  errorMessage: string | null;
  retryCount: number;
  data: unknown;
  createdAt: string;
  failedAt: string;
}

/** Progress of a redrive. */
export interface RedriveProgress {
  readonly id: string;
  readonly queue: string;
  readonly targetQueue: string | null;
  readonly status: 'running' | 'completed' | 'cancelled';
  /** Dead letters that matched when it started. */
  readonly total: number;
  /** Pushed again. */
  readonly done: number;
  /** Left as dead letters because they cannot be pushed. */
  readonly failed: number;
  /** Dead letters per second. */
  readonly rate: number;
  readonly perSecond: number;
  readonly lastError: string | null;
  readonly createdAt: string;
  readonly startedAt: string | null;
  readonly finishedAt: string | null;
}

export class DeadLetters<T> {
  readonly #http: Http;
  readonly #source: Source<T> & { queue: string };

  /** @internal */
  constructor(http: Http, source: Source<T> & { queue: string }) {
    this.#http = http;
    this.#source = source;
  }

  /** A page, newest failure first. `total` counts all that match. */
  async list(
    options: DeadLetterFilter & Page & CallOptions = {},
  ): Promise<{ messages: DeadLetter<T>[]; total: number }> {
    const { from, to, error, limit, offset, ...call } = options;
    const where = `/api/v1/dlq${query({ ...this.#filter({ from, to, error }), limit, offset })}`;
    const told = await this.#http.ask<{ messages: WireDeadLetter[]; total: number }>('GET', where, call);
    return { messages: told.messages.map((letter) => read(letter, this.#source.parse)), total: told.total };
  }

  /** How many dead letters a redrive with these options would push. */
  async count(options: RedriveOptions = {}): Promise<number> {
    const { total } = await this.#start<{ total: number }>(options, true);
    return total;
  }

  /**
    * Pushes them again in order, with new transaction ids. A broker does this in the background; redrives are also listed by
    * `queen.admin.redrives`.
   */
  async redrive(options: RedriveOptions = {}): Promise<Redrive> {
    return new Redrive(this.#http, await this.#start<RedriveProgress>(options, false));
  }

  /** Deletes them permanently. Returns their number. */
  async purge(options: DeadLetterFilter & CallOptions = {}): Promise<number> {
    const { from, to, error, ...call } = options;
    const where = `/api/v1/dlq${query(this.#filter({ from, to, error }))}`;
    const { purged } = await this.#http.ask<{ purged: number }>('DELETE', where, call, { once: true });
    return purged;
  }

  #filter({ from, to, error }: DeadLetterFilter) {
    const { queue, partition, group: consumerGroup } = this.#source;
    return {
      queue,
      partition,
      consumerGroup,
      from: from && time(from),
      to: to && time(to),
      error,
    };
  }

  async #start<R>(options: RedriveOptions, dryRun: boolean): Promise<R> {
    const { targetQueue, perSecond, from, to, error, ...call } = options;
    checkCount('perSecond', perSecond);
    if (targetQueue !== undefined) {
      checkName('targetQueue', targetQueue);
    }
    const body = { ...this.#filter({ from, to, error }), targetQueue, perSecond, dryRun };
    return this.#http.ask('POST', '/api/v1/dlq/redrive', call, { body, once: !dryRun });
  }
}

/** A started redrive. */
export class Redrive {
  readonly #http: Http;
  #progress: RedriveProgress;

  /** @internal */
  constructor(http: Http, progress: RedriveProgress) {
    this.#http = http;
    this.#progress = progress;
  }

  get id(): string {
    return this.#progress.id;
  }

  /** The progress as last fetched. */
  get progress(): RedriveProgress {
    return this.#progress;
  }

  async refresh(options?: CallOptions): Promise<RedriveProgress> {
    this.#progress = await this.#http.ask('GET', path('/api/v1/dlq/redrives', this.id), options);
    return this.#progress;
  }

  /** Cancels it. What it has not pushed yet stays a dead letter. */
  async cancel(options?: CallOptions): Promise<RedriveProgress> {
    this.#progress = await this.#http.ask('DELETE', path('/api/v1/dlq/redrives', this.id), options);
    return this.#progress;
  }

  /** Waits until it ends, without a limit unless there is a deadline. */
  async finished({ deadline = Infinity, signal, ...rest }: CallOptions = {}): Promise<RedriveProgress> {
    checkNoMore(rest);
    const until = this.#http.until(deadline);
    for (let pause = 50; this.#progress.status === 'running'; pause = Math.min(pause * 2, 1_000)) {
      if (now() + pause >= until) {
        throw new QueenError('timeout', `redrive ${this.id} is still running and continues`);
      }
      await sleep(pause, signal);
      await this.refresh({ signal });
    }
    return this.#progress;
  }
}

function read<T>(letter: WireDeadLetter, parse: Parse<T> | undefined): DeadLetter<T> {
  const { id, transactionId, partitionId, queue, partition, retryCount, data: payload } = letter;
  return {
    id,
    transactionId,
    partitionId,
    queue,
    partition,
    group: letter.consumerGroup,
    error: letter.errorMessage ?? undefined,
    retryCount,
    get data(): T {
      try {
        return parse ? parse(payload) : (payload as T);
      } catch (cause) {
        throw new QueenError('decode', 'cannot decode the payload of this dead letter', { cause });
      }
    },
    payload,
    createdAt: new Date(letter.createdAt),
    failedAt: new Date(letter.failedAt),
  };
}

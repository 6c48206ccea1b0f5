/** The entry point. */

import type { AckOptions, AckResult } from './ack.js';
import { ackAll } from './ack.js';
import { Admin } from './admin.js';
import { checkFunction, checkName, checkNoMore } from './checks.js';
import { badUse, QueenError, textOf } from './errors.js';
import { Http } from './http.js';
import type { Message, Parse } from './message.js';
import type { MoreOptions, QueenOptions } from './options.js';
import { readOptions } from './options.js';
import { Discovery, Queue } from './queue.js';
import { Traces } from './traces.js';
import { Transaction } from './transaction.js';

export interface HandleOptions<T> {
  /** Converts each payload to a `T`, or throws: `schema.parse` of zod fits. Without it, payloads are assumed to be `T`. */
  parse?: Parse<T> | undefined;
}

/** A client of one broker, or of several on one database. */
export class Queen implements AsyncDisposable {
  readonly admin: Admin;
  readonly traces: Traces;
  readonly #http: Http;
  #closing: Promise<void> | undefined;

  /** @throws QueenError of kind `bad_use`. Nothing is sent. */
  constructor(urls: string | readonly string[], options?: MoreOptions);
  constructor(options: QueenOptions);
  constructor(given: string | readonly string[] | QueenOptions, options?: MoreOptions) {
    this.#http = new Http(readOptions(given, options));
    this.admin = new Admin(this.#http);
    this.traces = new Traces(this.#http);
  }

  queue<T = unknown>(name: string, { parse, ...rest }: HandleOptions<T> = {}): Queue<T> {
    checkNoMore(rest);
    return new Queue(this.#http, { queue: checkName('queue', name), parse: checkParse(parse) });
  }

  /** All queues with this namespace, this task, or both, to pop from any of them. */
  discover<T = unknown>(
    labels: { namespace?: string | undefined; task?: string | undefined },
    { parse, ...rest }: HandleOptions<T> = {},
  ): Discovery<T> {
    checkNoMore(rest);
    const { namespace, task, ...others } = labels;
    if (namespace === undefined && task === undefined) {
      throw badUse('discover needs a namespace, a task or both');
    }
    if ('partition' in labels) {
      throw badUse('a partition belongs to a queue: queen.queue(name).partition(name)');
    }
    checkNoMore(others);
    for (const [what, name] of Object.entries({ namespace, task })) {
      if (name !== undefined) {
        checkName(what, name);
      }
    }
    return new Discovery(this.#http, { namespace, task, parse: checkParse(parse) });
  }

  /** A transaction: acknowledgements and pushes, all or nothing. */
  transaction(): Transaction {
    return new Transaction(this.#http);
  }

  /** Acknowledges many messages of one consumer group in one request. Refusals are among the results. */
  async ack(messages: readonly Message<unknown>[], options: AckOptions = {}): Promise<AckResult[]> {
    return ackAll(this.#http, messages, options);
  }

  /**
    * Stops consumers, then flushes and closes buffers, and refuses all further calls. Fails if messages could not be
    * delivered.
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    const { consumers, buffers } = this.#http.running;
    this.#http.beginClose();
    const failures: unknown[] = [];
    // Running handlers may push to buffers.
    for (const running of [consumers, buffers]) {
      const ends = await Promise.allSettled([...running].map((one) => one.close()));
      failures.push(...ends.flatMap((end) => (end.status === 'rejected' ? [end.reason] : [])));
    }
    this.#http.close();
    if (failures.length > 0) {
      throw failures.length === 1 ? failures[0] : joined(failures);
    }
  }
}

function checkParse<T>(parse: Parse<T> | undefined): Parse<T> | undefined {
  if (parse !== undefined) {
    checkFunction('parse', parse);
  }
  return parse;
}

/** One error for several: each may contain undelivered messages. */
function joined(failures: readonly unknown[]): QueenError {
  const known = failures.filter((failure) => failure instanceof QueenError);
  const undelivered = known.flatMap((failure) => failure.undelivered ?? []);
  const text = `${failures.length} failed to close, the first because: ${textOf(failures[0])}`;
  return new QueenError(known[0]?.kind ?? 'closed', text, { undelivered, cause: new AggregateError(failures) });
}

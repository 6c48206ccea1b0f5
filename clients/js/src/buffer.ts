/** Collects pushes and sends them together, in order. Nothing is dropped silently. */

import type { Route } from './brokers.js';
import { mix, routeKey } from './brokers.js';
import { checkChoice, checkCount, checkNoMore, checkSpan, checkTime } from './checks.js';
import { after, now } from './clock.js';
import { badUse, QueenError, retold, textOf } from './errors.js';
import type { Undelivered } from './errors.js';
import type { Http } from './http.js';
import { report } from './log.js';
import type { Item, ItemOptions, PartitionOption, PushResult } from './push.js';
import { item, laneKey, send } from './push.js';
import { Entry, Receipt } from './receipt.js';
import { tell } from './tell.js';

/** All times are milliseconds. */
export interface BufferOptions {
  /** Maximum messages in the buffer. Default 10,000. */
  maxMessages?: number | undefined;
  /** Maximum bytes in the buffer. Default 16 MiB. */
  maxBytes?: number | undefined;
  /** How long a message waits for others. Default 10 ms. */
  linger?: number | undefined;
  /** Maximum messages per request. Default 1,000. */
  batchMessages?: number | undefined;
  /** Maximum bytes per request, unless a single message is larger. Default 4 MiB. */
  batchBytes?: number | undefined;
  /** Concurrent requests. A partition uses one lane, which keeps its order. Default 4. */
  lanes?: number | undefined;
  /** What a push does when the buffer is full. Default `wait`. */
  whenFull?: 'wait' | 'reject' | undefined;
  /** Time limit of each request, including retries. Default: the client's. */
  deadline?: number | undefined;
  /** Called for undelivered messages whose receipt is not awaited. By default, they go to the client's `logger`. */
  onError?: ((error: QueenError) => void) | undefined;
}

interface Lane {
  readonly number: number;
  readonly entries: Entry[];
  bytes: number;
  timer: ReturnType<typeof setTimeout> | undefined;
  busy: boolean;
}

interface Waiting {
  readonly item: Item;
  readonly bytes: number;
  readonly admitted: (entry: Entry) => void;
  readonly refused: (error: QueenError) => void;
}

const utf8 = new TextEncoder();

/**
 * # Invariants
  * - Messages of one partition are sent in the order of their pushes, one request after the other.
  * - Count and bytes never exceed their limits, except for a single message larger than the whole buffer. Undelivered messages
  *   that were not reported yet count too.
  * - Every message settles its receipt, with a result or an error.
 */
export class PushBuffer<T> implements AsyncDisposable {
  readonly #http: Http;
  readonly #queue: string;
  readonly #partition: string | undefined;
  readonly #options: ReturnType<typeof readOptions>;
  readonly #lanes: readonly Lane[];
  /** Pushes waiting for room, in order. */
  readonly #waiting: Waiting[] = [];
  readonly #inside = new Set<Entry>();
  /** Failed and not reported yet. */
  readonly #undelivered = new Map<Entry, QueenError>();
  /** Size of both. */
  #bytes = 0;
  /** A flush is waiting: no lingering. */
  #flushes = 0;
  #closing: Promise<void> | undefined;

  /** @internal */
  constructor(http: Http, queue: string, partition: string | undefined, options: BufferOptions) {
    http.checkStart();
    this.#http = http;
    this.#queue = queue;
    this.#partition = partition;
    this.#options = readOptions(options);
    const numbers = Array.from({ length: this.#options.lanes }, (_, number) => number);
    this.#lanes = numbers.map((number) => ({ number, entries: [], bytes: 0, timer: undefined, busy: false }));
    http.running.buffers.add(this);
  }

  /** Number of messages in the buffer. */
  get size(): number {
    return this.#inside.size;
  }

  /** Returns once the message is in the buffer; its receipt provides the result. */
  async push(
    payload: T,
    options: ItemOptions<T> & PartitionOption<T> & { signal?: AbortSignal | undefined } = {},
  ): Promise<Receipt> {
    this.#checkOpen();
    const { signal, ...about } = options;
    const made = item(this.#queue, this.#partition, payload, about);
    const bytes = utf8.encode(made.json).length;
    if (this.#waiting.length === 0 && this.#hasRoom(bytes)) {
      return this.#receipt(this.#enter(made, bytes));
    }
    if (this.#inside.size === 0) {
      throw clogged();
    }
    if (this.#options.whenFull === 'reject') {
      throw new QueenError('buffer_full', `the buffer is full: ${this.size} messages, ${this.#bytes} bytes`);
    }
    return this.#receipt(await this.#wait(made, bytes, signal));
  }

  /** Waits until everything in the buffer was sent. Fails with the messages that could not be delivered since the last call. */
  async flush(): Promise<void> {
    await this.#drain();
    this.#tell();
  }

  /** Flushes and refuses further pushes. Fails with the messages that could not be delivered since the last call. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    // Includes pushes that wait for room, because they were called before.
    do {
      await this.#drain();
    } while (this.#inside.size > 0 || this.#waiting.length > 0);
    this.#http.running.buffers.delete(this);
    this.#tell();
  }

  async #drain(): Promise<void> {
    this.#flushes += 1;
    try {
      const inside = [...this.#inside];
      this.#lanes.forEach((lane) => this.#schedule(lane));
      await Promise.allSettled(inside.map((entry) => entry.result));
    } finally {
      this.#flushes -= 1;
    }
  }

  #checkOpen(): void {
    this.#http.checkOpen();
    if (this.#closing) {
      throw new QueenError('closed', 'this buffer is closed');
    }
  }

  #hasRoom(bytes: number): boolean {
    const { maxMessages, maxBytes } = this.#options;
    const count = this.#inside.size + this.#undelivered.size;
    return count === 0 || (count < maxMessages && this.#bytes + bytes <= maxBytes);
  }

  #wait(item: Item, bytes: number, signal: AbortSignal | undefined): Promise<Entry> {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const leave = () => {
        this.#waiting.splice(this.#waiting.indexOf(waiting), 1);
        reject(signal!.reason);
      };
      const end = () => signal?.removeEventListener('abort', leave);
      const waiting: Waiting = {
        item,
        bytes,
        admitted: (entry) => {
          end();
          resolve(entry);
        },
        refused: (error) => {
          end();
          reject(error);
        },
      };
      signal?.addEventListener('abort', leave, { once: true });
      this.#waiting.push(waiting);
      this.#lanes.forEach((lane) => this.#schedule(lane));
    });
  }

  /** Admits pushes that wait for room. If there will never be any, they fail. */
  #admit(): void {
    for (let next = this.#waiting[0]; next; next = this.#waiting[0]) {
      if (this.#hasRoom(next.bytes)) {
        this.#waiting.shift();
        next.admitted(this.#enter(next.item, next.bytes));
      } else if (this.#inside.size === 0) {
        this.#waiting.shift();
        next.refused(clogged());
      } else {
        return;
      }
    }
  }

  #receipt(entry: Entry): Receipt {
    return new Receipt(entry, () => {
      entry.awaited = true;
      if (this.#undelivered.delete(entry)) {
        this.#bytes -= entry.bytes;
        this.#admit();
      }
    });
  }

  #enter(item: Item, bytes: number): Entry {
    const entry = new Entry(item, bytes);
    this.#inside.add(entry);
    this.#bytes += bytes;
    const lane = this.#lanes[mix(laneKey(item)) % this.#lanes.length]!;
    lane.entries.push(entry);
    lane.bytes += bytes;
    this.#schedule(lane);
    return entry;
  }

  /** Sends the lane's next batch, now or after lingering; its end schedules the next one. */
  #schedule(lane: Lane): void {
    const [oldest] = lane.entries;
    if (lane.busy || !oldest) {
      return;
    }
    const { linger, batchMessages, batchBytes } = this.#options;
    const full = lane.entries.length >= batchMessages || lane.bytes >= batchBytes;
    // Pushes that wait for room cannot join it.
    const hurry = full || this.#flushes > 0 || this.#waiting.length > 0;
    const rest = hurry ? 0 : oldest.since + linger - now();
    if (rest > 0) {
      lane.timer ??= after(rest, () => {
        lane.timer = undefined;
        this.#schedule(lane);
      });
      return;
    }
    clearTimeout(lane.timer);
    lane.timer = undefined;
    lane.busy = true;
    void this.#deliver(this.#take(lane), lane).finally(() => {
      lane.busy = false;
      this.#schedule(lane);
    });
  }

  #take(lane: Lane): Entry[] {
    const { batchMessages, batchBytes } = this.#options;
    let count = 0;
    let bytes = 0;
    for (const entry of lane.entries) {
      if (count === batchMessages || (count > 0 && bytes + entry.bytes > batchBytes)) {
        break;
      }
      count += 1;
      bytes += entry.bytes;
    }
    lane.bytes -= bytes;
    return lane.entries.splice(0, count);
  }

  async #deliver(batch: readonly Entry[], lane: Lane): Promise<void> {
    const { deadline } = this.#options;
    const sent = batch.map((entry) => entry.item);
    let outcomes: (PushResult | QueenError)[];
    try {
      const told = await send(this.#http, sent, { deadline }, this.#route(lane));
      outcomes = told.map(({ result, error }) => error ?? result);
    } catch (thrown) {
      const error = asQueenError(thrown);
      // A message that is too large or malformed must not fail its neighbors.
      if ((error.status === 400 || error.status === 413) && batch.length > 1) {
        const half = Math.ceil(batch.length / 2);
        await this.#deliver(batch.slice(0, half), lane);
        return this.#deliver(batch.slice(half), lane);
      }
      outcomes = batch.map(() => error);
    }
    this.#settle(batch, outcomes);
  }

  /** A lane uses one broker for all of its partitions. With a single partition, the broker of its other requests. */
  #route(lane: Lane): Route {
    const names = this.#partition === undefined ? ['lane', lane.number] : [this.#partition];
    return { key: routeKey(this.#queue, ...names) };
  }

  #settle(batch: readonly Entry[], outcomes: readonly (PushResult | QueenError)[]): void {
    const failures: Failure[] = [];
    batch.forEach((entry, index) => {
      const outcome = outcomes[index]!;
      this.#inside.delete(entry);
      this.#bytes -= entry.bytes;
      if (!(outcome instanceof QueenError)) {
        return entry.resolve(outcome);
      }
      entry.reject(outcome);
      if (!entry.awaited) {
        this.#undelivered.set(entry, outcome);
        this.#bytes += entry.bytes;
        failures.push([entry, outcome]);
      }
    });
    this.#admit();
    if (failures.length > 0) {
      this.#hear(undeliveredError(failures));
    }
  }

  #hear(error: QueenError): void {
    const { onError } = this.#options;
    if (onError) {
      tell(onError, error);
    } else {
      report(this.#http.options.logger, 'error', `${error.message} (queue ${this.#queue})`);
    }
  }

  #tell(): void {
    const failures = [...this.#undelivered];
    this.#undelivered.clear();
    failures.forEach(([entry]) => (this.#bytes -= entry.bytes));
    this.#admit();
    if (failures.length > 0) {
      throw undeliveredError(failures);
    }
  }
}

type Failure = readonly [Entry, QueenError];

function readOptions(options: BufferOptions) {
  const { maxMessages, maxBytes, linger, batchMessages, batchBytes, lanes, ...more } = options;
  const { whenFull, deadline, onError, ...rest } = more;
  checkNoMore(rest);
  checkCount('maxMessages', maxMessages);
  checkCount('maxBytes', maxBytes);
  checkTime('linger', linger);
  checkCount('batchMessages', batchMessages);
  checkCount('batchBytes', batchBytes);
  checkCount('lanes', lanes);
  checkChoice('whenFull', whenFull, ['wait', 'reject']);
  checkSpan('deadline', deadline);
  return {
    maxMessages: maxMessages ?? 10_000,
    maxBytes: maxBytes ?? 16 * 1024 * 1024,
    linger: linger ?? 10,
    batchMessages: batchMessages ?? 1_000,
    batchBytes: batchBytes ?? 4 * 1024 * 1024,
    lanes: lanes ?? 4,
    whenFull: whenFull ?? 'wait',
    deadline,
    onError,
  };
}

function clogged(): QueenError {
  return new QueenError('buffer_full', 'the buffer is full of undelivered messages; flush() returns them');
}

function undeliveredError(failures: readonly Failure[]): QueenError {
  const undelivered = failures.map(([entry, error]): Undelivered => {
    const { queue, partition, payload, transactionId } = entry.item;
    return { queue, partition, payload, transactionId, error };
  });
  const [, first] = failures[0]!;
  const text = `${failures.length} messages could not be delivered, the first because: ${first.message}`;
  return retold(first, { text, undelivered, results: undefined, cause: first });
}

/** Anything else is a request that could not be serialized. */
function asQueenError(thrown: unknown): QueenError {
  return thrown instanceof QueenError ? thrown : badUse(`cannot send: ${textOf(thrown)}`, thrown);
}

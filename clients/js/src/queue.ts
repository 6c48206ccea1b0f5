/** Handles: cheap, immutable, reusable. Nothing is sent before a verb. */

import type { AckOptions, AckResult } from './ack.js';
import { ackAll } from './ack.js';
import type { EachHandler } from './batch.js';
import type { BufferOptions } from './buffer.js';
import { PushBuffer } from './buffer.js';
import { checkName } from './checks.js';
import type { ConsumeOptions, Consumer } from './consume.js';
import { Consume } from './consume.js';
import { DeadLetters } from './deadLetters.js';
import { badUse } from './errors.js';
import type { Http } from './http.js';
import type { Message } from './message.js';
import type { PopOptions, Source } from './pop.js';
import { pop } from './pop.js';
import type { PartitionOption, Payload, PushOptions, PushResult } from './push.js';
import { item, items, push } from './push.js';

/** Something to take messages from. */
abstract class Readable<T> {
  /** @internal */
  protected readonly http: Http;
  /** @internal */
  protected readonly source: Source<T>;

  /** @internal */
  constructor(http: Http, source: Source<T>) {
    this.http = http;
    this.source = source;
  }

  /** Takes messages: an empty list if there are none. */
  pop(options: PopOptions = {}): Promise<Message<T>[]> {
    return later(() => pop(this.http, this.source, options));
  }

  /** Starts a consumer: `consume(options, handler)`, `consume(options).each(handler)` or `.batches(handler)`. */
  consume(options: ConsumeOptions, handler: EachHandler<T>): Consumer;
  consume(options?: ConsumeOptions): Consume<T>;
  consume(...given: [options?: ConsumeOptions, handler?: EachHandler<T>]): Consumer | Consume<T> {
    const [options = {}, handler] = given;
    const consume = new Consume(this.http, this.source, options);
    // A handler that is given and undefined is a mistake, and not none.
    return given.length > 1 ? consume.each(handler!) : consume;
  }
}

/** A queue, or a part of it, as one consumer group reads it. */
export class Group<T> extends Readable<T> {
  get name(): string {
    return this.source.group!;
  }

  /** One request for many messages of this group. What is refused is among the results. */
  ack(messages: readonly Message<unknown>[], options: AckOptions = {}): Promise<AckResult[]> {
    return later(() => {
      const stranger = messages.find((message) => message.group !== this.name);
      if (stranger) {
        throw badUse(`this message is of the group ${JSON.stringify(stranger.group)} and not ${JSON.stringify(this.name)}`);
      }
      return ackAll(this.http, messages, options);
    });
  }

  /** What this group gave up on. */
  deadLetters(): DeadLetters<T> {
    const { queue } = this.source;
    if (queue === undefined) {
      throw badUse('dead letters are those of a queue: queen.queue(name).group(name).deadLetters()');
    }
    return new DeadLetters(this.http, { ...this.source, queue });
  }
}

/** All queues with a label. */
export class Discovery<T> extends Readable<T> {
  group(name: string): Group<T> {
    return new Group(this.http, { ...this.source, group: checkName('group', name) });
  }
}

/** Something to push to, and to take from. */
abstract class Writable<T> extends Readable<T> {
  /** Of the queue. */
  get name(): string {
    return this.source.queue!;
  }

  group(name: string): Group<T> {
    return new Group(this.http, { ...this.source, group: checkName('group', name) });
  }

  /** What all groups gave up on. */
  deadLetters(): DeadLetters<T> {
    return new DeadLetters(this.http, { ...this.source, queue: this.name });
  }

  abstract get partitionName(): string | undefined;
}

/** One ordered lane of a queue. */
export class Partition<T> extends Writable<T> {
  get partitionName(): string {
    return this.source.partition!;
  }

  /** One message or many: an array is many. An array that is one message goes with `pushOne`. */
  push(payload: Payload<T>, options: PushOptions<T> = {}): Promise<PushResult[]> {
    return later(() => pushAll(this.http, this, payload, options));
  }

  /** One message, whatever it is. */
  pushOne(payload: T, options: PushOptions<T> = {}): Promise<PushResult> {
    return later(() => pushOne(this.http, this, payload, options));
  }

  /** Collects pushes and sends them together. Close it, or `await using` it. */
  buffer(options: BufferOptions = {}): PushBuffer<T> {
    return new PushBuffer(this.http, this.name, this.partitionName, options);
  }
}

export class Queue<T> extends Writable<T> {
  get partitionName(): undefined {
    return undefined;
  }

  partition(name: string): Partition<T> {
    return new Partition(this.http, { ...this.source, partition: checkName('partition', name) });
  }

  /** One message or many: an array is many. An array that is one message goes with `pushOne`. */
  push(payload: Payload<T>, options: PushOptions<T> & PartitionOption<T> = {}): Promise<PushResult[]> {
    return later(() => pushAll(this.http, this, payload, options));
  }

  /** One message, whatever it is. */
  pushOne(payload: T, options: PushOptions<T> & PartitionOption<T> = {}): Promise<PushResult> {
    return later(() => pushOne(this.http, this, payload, options));
  }

  /** Collects pushes and sends them together. Close it, or `await using` it. */
  buffer(options: BufferOptions = {}): PushBuffer<T> {
    return new PushBuffer(this.http, this.name, undefined, options);
  }
}

function pushAll<T>(
  http: Http,
  to: Writable<T>,
  payload: Payload<T>,
  options: PushOptions<T> & PartitionOption<T>,
): Promise<PushResult[]> {
  const { deadline, signal, ...about } = options;
  return push(http, items(to.name, to.partitionName, payload as T | readonly T[], about), { deadline, signal });
}

async function pushOne<T>(
  http: Http,
  to: Writable<T>,
  payload: T,
  options: PushOptions<T> & PartitionOption<T>,
): Promise<PushResult> {
  const { deadline, signal, ...about } = options;
  const [result] = await push(http, [item(to.name, to.partitionName, payload, about)], { deadline, signal });
  return result!;
}

/** What a verb finds wrong at once is a rejection, too. */
async function later<R>(verb: () => R | Promise<R>): Promise<R> {
  return verb();
}

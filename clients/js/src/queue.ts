/** Handles: cheap, immutable and reusable. They send nothing; verbs do. */

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

/** A source of messages. */
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

  /** Pops messages: an empty list if there are none. */
  pop(options: PopOptions = {}): Promise<Message<T>[]> {
    return later(() => pop(this.http, this.source, options));
  }

  /** Starts a consumer: `consume(options, handler)`, `consume(options).each(handler)` or `.batches(handler)`. */
  consume(options: ConsumeOptions, handler: EachHandler<T>): Consumer;
  consume(options?: ConsumeOptions): Consume<T>;
  consume(...given: [options?: ConsumeOptions, handler?: EachHandler<T>]): Consumer | Consume<T> {
    const [options = {}, handler] = given;
    const consume = new Consume(this.http, this.source, options);
    // An explicit handler that is undefined is a mistake.
    return given.length > 1 ? consume.each(handler!) : consume;
  }
}

/** A queue, or a part of it, as read by one consumer group. */
export class Group<T> extends Readable<T> {
  get name(): string {
    return this.source.group!;
  }

  /** Acknowledges many messages of this group in one request. Refusals are among the results. */
  ack(messages: readonly Message<unknown>[], options: AckOptions = {}): Promise<AckResult[]> {
    return later(() => {
      const stranger = messages.find((message) => message.group !== this.name);
      if (stranger) {
        throw badUse(`this message belongs to group ${JSON.stringify(stranger.group)}, not ${JSON.stringify(this.name)}`);
      }
      return ackAll(this.http, messages, options);
    });
  }

  /** The group's dead letters. */
  deadLetters(): DeadLetters<T> {
    const { queue } = this.source;
    if (queue === undefined) {
      throw badUse('dead letters belong to a queue: queen.queue(name).group(name).deadLetters()');
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

/** A queue or partition: something to push to and pop from. */
abstract class Writable<T> extends Readable<T> {
  /** Name of the queue. */
  get name(): string {
    return this.source.queue!;
  }

  group(name: string): Group<T> {
    return new Group(this.http, { ...this.source, group: checkName('group', name) });
  }

  /** The dead letters of all groups. */
  deadLetters(): DeadLetters<T> {
    return new DeadLetters(this.http, { ...this.source, queue: this.name });
  }

  abstract get partitionName(): string | undefined;
}

/** A partition of a queue. */
export class Partition<T> extends Writable<T> {
  get partitionName(): string {
    return this.source.partition!;
  }

  /** Pushes one message or many. An array means many: push a single array with `pushOne`. */
  push(payload: Payload<T>, options: PushOptions<T> = {}): Promise<PushResult[]> {
    return later(() => pushAll(this.http, this, payload, options));
  }

  /** Pushes one message, whatever its type. */
  pushOne(payload: T, options: PushOptions<T> = {}): Promise<PushResult> {
    return later(() => pushOne(this.http, this, payload, options));
  }

  /** Collects pushes and sends them together. Close it, or use `await using`. */
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

  /** Pushes one message or many. An array means many: push a single array with `pushOne`. */
  push(payload: Payload<T>, options: PushOptions<T> & PartitionOption<T> = {}): Promise<PushResult[]> {
    return later(() => pushAll(this.http, this, payload, options));
  }

  /** Pushes one message, whatever its type. */
  pushOne(payload: T, options: PushOptions<T> & PartitionOption<T> = {}): Promise<PushResult> {
    return later(() => pushOne(this.http, this, payload, options));
  }

  /** Collects pushes and sends them together. Close it, or use `await using`. */
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

/** Turns synchronous validation errors into rejections. */
async function later<R>(verb: () => R | Promise<R>): Promise<R> {
  return verb();
}

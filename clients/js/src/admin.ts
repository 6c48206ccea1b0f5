/** The admin API: queues, groups, messages, operations, and the brokers' health. One method per route. */

import type * as types from './adminTypes.js';
import { checkKnown, checkName, checkTime } from './checks.js';
import { Redrive } from './deadLetters.js';
import type { RedriveProgress } from './deadLetters.js';
import { badUse } from './errors.js';
import type { CallOptions, Http } from './http.js';
import type { PushResult } from './push.js';
import { QUEUE_OPTIONS } from './queueOptions.js';
import type { MessageKey, Page } from './traces.js';
import type { WirePushResult } from './wire.js';
import { path, query, time } from './wire.js';

/** Earlier than any push. */
const BEGINNING = new Date(0);

export class Admin {
  readonly queues: Queues;
  readonly groups: Groups;
  readonly messages: Messages;
  readonly operations: Operations;
  readonly redrives: Redrives;
  readonly maintenance: MaintenanceSwitches;
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
    this.queues = new Queues(http);
    this.groups = new Groups(http);
    this.messages = new Messages(http);
    this.operations = new Operations(http);
    this.redrives = new Redrives(http);
    this.maintenance = new MaintenanceSwitches(http);
  }

  /** Totals of the whole installation. */
  overview(options?: CallOptions): Promise<types.Overview> {
    return this.#http.ask('GET', '/api/v1/resources/overview', options);
  }

  /** A status overview of the last hour, or of the given time. */
  status(
    options: { from?: Date | undefined; to?: Date | undefined; queue?: string | undefined } & CallOptions = {},
  ): Promise<Record<string, unknown>> {
    const { from, to, queue, ...call } = options;
    return this.#http.ask('GET', `/api/v1/status${query({ from, to, queue })}`, call);
  }

  /** Problems of the database, and what to do about them. */
  doctor(options?: CallOptions): Promise<types.DoctorReport> {
    return this.#http.ask('GET', '/api/v1/system/doctor', options);
  }

  /** Fails with `unavailable` if the broker still has no database when the deadline passes. */
  health(options?: CallOptions): Promise<types.Health> {
    return this.#http.ask('GET', '/health', options);
  }

  /** Metrics of one broker. */
  metrics(options?: CallOptions): Promise<Record<string, unknown>> {
    return this.#http.ask('GET', '/metrics', options);
  }

  /** Metrics of one broker in Prometheus format. */
  prometheus(options?: CallOptions): Promise<string> {
    return this.#http.ask('GET', '/metrics/prometheus', options);
  }
}

abstract class Part {
  /** @internal */
  protected readonly http: Http;

  /** @internal */
  constructor(http: Http) {
    this.http = http;
  }
}

export class Queues extends Part {
  /** Newest first. */
  async list(
    options: Page &
      CallOptions & { namespace?: string | undefined; task?: string | undefined; search?: string | undefined } = {},
  ): Promise<types.QueueSummary[]> {
    const { namespace, task, search, limit, offset, ...call } = options;
    const where = `/api/v1/resources/queues${query({ namespace, task, search, limit, offset })}`;
    const { queues } = await this.http.ask<{ queues: types.QueueSummary[] }>('GET', where, call);
    return queues;
  }

  /** One queue, with a page of its partitions. */
  get(queue: string, options: Page & CallOptions = {}): Promise<types.QueueDetail> {
    const { limit, offset, ...call } = options;
    return this.http.ask('GET', named('/api/v1/resources/queues', 'queue', queue) + query({ limit, offset }), call);
  }

  /** Creates a queue or changes its options. Omitted options stay as they are; with `replace` they are reset to their defaults. */
  configure(
    queue: string,
    options: types.QueueOptions = {},
    more: { namespace?: string; task?: string; replace?: boolean } & CallOptions = {},
  ): Promise<types.ConfiguredQueue> {
    const { namespace, task, replace, ...call } = more;
    checkKnown(options, QUEUE_OPTIONS);
    const mode = replace ? 'replace' : undefined;
    const body = { queue: checkName('queue', queue), namespace, task, mode, options };
    return this.http.ask('POST', '/api/v1/configure', call, { body });
  }

  /** Deletes the queue with everything in it. False if it did not exist. */
  async delete(queue: string, options?: CallOptions): Promise<boolean> {
    const where = named('/api/v1/resources/queues', 'queue', queue);
    return (await this.http.ask<{ existed: boolean }>('DELETE', where, options, { once: true })).existed;
  }

  /** Deletes its messages, or those of one partition, and keeps the queue. Returns their number. */
  async clear(queue: string, options: { partition?: string | undefined } & CallOptions = {}): Promise<number> {
    const { partition, ...call } = options;
    const where = `${named('/api/v1/queues', 'queue', queue)}/clear${query({ partition })}`;
    return (await this.http.ask<{ deleted: number }>('DELETE', where, call, { once: true })).deleted;
  }

  /** A group's backlog. Cheap enough to poll frequently. */
  depth(queue: string, options: { group?: string | undefined } & CallOptions = {}): Promise<types.Depth> {
    const { group, ...call } = options;
    const where = `${named('/api/v1/resources/queues', 'queue', queue)}/depth${query({ group })}`;
    return this.http.ask('GET', where, call);
  }

  /** All namespaces, with totals. */
  async namespaces(options?: CallOptions): Promise<types.Namespace[]> {
    const where = '/api/v1/resources/namespaces';
    return (await this.http.ask<{ namespaces: types.Namespace[] }>('GET', where, options)).namespaces;
  }

  /** All tasks, with totals. */
  async tasks(options?: CallOptions): Promise<types.Task[]> {
    return (await this.http.ask<{ tasks: types.Task[] }>('GET', '/api/v1/resources/tasks', options)).tasks;
  }

  /** Partitions with the most unread messages. */
  async partitions(
    options: { queue?: string | undefined; limit?: number | undefined } & CallOptions = {},
  ): Promise<types.BusyPartition[]> {
    const { queue, limit, ...call } = options;
    const where = `/api/v1/resources/partitions${query({ queue, limit })}`;
    return (await this.http.ask<{ partitions: types.BusyPartition[] }>('GET', where, call)).partitions;
  }
}

/** Where to move a group. */
type Position = 'beginning' | 'end' | Date;

interface SeekOptions extends CallOptions {
  partition?: string | undefined;
  /** Create the group if it does not read the queue; otherwise that is an error. */
  create?: boolean | undefined;
  /** Preview only. */
  dryRun?: boolean | undefined;
}

interface WireForecast extends types.SeekForecast {
  partitionsUpdated?: number;
}

function forecast({ partitionsUpdated: partitions = 1, messagesReplayed, messagesSkipped }: WireForecast): types.SeekForecast {
  return { partitions, messagesReplayed, messagesSkipped };
}

export class Groups extends Part {
  /** One entry per group and queue. */
  list(options: Page & CallOptions = {}): Promise<types.GroupSummary[]> {
    const { limit, offset, ...call } = options;
    return this.http.ask('GET', `/api/v1/consumer-groups${query({ limit, offset })}`, call);
  }

  /** A group's position in each queue and partition. */
  get(group: string, options: { limit?: number | undefined } & CallOptions = {}): Promise<types.GroupDetail> {
    const { limit, ...call } = options;
    const where = named('/api/v1/consumer-groups', 'group', group) + query({ limit });
    return this.http.ask('GET', where, call);
  }

  /** Partitions that have waited at least an hour, or `minLag` milliseconds. */
  async lagging(
    options: { minLag?: number | undefined; limit?: number | undefined } & CallOptions = {},
  ): Promise<types.LaggingPartition[]> {
    const { minLag, limit, ...call } = options;
    checkTime('minLag', minLag);
    const minLagSeconds = minLag === undefined ? undefined : Math.floor(minLag / 1000);
    const where = `/api/v1/consumer-groups/lagging${query({ minLagSeconds, limit })}`;
    return (await this.http.ask<object[]>('GET', where, call)).map(camel<types.LaggingPartition>);
  }

  /**
    * Deletes a group, in one queue or in all: a new group of the same name starts over. Its configured start position is
    * deleted too, unless `keepSubscription`. Returns the number of deleted cursors.
   */
  async delete(
    group: string,
    options: { queue?: string | undefined; keepSubscription?: boolean | undefined } & CallOptions = {},
  ): Promise<number> {
    const { queue, keepSubscription, ...call } = options;
    let where = named('/api/v1/consumer-groups', 'group', group);
    if (queue !== undefined) {
      where = named(`${where}/queues`, 'queue', queue);
    }
    where += query({ deleteMetadata: keepSubscription ? false : undefined });
    const told = await this.http.ask<{ deletedPartitions: number }>('DELETE', where, call, { once: true });
    return told.deletedPartitions;
  }

  /**
    * Moves a group in a queue: its next message is the first one after that time. A single partition can only be moved to its
    * end. Returns the number of moved partitions. With `dryRun`, returns a preview and moves nothing.
   */
  seek(group: string, queue: string, to: Position, options: SeekOptions & { dryRun: true }): Promise<types.SeekForecast>;
  seek(group: string, queue: string, to: Position, options?: SeekOptions & { dryRun?: false | undefined }): Promise<number>;
  seek(group: string, queue: string, to: Position, options?: SeekOptions): Promise<number | types.SeekForecast>;
  async seek(
    group: string,
    queue: string,
    to: Position,
    options: SeekOptions = {},
  ): Promise<number | types.SeekForecast> {
    const { partition, dryRun = false, create = false, ...call } = options;
    const where = named(`${named('/api/v1/consumer-groups', 'group', group)}/queues`, 'queue', queue);
    if (to !== 'beginning' && to !== 'end' && !(to instanceof Date)) {
      throw badUse("a group can be moved to the 'beginning', the 'end' or a Date");
    }
    if (partition !== undefined) {
      if (to !== 'end') {
        throw badUse("a single partition can only be moved to its 'end'");
      }
      const one = `${named(`${where}/partitions`, 'partition', partition)}/seek`;
      const body = create ? { create } : {};
      if (dryRun) {
        await this.#checkForecasts(call);
        return forecast(await this.http.ask('POST', one, call, { body: { ...body, toEnd: true, dryRun: true } }));
      }
      const { updated } = await this.http.ask<{ updated: boolean }>('POST', one, call, { body, once: true });
      return Number(updated);
    }
    const target = to === 'end' ? { toEnd: true } : { timestamp: time(to === 'beginning' ? BEGINNING : to) };
    const body = create ? { ...target, create } : target;
    if (dryRun) {
      await this.#checkForecasts(call);
      return forecast(await this.http.ask('POST', `${where}/seek`, call, { body: { ...body, dryRun: true } }));
    }
    const told = await this.http.ask<{ partitionsUpdated: number }>('POST', `${where}/seek`, call, { body, once: true });
    return told.partitionsUpdated;
  }

  /** Brokers of the previous release do not know `dryRun` and would move the group. */
  async #checkForecasts(call: CallOptions): Promise<void> {
    const { version } = await this.http.ask<types.Health>('GET', '/health', call);
    if (version.startsWith('0.1.')) {
      throw badUse(`broker version ${version} does not support dryRun for seeks`);
    }
  }

  /** Changes where a group starts in partitions that are new to it. Returns the number of changed registrations. */
  async subscription(group: string, from: Date, options: CallOptions = {}): Promise<number> {
    const where = `${named('/api/v1/consumer-groups', 'group', group)}/subscription`;
    const body = { subscriptionTimestamp: time(from) };
    return (await this.http.ask<{ rowsUpdated: number }>('POST', where, options, { body })).rowsUpdated;
  }
}

export class Messages extends Part {
  /** Newest first; by default those of the last hour. */
  async list(
    options: Page &
      CallOptions & {
        queue?: string | undefined;
        partition?: string | undefined;
        namespace?: string | undefined;
        task?: string | undefined;
        status?: 'pending' | 'processing' | 'completed' | 'dead_letter' | undefined;
        from?: Date | undefined;
        to?: Date | undefined;
      } = {},
  ): Promise<types.StoredMessage[]> {
    const { queue, partition, namespace, task, status, from, to, limit, offset, ...call } = options;
    const where = `/api/v1/messages${query({ queue, partition, namespace, task, status, from, to, limit, offset })}`;
    return (await this.http.ask<{ messages: types.StoredMessage[] }>('GET', where, call)).messages;
  }

  /** One message with its payload and its state in each group. */
  get(message: MessageKey, options?: CallOptions): Promise<types.StoredMessageDetail> {
    return this.http.ask('GET', pathOf(message), options);
  }

  /** The history of a message. */
  life(message: MessageKey, options?: CallOptions): Promise<types.MessageLife> {
    return this.http.ask('GET', `${pathOf(message)}/life`, options);
  }

  /** Deletes a message, so that it is not delivered to any group. */
  async delete(message: MessageKey, options?: CallOptions): Promise<void> {
    await this.http.ask('DELETE', pathOf(message), options, { once: true });
  }

  /** Dead-letters it for a group, or for queue mode. Fails with `conflict` if it is leased or was read. */
  async deadLetter(
    message: MessageKey,
    options: { group?: string | undefined; error?: string | undefined } & CallOptions = {},
  ): Promise<void> {
    const { group: consumerGroup, error, ...call } = options;
    await this.http.ask('POST', `${pathOf(message)}/dlq`, call, { body: { consumerGroup, error } });
  }

  /** Pushes a dead letter again, with a new transaction id. */
  async retry(message: MessageKey, options: CallOptions = {}): Promise<Pick<PushResult, 'id' | 'transactionId'>> {
    const where = `${pathOf(message)}/retry`;
    const more = { body: {}, once: true };
    const { replayedAs } = await this.http.ask<{ replayedAs: WirePushResult }>('POST', where, options, more);
    return { id: replayedAs.message_id, transactionId: replayedAs.transaction_id };
  }
}

export class Operations extends Part {
  /** Deferred operations, oldest first. */
  async list(
    options: Page &
      CallOptions & {
        status?: types.OperationState | undefined;
        queue?: string | undefined;
        /** Milliseconds. */
        olderThan?: number | undefined;
      } = {},
  ): Promise<types.DeferredOperation[]> {
    const { status, queue, olderThan, limit, offset, ...call } = options;
    checkTime('olderThan', olderThan);
    const olderThanSeconds = olderThan === undefined ? undefined : Math.floor(olderThan / 1000);
    const where = `/api/v1/operations${query({ status, queue, olderThanSeconds, limit, offset })}`;
    const { operations } = await this.http.ask<{ operations: object[] }>('GET', where, call);
    return operations.map(camel<types.DeferredOperation>);
  }

  async get(id: string, options?: CallOptions): Promise<types.DeferredOperation> {
    return camel(await this.http.ask('GET', named('/api/v1/operations', 'id', id), options));
  }

  async stats(options?: CallOptions): Promise<types.OperationStats> {
    const told = await this.http.ask<types.OperationStats>('GET', '/api/v1/operations/stats', options);
    return { ...told, stats: told.stats.map(camel<types.OperationStats['stats'][number]>) };
  }

  /** Retries a failed operation, behind everything accepted since. Fails with `conflict` if it has not failed. */
  async retry(id: string, options?: CallOptions): Promise<void> {
    await this.http.ask('POST', `${named('/api/v1/operations', 'id', id)}/retry`, options, { body: {} });
  }

  /** Cancels an operation that is pending or has failed. Fails with `conflict` otherwise. */
  async cancel(id: string, options?: CallOptions): Promise<void> {
    await this.http.ask('DELETE', named('/api/v1/operations', 'id', id), options);
  }
}

/** Redrives, including those started by other clients. */
export class Redrives extends Part {
  /** Newest first. */
  async list(options: Page & CallOptions = {}): Promise<Redrive[]> {
    const { limit, offset, ...call } = options;
    const where = `/api/v1/dlq/redrives${query({ limit, offset })}`;
    const { redrives } = await this.http.ask<{ redrives: RedriveProgress[] }>('GET', where, call);
    return redrives.map((progress) => new Redrive(this.http, progress));
  }

  async get(id: string, options?: CallOptions): Promise<Redrive> {
    return new Redrive(this.http, await this.http.ask('GET', named('/api/v1/dlq/redrives', 'id', id), options));
  }
}

export class MaintenanceSwitches extends Part {
  get(options?: CallOptions): Promise<types.Maintenance> {
    return this.http.ask('GET', '/api/v1/system/maintenance', options);
  }

  /** While on, brokers write pushes to their spools. */
  push(enabled: boolean, options?: CallOptions): Promise<types.Maintenance> {
    return this.http.ask('POST', '/api/v1/system/maintenance', options, { body: { enabled } });
  }

  /** While on, pops return no messages. */
  pop(enabled: boolean, options?: CallOptions): Promise<Pick<types.Maintenance, 'popMaintenanceMode'>> {
    return this.http.ask('POST', '/api/v1/system/maintenance/pop', options, { body: { enabled } });
  }
}

function named(base: string, what: string, name: string): string {
  return path(base, checkName(what, name));
}

function pathOf({ partitionId, transactionId }: MessageKey): string {
  return path('/api/v1/messages', partitionId, transactionId);
}

/** Some routes respond in snake_case. The contents of their fields are not converted. */
function camel<T>(told: object): T {
  const entries = Object.entries(told).map(([name, value]) => {
    return [name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()), value];
  });
  return Object.fromEntries(entries) as T;
}

/** The verbs of the scenario suite, performed with the public API. */

import { setTimeout as sleep } from 'node:timers/promises';

import { QueenError } from 'queen-client';
import type { BufferOptions, ConsumeOptions, Message, PushResult, Queen, Queue, Subscription } from 'queen-client';

/** JSON of a scenario file. */
export type Json = any;

/** What a step has observed. Other expectations are errors. */
export interface Outcome {
  error?: unknown;
  statuses?: (string | number | null)[];
  operation?: boolean;
  /** To be saved. */
  messages?: Message<unknown>[];
  data?: unknown[];
  count?: number;
  partitions?: string[];
  traceparents?: (string | null)[];
  errors?: (string | null)[];
  success?: boolean[];
  handled?: number;
  failed?: number;
  batches?: number;
  leaseLost?: boolean;
  errorsTold?: number;
  stopTookMs?: number;
  depth?: number;
  requests?: Json[];
}

export interface Surroundings {
  readonly queen: Queen;
  readonly saved: Map<string, Message<unknown>[]>;
  readonly control: (method: string, path: string, body?: unknown) => Promise<Json>;
}

type Verb = (fields: Json, around: Surroundings) => Promise<Outcome>;

/** `"5s"`, `"100ms"`. */
export function duration(text: string): number {
  const [, number, unit] = /^(\d+)(ms|s)$/.exec(text) ?? [];
  if (number === undefined) {
    throw new Error(`no duration: ${text}`);
  }
  return Number(number) * (unit === 's' ? 1000 : 1);
}

function optional(text: string | undefined): number | undefined {
  return text === undefined ? undefined : duration(text);
}

export function none(unknown: object): void {
  const [name] = Object.keys(unknown);
  if (name !== undefined) {
    throw new Error(`the runner does not know ${JSON.stringify(name)}`);
  }
}

interface Outgoing {
  payload: unknown;
  transactionId?: string;
  traceparent?: string;
  partition?: string;
}

function outgoing(message: Json): Outgoing {
  if (typeof message !== 'object' || message === null || !('payload' in message)) {
    return { payload: message };
  }
  const { payload, transactionId, traceparent, partition, ...rest } = message;
  none(rest);
  return { payload, transactionId, traceparent, partition };
}

function target(queen: Queen, { queue, partition }: Json) {
  const handle = queen.queue<unknown>(queue);
  return partition === undefined ? handle : handle.partition(partition);
}

function origin(queen: Queen, { queue, partition, namespace, task, group }: Json, parse?: (payload: unknown) => unknown) {
  const whole = queue === undefined ? queen.discover({ namespace, task }, { parse }) : queen.queue(queue, { parse });
  const part = partition === undefined ? whole : (whole as Queue<unknown>).partition(partition);
  return group === undefined ? part : part.group(group);
}

function subscribed(text: string | undefined): Subscription | undefined {
  return text === undefined || text === 'all' || text === 'new' ? text : new Date(text);
}

function pick({ messages, index }: Json, { saved }: Surroundings): Message<unknown>[] {
  const all = saved.get(messages);
  if (!all) {
    throw new Error(`nothing is saved as ${messages}`);
  }
  return index === undefined ? all : index.map((position: number) => all[position]!);
}

const push: Verb = async ({ queue, partition, messages, deadline, ...rest }, { queen }) => {
  none(rest);
  const items: Outgoing[] = messages.map(outgoing);
  const to = target(queen, { queue, partition });
  const call = { deadline: optional(deadline) };
  let results: PushResult[];
  if (items.length === 1) {
    const { payload, transactionId, traceparent } = items[0]!;
    results = [await to.pushOne(payload, { transactionId, traceparent, ...call })];
  } else {
    results = await to.push(items.map(({ payload }) => payload), {
      transactionId: (_, index) => items[index]!.transactionId,
      traceparent: (_, index) => items[index]!.traceparent,
      ...call,
    });
  }
  const operations = results.filter((result) => result.operation !== undefined).length;
  return {
    statuses: results.map(({ status }) => status),
    ...((operations === 0 || operations === results.length) && { operation: operations > 0 }),
  };
};

const buffer: Verb = async ({ queue, partition, messages, options = {}, close, afterClose = [], ...rest }, { queen }) => {
  none(rest);
  const { linger, maxMessages, maxBytes, whenFull, ...unknown } = options;
  none(unknown);
  const settings: BufferOptions = { linger: optional(linger), maxMessages, maxBytes, whenFull };
  const inside = target(queen, { queue, partition }).buffer(settings);
  let error: unknown;
  const note = (thrown: unknown) => {
    error ??= thrown;
  };
  const receipts = [];
  for (const { payload, partition } of messages.map(outgoing)) {
    try {
      receipts.push(await inside.push(payload, { partition }));
    } catch (thrown) {
      note(thrown);
      break;
    }
  }
  await (close ? inside.close() : inside.flush()).catch(note);
  for (const message of afterClose) {
    await inside.push(message).then(() => {}, note);
  }
  const ends = await Promise.allSettled(receipts.map((receipt) => receipt.result));
  return { statuses: ends.map((end) => (end.status === 'fulfilled' ? end.value.status : 'failed')), error };
};

const pop: Verb = async (fields, { queen }) => {
  const { queue, partition, namespace, task, group, ...options } = fields;
  const { batch, partitions, wait, lease, autoAck, subscription, ...rest } = options;
  none(rest);
  const messages = await origin(queen, { queue, partition, namespace, task, group }).pop({
    batch,
    partitions,
    wait: optional(wait),
    lease: optional(lease),
    autoAck,
    subscription: subscribed(subscription),
  });
  return {
    data: messages.map(({ data }) => data),
    count: messages.length,
    partitions: [...new Set(messages.map((message) => message.partition))].sort(),
    traceparents: messages.map(({ traceparent }) => traceparent ?? null),
    messages,
  };
};

const ack: Verb = async ({ messages, status, error, index, ...rest }, around) => {
  none(rest);
  const chosen = pick({ messages, index }, around);
  if (chosen.length !== 1) {
    const results = await around.queen.ack(chosen, { status, error });
    return { success: results.map(({ success }) => success) };
  }
  const [message] = chosen as [Message<unknown>];
  const verbs: Record<string, () => Promise<unknown>> = {
    completed: () => message.ack(),
    failed: () => message.nack(error),
    retry: () => message.retry(),
    dlq: () => message.deadLetter(error),
  };
  await verbs[status]!();
  return {};
};

const renew: Verb = async ({ messages, seconds, ...rest }, around) => {
  none(rest);
  await pick({ messages }, around)[0]!.renew(seconds * 1000);
  return {};
};

const transaction: Verb = async ({ ack = [], push = [], commits = 1, ...rest }, around) => {
  none(rest);
  const transaction = around.queen.transaction();
  for (const one of ack) {
    const { messages, index, status, error, ...unknown } = typeof one === 'string' ? { messages: one } : (one as Json);
    none(unknown);
    transaction.ack(pick({ messages, index }, around), { status, error });
  }
  for (const { queue, partition, payload, transactionId, ...unknown } of push) {
    none(unknown);
    transaction.push(queue, [payload], { partition, transactionId });
  }
  for (let earlier = 1; earlier < commits; earlier++) {
    await transaction.commit().catch((error) => {
      if (!isTold(error)) {
        throw error;
      }
    });
  }
  await transaction.commit();
  return {};
};

const consume: Verb = async (fields, { queen }) => {
  const { queue, partition, namespace, task, group, mode, handler, stopAfter, decode, ...options } = fields;
  const { batch, partitions, concurrency, limit, idleTimeout, wait, lease, autoAck, renew, subscription, ...rest } =
    options;
  none(rest);
  const { do: what, text, ms, times = 1, ...unknown } = handler;
  none(unknown);
  if (decode !== undefined && decode !== 'object') {
    throw new Error(`the runner cannot decode ${decode}`);
  }
  const data: unknown[] = [];
  let calls = 0;
  let errorsTold = 0;
  let leaseLost: boolean | undefined;
  let stopAsked: number | undefined;
  const stop = () => {
    stopAsked ??= performance.now();
    // The caller that awaits the consumer gets the error.
    consumer.stop().catch(() => {});
  };

  const handlers: Record<string, (messages: readonly Message<unknown>[], signal: AbortSignal) => unknown> = {
    succeed: () => {},
    fail: () => Promise.reject(new Error(text)),
    failFirst: () => (calls <= times ? Promise.reject(new Error(text)) : undefined),
    succeedFirst: () => (calls > times ? Promise.reject(new Error(text)) : undefined),
    sleep: () => sleep(ms),
    manual: (messages) => Promise.all(messages.map((message) => message.ack())),
    hang: async (_, signal) => {
      if (calls === 1) {
        leaseLost = await sleep(10_000, false, { signal }).catch(() => true);
      }
    },
  };
  const chosen = handlers[what];
  if (!chosen) {
    throw new Error(`the runner knows no handler ${what}`);
  }
  const handle = async (messages: readonly Message<unknown>[], signal: AbortSignal) => {
    calls += 1;
    data.push(...messages.map((message) => message.data));
    if (typeof stopAfter === 'number' && data.length >= stopAfter) {
      stop();
    }
    await chosen(messages, signal);
  };

  const settings: ConsumeOptions = {
    batch,
    partitions,
    concurrency,
    limit,
    idleTimeout: optional(idleTimeout),
    wait: optional(wait),
    lease: optional(lease),
    autoAck,
    renew,
    subscription: subscribed(subscription),
    onError: () => {
      errorsTold += 1;
    },
  };
  const from = origin(queen, { queue, partition, namespace, task, group }, decode && object).consume(settings);
  const consumer =
    mode === 'each'
      ? from.each((message, { signal }) => handle([message], signal))
      : from.batches((messages, { signal }) => handle(messages, signal));
  if (typeof stopAfter === 'string') {
    void sleep(duration(stopAfter)).then(stop);
  }
  const summary = await consumer.done;
  return {
    ...summary,
    data,
    count: data.length,
    errorsTold,
    ...(leaseLost !== undefined && { leaseLost }),
    ...(stopAsked !== undefined && { stopTookMs: performance.now() - stopAsked }),
  };
};

function object(payload: unknown): unknown {
  if (typeof payload !== 'object' || payload === null || Array.isArray(payload)) {
    throw new Error('not an object');
  }
  return payload;
}

function deadLettersOf(queen: Queen, { queue, partition, group }: Json) {
  const part = target(queen, { queue, partition });
  return (group === undefined ? part : part.group(group)).deadLetters();
}

export const VERBS: Record<string, Verb> = {
  push,
  buffer,
  pop,
  ack,
  renew,
  transaction,
  consume,
  async configure({ queue, options, ...rest }, { queen }) {
    none(rest);
    await queen.admin.queues.configure(queue, options);
    return {};
  },
  async deadLetters({ queue, partition, group, ...rest }, { queen }) {
    none(rest);
    const { messages } = await deadLettersOf(queen, { queue, partition, group }).list();
    const errors = messages.map(({ error }) => error ?? null);
    return { data: messages.map(({ data }) => data), count: messages.length, errors };
  },
  async redrive({ queue, partition, group, dryRun, ...rest }, { queen }) {
    none(rest);
    const letters = deadLettersOf(queen, { queue, partition, group });
    if (dryRun) {
      return { count: await letters.count() };
    }
    const redrive = await letters.redrive();
    return { count: (await redrive.finished()).done };
  },
  async purge({ queue, partition, group, ...rest }, { queen }) {
    none(rest);
    return { count: await deadLettersOf(queen, { queue, partition, group }).purge() };
  },
  async seek({ queue, group, to, ...rest }, { queen }) {
    none(rest);
    await queen.admin.groups.seek(group, queue, to);
    return {};
  },
  async depth({ queue, group, ...rest }, { queen }) {
    none(rest);
    return { depth: (await queen.admin.queues.depth(queue, { group })).pending };
  },
  async close(rest, { queen }) {
    none(rest);
    await queen.close();
    return {};
  },
  async sleep(text) {
    await sleep(duration(text));
    return {};
  },
  async fault(fault, { control }) {
    await control('POST', '/faults', fault);
    return {};
  },
  async kill(broker, { control }) {
    await control('POST', '/kill', broker);
    return {};
  },
  async start(broker, { control }) {
    await control('POST', '/start', broker);
    return {};
  },
  async record({ path, method, broker, clear, ...rest }, { control }) {
    none(rest);
    const query = new URLSearchParams([path].flat().map((prefix) => ['path', prefix]));
    for (const [name, value] of Object.entries({ method, broker, clear })) {
      if (value !== undefined) {
        query.set(name, String(value));
      }
    }
    const requests = await control('GET', `/record?${query}`);
    return { requests, count: requests.length, statuses: requests.map((request: Json) => request.status) };
  },
};

/** An error of the client; anything else is an error of the runner. */
export function isTold(error: unknown): error is QueenError {
  return error instanceof QueenError;
}

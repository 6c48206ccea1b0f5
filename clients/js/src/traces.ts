/** Traces: notes about messages, written by consumers. */

import { checkName } from './checks.js';
import type { CallOptions, Http } from './http.js';
import { path, query } from './wire.js';

/** Identifies a message. Messages and results of a push both fit. */
export interface MessageKey {
  readonly partitionId: string;
  readonly transactionId: string;
}

export interface TraceOptions extends CallOptions {
  /** Names to find it by. */
  names?: string | readonly string[] | undefined;
  /** Type of the event; `info` by default. */
  event?: string | undefined;
  group?: string | undefined;
}

export interface Trace {
  readonly id: string;
  readonly event: string;
  readonly data: unknown;
  readonly names: readonly string[];
  readonly group: string | undefined;
  readonly createdAt: Date;
}

export interface NamedTrace extends Trace, MessageKey {
  readonly queue: string;
  readonly partition: string;
  readonly payload: unknown;
}

export interface TraceName {
  readonly name: string;
  readonly traces: number;
  readonly messages: number;
  readonly lastSeen: Date;
}

export interface Page {
  limit?: number | undefined;
  offset?: number | undefined;
}

interface WireTrace {
  id: string;
  event_type: string;
  data: unknown;
  consumer_group: string | null;
  created_at: string;
  trace_names: string[];
}

interface WireNamedTrace extends WireTrace {
  transaction_id: string;
  partition_id: string;
  queue_name: string;
  partition_name: string;
  message_payload: unknown;
}

interface WireTraceName {
  trace_name: string;
  trace_count: number;
  message_count: number;
  last_seen: string;
}

export class Traces {
  readonly #http: Http;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** Attaches a note to a message. Returns the id of the note. */
  add(message: MessageKey, data: unknown, options: TraceOptions = {}): Promise<string> {
    return addTrace(this.#http, message, data, options);
  }

  /** Notes about one message, oldest first. */
  async of({ partitionId, transactionId }: MessageKey, options?: CallOptions): Promise<Trace[]> {
    const where = path('/api/v1/traces', partitionId, transactionId);
    const { traces } = await this.#http.ask<{ traces: WireTrace[] }>('GET', where, options);
    return traces.map(readTrace);
  }

  /** Notes under a name. */
  async named(name: string, options: Page & CallOptions = {}): Promise<{ traces: NamedTrace[]; total: number }> {
    const { limit, offset, ...call } = options;
    const where = path('/api/v1/traces/by-name', checkName('name', name)) + query({ limit, offset });
    const { traces, total } = await this.#http.ask<{ traces: WireNamedTrace[]; total: number }>('GET', where, call);
    return {
      total,
      traces: traces.map((trace) => ({
        ...readTrace(trace),
        transactionId: trace.transaction_id,
        partitionId: trace.partition_id,
        queue: trace.queue_name,
        partition: trace.partition_name,
        payload: trace.message_payload,
      })),
    };
  }

  /** All names. */
  async names(options: Page & CallOptions = {}): Promise<{ names: TraceName[]; total: number }> {
    const { limit, offset, ...call } = options;
    const where = `/api/v1/traces/names${query({ limit, offset })}`;
    const told = await this.#http.ask<{ trace_names: WireTraceName[]; total: number }>('GET', where, call);
    const names = told.trace_names.map((name) => ({
      name: name.trace_name,
      traces: name.trace_count,
      messages: name.message_count,
      lastSeen: new Date(name.last_seen),
    }));
    return { names, total: told.total };
  }
}

export async function addTrace(
  http: Http,
  { transactionId, partitionId }: MessageKey,
  data: unknown,
  { names: traceNames, event: eventType, group: consumerGroup, ...options }: TraceOptions,
): Promise<string> {
  const body = { transactionId, partitionId, consumerGroup, traceNames, eventType, data };
  const { traceId } = await http.ask<{ traceId: string }>('POST', '/api/v1/traces', options, { body });
  return traceId;
}

function readTrace(trace: WireTrace): Trace {
  return {
    id: trace.id,
    event: trace.event_type,
    data: trace.data,
    names: trace.trace_names,
    group: trace.consumer_group ?? undefined,
    createdAt: new Date(trace.created_at),
  };
}

/** Transactions: acknowledgements and pushes that are committed together or not at all. */

import type { AckResult, AckStatus, Settlement } from './ack.js';
import { note, tellAhead, wireAck } from './ack.js';
import type { Route } from './brokers.js';
import { checkName, checkNoMore } from './checks.js';
import { badUse, QueenError } from './errors.js';
import type { Answer, CallOptions, Http } from './http.js';
import { callOptions } from './http.js';
import type { Message } from './message.js';
import type { Item, ItemOptions, PartitionOption, Payload, PushResult } from './push.js';
import { items, routeOf } from './push.js';
import type { Partition, Queue } from './queue.js';
import type { WireTransaction, WireTransactionAck, WireTransactionPush } from './wire.js';
import { asObject } from './wire.js';

/** `T` as inferred from the other arguments, and not from the payload. */
type Given<T> = [T][T extends unknown ? 0 : never];

export interface Committed {
  readonly id: string;
  /** In the order they were added. */
  readonly pushed: readonly PushResult[];
  readonly acked: readonly AckResult[];
}

/**
  * Collects operations; nothing is sent until `commit()`. It can be committed again after a missing response: its messages keep
  * their ids, and an unknown outcome stays unknown.
 */
export class Transaction {
  readonly #http: Http;
  readonly #settlements: Settlement[] = [];
  readonly #items: Item[] = [];
  #committed = false;
  /** An attempt of any `commit` may have been executed. */
  #unsure = false;

  /** @internal */
  constructor(http: Http) {
    this.#http = http;
  }

  /** Acknowledges one message or many. Their leases must still be held when the transaction commits. */
  ack(
    messages: Message<unknown> | readonly Message<unknown>[],
    { status = 'completed', error, ...rest }: { status?: AckStatus | undefined; error?: string | undefined } = {},
  ): this {
    checkNoMore(rest);
    for (const message of asList(messages)) {
      const settlement = { message, status, error };
      wireAck(settlement); // validates it here, where it is passed
      this.#settlements.push(settlement);
    }
    return this;
  }

  /** Pushes one message or many, to a queue or one of its partitions. An array means many. */
  push<T>(to: string, payload: T | readonly T[], options?: ItemOptions<T> & PartitionOption<T>): this;
  push<T>(
    to: Queue<T> | Partition<T>,
    payload: Payload<Given<T>>,
    options?: ItemOptions<T> & PartitionOption<T>,
  ): this;
  push(
    to: string | Queue<unknown> | Partition<unknown>,
    payload: unknown,
    options: ItemOptions<unknown> & PartitionOption<unknown> = {},
  ): this {
    const place = typeof to === 'string' ? { name: to, partitionName: undefined } : to;
    // A group has a name too.
    if (typeof place !== 'object' || place === null || !('partitionName' in place)) {
      throw badUse('push needs the name or handle of a queue, or the handle of a partition');
    }
    this.#items.push(...items(checkName('queue', place.name), place.partitionName, payload, options));
    return this;
  }

  /**
    * Commits all operations or none. Fails with `rolled_back` if nothing was executed, and with `outcome_unknown` if a response
    * to this or an earlier `commit` was lost: if it was executed its messages are not redelivered, otherwise they are. After any
    * other failure the outcome is open: commit again.
   */
  async commit(options: CallOptions = {}): Promise<Committed> {
    const { deadline, signal } = callOptions(options);
    if (this.#committed) {
      throw badUse('this transaction is already committed');
    }
    if (this.#settlements.length === 0 && this.#items.length === 0) {
      throw badUse('this transaction is empty');
    }
    signal?.throwIfAborted();
    await tellAhead(this.#settlements);
    let answer: Answer;
    let outcome: WireTransaction;
    try {
      answer = await this.#http.call({
        method: 'POST',
        path: '/api/v1/transaction',
        body: this.#body(),
        route: this.#route(),
        until: this.#http.until(deadline),
        signal,
      });
      outcome = asObject<WireTransaction>(answer.body);
    } catch (error) {
      // An abort is not a QueenError.
      this.#unsure ||= !(error instanceof QueenError) || error.unsure;
      throw error;
    }
    if (outcome.success) {
      this.#committed = true;
      return this.#results(outcome);
    }
    this.#unsure ||= answer.unsure;
    // An attempt that was executed has ended the leases, which is why a later one is refused.
    const unknown = this.#unsure && this.#settlements.length > 0;
    const { attempts, status } = answer;
    throw unknown
      ? new QueenError('outcome_unknown', `a response was lost, and then: ${outcome.error}`, { status, attempts })
      : new QueenError('rolled_back', `nothing was committed: ${outcome.error}`, { status, attempts });
  }

  #body(): string {
    const acks = this.#settlements.map((settlement) => {
      return JSON.stringify({ type: 'ack', ...wireAck(settlement), consumerGroup: settlement.message.group });
    });
    const pushes = this.#items.length > 0 ? [this.#pushes()] : [];
    const requiredLeases = [...new Set(this.#settlements.map(({ message }) => message.leaseId))];
    return `{"operations":[${[...acks, ...pushes].join(',')}],"requiredLeases":${JSON.stringify(requiredLeases)}}`;
  }

  #pushes(): string {
    return `{"type":"push","items":[${this.#items.map((item) => item.json).join(',')}]}`;
  }

  #route(): Route {
    const [first] = this.#settlements;
    return first ? { at: first.message.broker } : routeOf(this.#items);
  }

  #results(outcome: WireTransaction): Committed {
    const acks = outcome.results.filter((result): result is WireTransactionAck => result.type === 'ack');
    const pushes = outcome.results.filter((result): result is WireTransactionPush => result.type === 'push');
    const acked = acks.map((told): AckResult => {
      const { transactionId, success, dlq: deadLettered } = told;
      const error = told.error ?? undefined;
      return { transactionId, success, error, deadLettered, leaseReleased: false, repeated: false, operation: undefined };
    });
    acked.forEach((result, index) => note(this.#settlements[index]!, result));
    const pushed = pushes.map((told, index): PushResult => {
      return {
        id: told.messageId,
        transactionId: told.transactionId,
        status: told.duplicate ? 'duplicate' : 'queued',
        queue: told.queueName,
        partition: this.#items[index]!.partition,
        partitionId: told.partitionId,
        error: undefined,
        operation: undefined,
      };
    });
    return { id: outcome.transactionId, pushed, acked };
  }
}

function asList<T>(one: T | readonly T[]): readonly T[] {
  return (Array.isArray(one) ? one : [one]) as readonly T[];
}

/** What the client logs without a listener: a line per event, and the stack of a handler's error. Never a payload. */

import type { ErrorContext } from './batch.js';
import { now } from './clock.js';
import { badUse, QueenError, textOf } from './errors.js';
import type { Message } from './message.js';
import type { Source } from './pop.js';

/** A logger: `console`, or one of pino or winston. */
export interface Logger {
  /** Called for failures. */
  error(text: string): void;
  /** Called when something fails and is retried, or works again. */
  warn(text: string): void;
}

export function checkLogger(logger: Logger | undefined): Logger {
  // Looked up for each report, so that replaced methods of the console are used.
  const given = logger ?? console;
  if (typeof given?.error !== 'function' || typeof given.warn !== 'function') {
    throw badUse('logger must have the methods error and warn');
  }
  return given;
}

/** Exceptions of a logger are ignored: there is nowhere to report them. */
export function report(logger: Logger, level: keyof Logger, text: string): void {
  try {
    logger[level](`queen-client: ${text}`);
  } catch {
    // See above.
  }
}

/** `(queue orders, partition customer-7, transaction id 01…)`: for a batch the first message, and the count. */
function about([first, ...others]: readonly Message<unknown>[]): string {
  const { queue, partition, transactionId } = first!;
  const count = others.length === 0 ? '' : `, first of ${others.length + 1}`;
  return `(queue ${queue}, partition ${partition}, transaction id ${transactionId}${count})`;
}

/** What was thrown, with its stack and causes. */
function stackOf(thrown: unknown): string {
  const parts: string[] = [];
  // A chain of causes may be a cycle.
  for (const seen = new Set<unknown>(); thrown !== undefined && !seen.has(thrown); ) {
    seen.add(thrown);
    const error = thrown instanceof Error ? thrown : undefined;
    parts.push(error?.stack || (error ? `${error.name}: ${error.message}` : textOf(thrown)));
    thrown = error?.cause;
  }
  return parts.join('\ncaused by: ');
}

/** No response arrived: an outage, which `Outages` reports. */
export function isUnanswered(error: unknown): boolean {
  return error instanceof QueenError && error.status === undefined && (error.kind === 'network' || error.kind === 'timeout');
}

/** A recurring failure, reported when it starts and when it ends. */
class Trouble {
  #since: number | undefined;

  /** True if it starts. */
  begin(): boolean {
    const begins = this.#since === undefined;
    this.#since ??= now();
    return begins;
  }

  /** Its duration in seconds, if it ends. */
  end(): string | undefined {
    const since = this.#since;
    this.#since = undefined;
    return since === undefined ? undefined : ((now() - since) / 1000).toFixed(1);
  }
}

/** Tracks outages of brokers and of the token function. */
export class Outages {
  readonly #logger: Logger;
  readonly #troubles = new Map<string, Trouble>();

  constructor(logger: Logger) {
    this.#logger = logger;
  }

  silent(who: string, error: QueenError): void {
    const trouble = this.#troubles.get(who) ?? new Trouble();
    this.#troubles.set(who, trouble);
    if (trouble.begin()) {
      report(this.#logger, 'warn', `${who} does not respond: ${error.message}`);
    }
  }

  answered(who: string): void {
    const seconds = this.#troubles.get(who)?.end();
    if (seconds !== undefined) {
      report(this.#logger, 'warn', `${who} responds again after ${seconds} s`);
    }
  }
}

/** Logs the errors of a consumer without `onError`. */
export class ConsumerLog {
  readonly #logger: Logger;
  readonly #source: Source<unknown>;
  /** Pops that get a response and fail. */
  readonly #refusals = new Trouble();

  constructor(logger: Logger, source: Source<unknown>) {
    this.#logger = logger;
    this.#source = source;
  }

  failed(error: unknown, { during, messages }: ErrorContext): void {
    // Missing responses are reported by `Outages`, once.
    if ((during === 'pop' || during === 'renew') && isUnanswered(error)) {
      return;
    }
    switch (during) {
      case 'pop':
        if (this.#refusals.begin()) {
          report(this.#logger, 'warn', `pops are failing; retrying ${this.#where()}: ${textOf(error)}`);
        }
        return;
      case 'handle':
        return report(this.#logger, 'error', `handler failed ${about(messages)}: ${stackOf(error)}`);
      case 'ack':
        return report(this.#logger, 'error', `acknowledgement failed ${about(messages)}: ${textOf(error)}`);
      case 'renew':
        return report(this.#logger, 'error', `renewal failed ${about(messages)}: ${textOf(error)}`);
    }
  }

  popWorked(): void {
    const seconds = this.#refusals.end();
    if (seconds !== undefined) {
      report(this.#logger, 'warn', `pops work again after ${seconds} s ${this.#where()}`);
    }
  }

  #where(): string {
    const { queue, namespace, task } = this.#source;
    const given = Object.entries({ queue, namespace, task }).filter(([, name]) => name !== undefined);
    return `(${given.map((pair) => pair.join(' ')).join(', ')})`;
  }
}

/** What the client says by itself, when nobody listens: a line per event, and the stack of what a handler threw. Never a payload. */

import type { ErrorContext } from './batch.js';
import { now } from './clock.js';
import { badUse, QueenError, textOf } from './errors.js';
import type { Message } from './message.js';
import type { Source } from './pop.js';

/** Where reports go. `console` is one, and so are the loggers of pino and winston. */
export interface Logger {
  /** Something has failed. */
  error(text: string): void;
  /** Something fails and is tried again, or works again. */
  warn(text: string): void;
}

export function checkLogger(logger: Logger | undefined): Logger {
  // Asked for when there is something to say: who replaces the methods of the console means them.
  const given = logger ?? console;
  if (typeof given?.error !== 'function' || typeof given.warn !== 'function') {
    throw badUse('logger must have the methods error and warn');
  }
  return given;
}

/** A logger that throws takes nothing with it: there is nowhere to report that. */
export function report(logger: Logger, level: keyof Logger, text: string): void {
  try {
    logger[level](`queen-client: ${text}`);
  } catch {
    // See above.
  }
}

/** `(queue orders, partition customer-7, transaction id 01…)`: of a batch the first, and how many there are. */
function about([first, ...others]: readonly Message<unknown>[]): string {
  const { queue, partition, transactionId } = first!;
  const count = others.length === 0 ? '' : `, first of ${others.length + 1}`;
  return `(queue ${queue}, partition ${partition}, transaction id ${transactionId}${count})`;
}

/** What was thrown, with its stack and what caused it. */
function stackOf(thrown: unknown): string {
  const parts: string[] = [];
  // A chain of causes may be a ring.
  for (const seen = new Set<unknown>(); thrown !== undefined && !seen.has(thrown); ) {
    seen.add(thrown);
    const error = thrown instanceof Error ? thrown : undefined;
    parts.push(error?.stack || (error ? `${error.name}: ${error.message}` : textOf(thrown)));
    thrown = error?.cause;
  }
  return parts.join('\ncaused by: ');
}

/** No answer came at all: an outage, which is reported by `Outages`. */
export function isUnanswered(error: unknown): boolean {
  return error instanceof QueenError && error.status === undefined && (error.kind === 'network' || error.kind === 'timeout');
}

/** Something that fails again and again, reported when that begins and when it ends. */
class Trouble {
  #since: number | undefined;

  /** True if it begins. */
  begin(): boolean {
    const begins = this.#since === undefined;
    this.#since ??= now();
    return begins;
  }

  /** How long it took, in seconds, if it ends. */
  end(): string | undefined {
    const since = this.#since;
    this.#since = undefined;
    return since === undefined ? undefined : ((now() - since) / 1000).toFixed(1);
  }
}

/** Who does not answer: a broker, or the function that gives tokens. */
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
      report(this.#logger, 'warn', `${who} does not answer: ${error.message}`);
    }
  }

  answered(who: string): void {
    const seconds = this.#troubles.get(who)?.end();
    if (seconds !== undefined) {
      report(this.#logger, 'warn', `${who} answers again after ${seconds} s`);
    }
  }
}

/** What a consumer reports that has no `onError`. */
export class ConsumerLog {
  readonly #logger: Logger;
  readonly #source: Source<unknown>;
  /** Pops that are answered, and fail. */
  readonly #refusals = new Trouble();

  constructor(logger: Logger, source: Source<unknown>) {
    this.#logger = logger;
    this.#source = source;
  }

  failed(error: unknown, { during, messages }: ErrorContext): void {
    // Who does not answer is reported by `Outages`, once.
    if ((during === 'pop' || during === 'renew') && isUnanswered(error)) {
      return;
    }
    switch (during) {
      case 'pop':
        if (this.#refusals.begin()) {
          report(this.#logger, 'warn', `pops fail and are tried again ${this.#where()}: ${textOf(error)}`);
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

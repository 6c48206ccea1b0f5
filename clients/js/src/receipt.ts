/** Receipts for messages in a buffer. */

import { now } from './clock.js';
import type { QueenError } from './errors.js';
import type { Item, PushResult } from './push.js';

export class Entry {
  readonly item: Item;
  readonly bytes: number;
  readonly since = now();
  readonly result: Promise<PushResult>;
  resolve!: (result: PushResult) => void;
  reject!: (error: QueenError) => void;
  /** A failure is handled by the receipt's holder. */
  awaited = false;

  constructor(item: Item, bytes: number) {
    this.item = item;
    this.bytes = bytes;
    this.result = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    // An unobserved receipt must not end the process; flush and close report its failure.
    this.result.catch(() => {});
  }
}

/** The receipt of a message in the buffer. */
export class Receipt {
  readonly transactionId: string;
  readonly #entry: Entry;
  readonly #look: () => void;

  /** @internal */
  constructor(entry: Entry, look: () => void) {
    this.#entry = entry;
    this.#look = look;
    this.transactionId = entry.item.transactionId;
  }

  /**
    * The result. Reading this property takes responsibility for a failure: `onError`, `flush` and `close` no longer report it,
    * and an unhandled rejection behaves like any other.
   */
  get result(): Promise<PushResult> {
    this.#look();
    // A separate promise: a failure of the entry's own promise counts as handled.
    return this.#entry.result.then((result) => result);
  }
}

/** A message in a buffer, and the way to learn what became of it. */

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
  /** Somebody takes care of its failure. */
  awaited = false;

  constructor(item: Item, bytes: number) {
    this.item = item;
    this.bytes = bytes;
    this.result = new Promise((resolve, reject) => {
      this.resolve = resolve;
      this.reject = reject;
    });
    // A receipt that nobody looks at must not end the process; flush and close tell.
    this.result.catch(() => {});
  }
}

/** For a message that is in the buffer. */
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
   * What became of it. Who asks for this takes care of its failure: `onError`, `flush` and `close` do not tell of it any
   * more, and a rejection that nobody handles is as loud as any other.
   */
  get result(): Promise<PushResult> {
    this.#look();
    // A promise of its own: a failure of the entry's counts as handled.
    return this.#entry.result.then((result) => result);
  }
}

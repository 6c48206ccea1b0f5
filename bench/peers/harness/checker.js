// Compares confirmed messages with delivered ones. Knows no peer and no clock.

import { LANES } from "./message.js";

export class Checker {
  confirmed = 0;
  /** Deliveries of messages not seen before. */
  delivered = 0;
  doubled = 0;
  /** Delivered after a later one of the same producer and lane. */
  disordered = 0;
  /** By producer and lane: the messages seen, and the highest. */
  #seen = new Map();

  saw({ producer, lane, seq }) {
    const key = producer * LANES + lane;
    let stream = this.#seen.get(key);
    if (!stream) this.#seen.set(key, (stream = { seqs: new Set(), last: -1 }));
    if (stream.seqs.has(seq)) {
      this.doubled += 1;
      return;
    }
    stream.seqs.add(seq);
    this.delivered += 1;
    if (seq < stream.last) this.disordered += 1;
    else stream.last = seq;
  }

  /** `left` is what the peer still holds after everything was acknowledged. */
  violations(ordered, left) {
    const counts = {
      lost: Math.max(this.confirmed - this.delivered, 0),
      unknown: Math.max(this.delivered - this.confirmed, 0),
      doubled: this.doubled,
      "out of order": ordered ? this.disordered : 0,
      "left in the queue": left,
    };
    return Object.entries(counts)
      .filter(([, count]) => count > 0)
      .map(([what, count]) => `${count} ${what}`);
  }
}

// The messages: JSON of 256 bytes with the sender, lane, sequence number and time. Numbers have a fixed width, so that the padding
// can be computed once.

export const LANES = 64;

const SEQ_BASE = 100_000_000;
const PADDING = "x".repeat(256 - JSON.stringify({ p: 10, l: 10, s: SEQ_BASE, t: now(), x: "" }).length);

/** `sent` is for open loops: the scheduled send time. */
export function message(producer, lane, seq, sent = now()) {
  return { p: producer + 10, l: lane + 10, s: SEQ_BASE + seq, t: sent, x: PADDING };
}

export function parts({ p, l, s, t }) {
  return { producer: p - 10, lane: l - 10, seq: s - SEQ_BASE, sent: t };
}

/** In whole microseconds, with 16 digits. */
export function now() {
  return Math.round((performance.timeOrigin + performance.now()) * 1000);
}

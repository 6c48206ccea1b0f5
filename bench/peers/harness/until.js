// Waits for a peer that settles a little later.

import { setTimeout as sleep } from "node:timers/promises";

const PATIENCE_MS = 5000;
const POLL_MS = 50;

/** Polls until the result is as expected, or the time is over; returns the last result. */
export async function until(ask, wished) {
  const deadline = performance.now() + PATIENCE_MS;
  for (;;) {
    const answer = await ask();
    if (wished(answer) || performance.now() > deadline) return answer;
    await sleep(POLL_MS);
  }
}

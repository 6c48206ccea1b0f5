import assert from "node:assert/strict";
import { test } from "node:test";

import { Checker } from "./checker.js";
import { Histogram } from "./histogram.js";
import { message, parts } from "./message.js";

test("a message has 256 bytes and says what it was made of", () => {
  for (const [producer, lane, seq] of [[0, 0, 0], [15, 63, 1_234_567]]) {
    const made = message(producer, lane, seq);
    assert.equal(JSON.stringify(made).length, 256);
    assert.deepEqual(parts(made), { producer, lane, seq, sent: made.t });
  }
});

test("a quantile is within one per cent", () => {
  const histogram = new Histogram();
  assert.equal(histogram.quantile(0.5), null);
  for (let ms = 1; ms <= 1000; ms += 1) histogram.add(ms);
  assert.ok(Math.abs(histogram.quantile(0.5) - 500) < 5);
  assert.ok(Math.abs(histogram.quantile(0.99) - 990) < 10);
});

test("lost, doubled and disordered messages are violations", () => {
  const checker = new Checker();
  checker.confirmed = 4;
  for (const seq of [0, 2, 1, 2]) checker.saw({ producer: 1, lane: 1, seq });
  assert.deepEqual(checker.violations(true, 0), ["1 lost", "1 doubled", "1 out of order"]);
  assert.deepEqual(checker.violations(false, 3), ["1 lost", "1 doubled", "3 left in the queue"]);
  const fine = new Checker();
  fine.confirmed = 1;
  fine.saw({ producer: 0, lane: 0, seq: 0 });
  assert.deepEqual(fine.violations(true, 0), []);
});

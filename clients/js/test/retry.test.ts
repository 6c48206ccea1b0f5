import assert from 'node:assert/strict';
import { test } from 'node:test';

import { QueenError, kindOfStatus } from '#dist/errors.js';
import { backoff, isRetryable, readRetryAfter, retryDelay } from '#dist/retry.js';

const RULES = { retryDelay: 100, maxRetryDelay: 30_000, retryOn429: true, honorRetryAfter: true };

function of(status: number, retryAfter?: number): QueenError {
  return new QueenError(kindOfStatus(status), 'text', { status, retryAfter });
}

test('what may pass is sent again, what will not is not', () => {
  for (const status of [429, 500, 502, 503, 504]) {
    assert.ok(isRetryable(of(status), RULES), `${status}`);
  }
  for (const status of [400, 401, 403, 404, 405, 408, 409, 413, 415, 431]) {
    assert.ok(!isRetryable(of(status), RULES), `${status}`);
  }
  assert.ok(isRetryable(new QueenError('network', ''), RULES));
  assert.ok(isRetryable(new QueenError('timeout', ''), RULES));
  assert.ok(!isRetryable(of(429), { ...RULES, retryOn429: false }));
});

test('the backoff doubles up to its limit and is spread over all of it', () => {
  assert.deepEqual([1, 2, 3, 4].map((failures) => backoff(failures, RULES, 1)), [100, 200, 400, 800]);
  assert.equal(backoff(50, RULES, 1), 30_000);
  assert.equal(backoff(5000, RULES, 1), 30_000);
  assert.equal(backoff(3, RULES, 0.5), 200);
  assert.equal(backoff(3, RULES, 0), 0);
});

test('Retry-After is honoured up to the longest delay, unless it is switched off', () => {
  assert.equal(retryDelay(of(429, 2_000), 1, RULES, 0), 2_000);
  assert.equal(retryDelay(of(503, 90_000), 1, RULES, 0), 30_000);
  assert.equal(retryDelay(of(429, 2_000), 1, { ...RULES, honorRetryAfter: false }, 1), 100);
  // Otherwise the request would be repeated in a busy loop.
  assert.equal(retryDelay(of(429, 0), 3, RULES, 1), 400);
});

test('Retry-After is whole seconds or a date, and anything else is none', () => {
  const now = Date.parse('2026-01-01T00:00:00Z');
  assert.equal(readRetryAfter('5', now), 5_000);
  assert.equal(readRetryAfter(' 0 ', now), 0);
  assert.equal(readRetryAfter('Thu, 01 Jan 2026 00:00:07 GMT', now), 7_000);
  assert.equal(readRetryAfter('Wed, 31 Dec 2025 00:00:00 GMT', now), 0);
  for (const text of [null, '', '-1', '1.5', 'soon']) {
    assert.equal(readRetryAfter(text, now), undefined, `${text}`);
  }
});

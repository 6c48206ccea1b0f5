import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Queen } from 'queen-client';

import { failing, QUICK, until } from './support/expect.js';
import { Fake, popped } from './support/fake.js';
import type { Reply } from './support/fake.js';

const REFUSED = { status: 200, body: { transactionId: 't', success: false, error: 'Invalid or expired lease', results: [] } };

/** A broker with a message that gives these responses to transactions, and then refuses them. */
function broker(replies: Reply[]) {
  return Fake.start((asked) => (asked.method === 'GET' ? popped({ a: [1] }) : (replies.shift() ?? REFUSED)));
}

test('a transaction with a lost answer is never reported as rolled back', async () => {
  const replies: Reply[] = [];
  await using fake = await broker(replies);
  const queen = new Queen({ url: fake.url, ...QUICK });
  const [message] = await queen.queue('q').group('g').pop();
  const transaction = () => queen.transaction().ack(message!).push('r', 1);
  await assert.rejects(transaction().commit(), failing('rolled_back', { attempts: 1 }));
  replies.push('close');
  await assert.rejects(transaction().commit(), failing('outcome_unknown', { attempts: 2 }));
  replies.push('close');
  // Without acknowledgements the ids decide: had it been executed, a retry would succeed.
  await assert.rejects(queen.transaction().push('r', 1).commit(), failing('rolled_back', { attempts: 2 }));
  const [, first] = fake.asked;
  assert.deepEqual(first!.body.requiredLeases, ['lease']);
});

test('what an earlier commit has left open stays open', async () => {
  const replies: Reply[] = [];
  await using fake = await broker(replies);
  const queen = new Queen({ url: fake.url, retryDelay: 1 });
  const [message] = await queen.queue('q').group('g').pop();
  const transaction = () => queen.transaction().ack(message!).push('r', 1);

  const late = transaction();
  replies.push('close', { status: 503, headers: { 'Retry-After': '20' } });
  await assert.rejects(late.commit({ deadline: 10_000 }), failing('unavailable', { attempts: 2 }));
  await assert.rejects(late.commit(), failing('outcome_unknown', { attempts: 1 }));
  await assert.rejects(late.commit(), failing('outcome_unknown', { attempts: 1 }));

  const forbidden = transaction();
  replies.push('close', { status: 403 });
  await assert.rejects(forbidden.commit(), failing('forbidden', { attempts: 2 }, /earlier attempt may have been executed/));
  await assert.rejects(forbidden.commit(), failing('outcome_unknown', { attempts: 1 }));

  const aborted = transaction();
  const before = fake.asked.length;
  const controller = new AbortController();
  replies.push('silence');
  const commit = aborted.commit({ signal: controller.signal });
  await until(() => fake.asked.length > before);
  controller.abort(new Error('enough'));
  await assert.rejects(commit, /enough/);
  await assert.rejects(aborted.commit(), failing('outcome_unknown', { attempts: 1 }));
});

test('a commit that was turned away has left nothing open', async () => {
  await using fake = await broker([{ status: 429 }]);
  const queen = new Queen({ url: fake.url, retryOn429: false });
  const [message] = await queen.queue('q').group('g').pop();
  const transaction = queen.transaction().ack(message!);
  const over = AbortSignal.abort(new Error('enough'));
  await assert.rejects(transaction.commit({ signal: over }), /enough/);
  await assert.rejects(transaction.commit(), failing('rate_limited'));
  await assert.rejects(transaction.commit(), failing('rolled_back'));
});

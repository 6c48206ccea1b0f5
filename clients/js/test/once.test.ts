import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Queen } from 'queen-client';

import { failing, QUICK } from './support/expect.js';
import { Fake } from './support/fake.js';
import type { Reply } from './support/fake.js';

const KEY = { partitionId: 'p', transactionId: 't' };

/** Calls that would do harm if they were executed twice. */
const CALLS: Record<string, (queen: Queen) => Promise<unknown>> = {
  'a pop with autoAck': (queen) => queen.queue('q').pop({ autoAck: true }),
  redrive: (queen) => queen.queue('q').deadLetters().redrive(),
  purge: (queen) => queen.queue('q').deadLetters().purge(),
  'messages.retry': (queen) => queen.admin.messages.retry(KEY),
  'messages.delete': (queen) => queen.admin.messages.delete(KEY),
  'queues.clear': (queen) => queen.admin.queues.clear('q'),
  'queues.delete': (queen) => queen.admin.queues.delete('q'),
  'groups.delete': (queen) => queen.admin.groups.delete('g'),
  'groups.seek': (queen) => queen.admin.groups.seek('g', 'q', 'end'),
  'groups.seek of a partition': (queen) => queen.admin.groups.seek('g', 'q', 'end', { partition: 'p' }),
};

const DONE = { status: 200, body: { replayedAs: {}, messages: [] } };

for (const [name, call] of Object.entries(CALLS)) {
  test(`${name} is not retried once it may have been executed`, async () => {
    const lost: Reply[] = ['close', { status: 500 }, { status: 504 }];
    for (const reply of lost) {
      await using fake = await Fake.start(() => reply);
      const failed = failing('outcome_unknown', { attempts: 1 }, /it may have been executed/);
      await assert.rejects(call(new Queen({ url: fake.url, ...QUICK })), failed);
      assert.equal(fake.asked.length, 1);
    }
  });

  test(`${name} is retried when nothing was executed`, async () => {
    const replies: Reply[] = [{ status: 429 }, { status: 503 }];
    await using fake = await Fake.start(() => replies.shift() ?? DONE);
    const gone = await Fake.start(() => 'close');
    await gone[Symbol.asyncDispose]();
    // Whichever of the two is used first.
    for (const urls of [[fake.url], [gone.url, fake.url], [fake.url, gone.url]]) {
      await call(new Queen({ urls, ...QUICK }));
    }
    assert.equal(fake.asked.length, 5);
  });
}

test('a certain refusal is reported as such, and not as unknown', async () => {
  await using fake = await Fake.start(() => ({ status: 404 }));
  await assert.rejects(CALLS.redrive!(new Queen(fake.url)), failing('not_found', { attempts: 1 }));
});

test('a question after dead letters is asked again', async () => {
  const replies: Reply[] = ['close', { status: 500 }];
  await using fake = await Fake.start(() => replies.shift() ?? { status: 200, body: { total: 3 } });
  assert.equal(await new Queen({ url: fake.url, ...QUICK }).queue('q').deadLetters().count(), 3);
});

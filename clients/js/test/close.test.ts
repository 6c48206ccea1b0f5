import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Queen, QueenError } from 'queen-client';

import { failing, gate, until } from './support/expect.js';
import { acked, Fake, popped, pushed } from './support/fake.js';
import type { Asked, Reply } from './support/fake.js';

function payloads(asked: Asked): unknown[] {
  return asked.body.items.map((item: { payload: unknown }) => item.payload);
}

test('closing the client flushes its buffers', async () => {
  await using fake = await Fake.start(pushed);
  const queen = new Queen(fake.url);
  const buffer = queen.queue<number>('q').buffer({ linger: 60_000 });
  const receipt = await buffer.push(1);
  await queen.close();
  assert.equal((await receipt.result).status, 'queued');
});

test('a handler that still runs while the client closes may push to a buffer', async () => {
  await using fake = await Fake.start((asked) => {
    if (asked.method === 'GET') {
      return popped({ a: [1] });
    }
    return asked.path === '/api/v1/push' ? pushed(asked) : acked(asked);
  });
  const queen = new Queen(fake.url);
  const buffer = queen.queue<string>('results').buffer({ linger: 60_000 });
  const { open, opened } = gate();
  let running = false;
  queen.queue('q').consume({}, async () => {
    running = true;
    await opened;
    await buffer.push('result');
  });
  await until(() => running);
  const closed = queen.close();
  // No background work can be started anymore, because it would never be closed.
  assert.throws(() => queen.queue('q').buffer(), failing('closed'));
  assert.throws(() => queen.queue('q').consume({}, () => {}), failing('closed'));
  open();
  await closed;
  const told = fake.asked.filter(({ method }) => method === 'POST').map(({ path, body }) => [path, body.status]);
  assert.deepEqual(told, [['/api/v1/ack', 'completed'], ['/api/v1/push', undefined]]);
  await assert.rejects(buffer.push('late'), failing('closed'));
});

test('closing the client reports undelivered messages', async () => {
  const forbidden: Reply = { status: 403, body: { error: 'not yours' } };
  await using fake = await Fake.start(() => forbidden);
  const queen = new Queen(fake.url);
  for (const name of ['one', 'two']) {
    await queen.queue<string>(name).buffer({ linger: 60_000 }).push(name);
  }
  const all = (error: QueenError) => {
    assert.deepEqual(error.undelivered?.map(({ payload }) => payload).sort(), ['one', 'two']);
    assert.equal((error.cause as AggregateError).errors.length, 2);
    return failing('forbidden', {}, /not yours/)(error);
  };
  await assert.rejects(queen.close(), all);
  await assert.rejects(queen.close(), all);
});

test('a call that is under way fails when the client closes, and leaves no connection behind', async () => {
  let hungUp = 0;
  await using fake = await Fake.start(() => 'silence', () => (hungUp += 1));
  const queen = new Queen(fake.url);
  const calls = [queen.queue('q').pop({ wait: 600_000 }), queen.queue('q').push(1)];
  const ends = Promise.allSettled(calls);
  await until(() => fake.asked.length === 2);
  await queen.close();
  await Promise.all(calls.map((call) => assert.rejects(call, failing('closed'))));
  await ends;
  await until(() => hungUp === 2);
});

test('failures in several rounds of closing a buffer are reported as one', async () => {
  const { open, opened } = gate();
  await using fake = await Fake.start(async (asked) => {
    await opened;
    return payloads(asked).includes(1) ? pushed(asked) : { status: 403 };
  });
  const buffer = new Queen(fake.url).queue<number>('q').buffer({ maxMessages: 2, linger: 0, batchMessages: 1 });
  await buffer.push(1);
  await buffer.push(2);
  // There is room only for the first of them, because undelivered messages take up room as well.
  const waiting = [3, 4].map((number) => buffer.push(number));
  const ends = Promise.allSettled(waiting);
  const closed = buffer.close();
  open();
  await assert.rejects(closed, (error: QueenError) => {
    assert.deepEqual(error.undelivered?.map(({ payload }) => payload), [2, 3]);
    return failing('forbidden')(error);
  });
  assert.deepEqual((await ends).map(({ status }) => status), ['fulfilled', 'rejected']);
  await assert.rejects(waiting[1]!, failing('buffer_full'));
});

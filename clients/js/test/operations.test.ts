import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Queen, QueenError } from 'queen-client';

import { failing } from './support/expect.js';
import { acked, Fake, popped, pushed } from './support/fake.js';
import type { Asked, Reply } from './support/fake.js';

const TICKET = { queuePosition: 12, estimatedWait: 1, reason: 'system_busy' };

/** Responds to a push with an operation for each partition. */
function deferred(asked: Asked): Reply {
  const { body } = pushed(asked) as { body: object[] };
  const results = body.map((result, index) => {
    return { ...result, ...TICKET, operationId: `o-${asked.body.items[index].partition ?? 'Default'}` };
  });
  return { status: 202, body: results };
}

/** Responds to a query of an operation. */
function state(asked: Asked, states: Record<string, string>, result: unknown = null): Reply {
  const status = states[asked.path.split('/').pop()!]!;
  return { status: 200, body: { status, result, error_message: status === 'failed' ? 'no room' : null } };
}

function statuses(error: QueenError): unknown[] | undefined {
  return error.results?.map((result) => ('status' in result ? result.status : result.success));
}

test('a deferred push is handed out as it is, or awaited', async () => {
  const states = ['pending', 'processing', 'completed'];
  await using fake = await Fake.start((asked) => {
    if (asked.method !== 'GET') {
      return deferred(asked);
    }
    const next = states.shift()!;
    const { transactionId } = fake.asked[0]!.body.items[0];
    const result = [{ message_id: 'kept', transaction_id: transactionId, status: 'duplicate' }];
    return state(asked, { 'o-Default': next }, next === 'completed' ? result : null);
  });
  const operation = { id: 'o-Default', position: 12, estimatedWait: 1_000, reason: 'system_busy' };
  const [accepted] = await new Queen(fake.url).queue('q').push(1);
  assert.deepEqual([accepted!.status, accepted!.operation], ['queued', operation]);
  fake.asked.length = 0;
  const queen = new Queen({ url: fake.url, queuedOperationBehavior: 'poll' });
  const [done] = await queen.queue('q').push(1);
  assert.deepEqual([done!.status, done!.id, done!.operation], ['duplicate', 'kept', operation]);
  states.push('pending', 'failed');
  await assert.rejects(queen.queue('q').push(1), failing('operation_failed', { operation: 'o-Default' }));
  states.push(...Array(50).fill('pending'));
  await assert.rejects(queen.queue('q').push(1, { deadline: 300 }), failing('timeout', { operation: 'o-Default' }));
});

test('an operation that fails says nothing about the others', async () => {
  await using fake = await Fake.start((asked) => {
    return asked.method === 'GET' ? state(asked, { 'o-a': 'failed', 'o-b': 'completed' }) : deferred(asked);
  });
  const queue = new Queen({ url: fake.url, queuedOperationBehavior: 'poll' }).queue<string>('q');
  await assert.rejects(queue.push(['a', 'b', 'a'], { partition: (name) => name }), (error: QueenError) => {
    assert.deepEqual(statuses(error), ['failed', 'queued', 'failed']);
    return failing('operation_failed', { operation: 'o-a' }, /no room/)(error);
  });

  await using buffer = queue.buffer({ linger: 60_000, lanes: 1 });
  const receipts = await Promise.all(['a', 'b'].map((partition) => buffer.push(partition, { partition })));
  await assert.rejects(buffer.flush(), (error: QueenError) => {
    assert.deepEqual(error.undelivered?.map(({ payload }) => payload), ['a']);
    return failing('operation_failed')(error);
  });
  await assert.rejects(receipts[0]!.result, failing('operation_failed'));
  assert.equal((await receipts[1]!.result).status, 'queued');
});

test('a 202 that is one object tells operations by partition', async () => {
  const operations = ['a1', 'a2', 'b1'].map((id) => ({ operationId: id, queue: 'q', partition: id[0] }));
  const result = [{ message_id: 'kept', transaction_id: 't', status: 'queued' }];
  await using fake = await Fake.start((asked) => {
    return asked.method === 'GET'
      ? state(asked, { a1: 'completed', a2: 'completed', b1: 'failed' }, result)
      : { status: 202, body: { status: 'queued', operationId: 'a1', ...TICKET, operations } };
  });
  const by = { partition: (name: string) => name };
  const results = await new Queen(fake.url).queue<string>('q').push(['a', 'a', 'b', 'c'], by);
  // Without an operation, it was executed at once.
  assert.deepEqual(results.map(({ operation }) => operation?.id), ['a1', 'a1', 'b1', undefined]);
  const queue = new Queen({ url: fake.url, queuedOperationBehavior: 'poll' }).queue<string>('q');
  // Two operations of one partition have a result each.
  const both = await queue.push(['a', 'a'], by);
  assert.deepEqual(both.map(({ id }) => id), ['kept', 'kept']);
  await assert.rejects(queue.push(['b', 'c'], by), (error: QueenError) => {
    assert.deepEqual(statuses(error), ['failed', 'queued']);
    return failing('operation_failed', { operation: 'b1' })(error);
  });
});

test('an acknowledgement whose operation fails is refused, those of other operations are not', async () => {
  await using fake = await Fake.start((asked) => {
    if (asked.path.startsWith('/api/v1/operations/')) {
      return state(asked, { 'o-a': 'failed', 'o-b': 'completed' });
    }
    if (asked.method === 'GET') {
      return popped({ a: [1], b: [2] });
    }
    const { body } = acked(asked) as { body: { transactionId: string }[] };
    return { status: 202, body: body.map((ack) => ({ ...ack, ...TICKET, operationId: `o-${ack.transactionId[0]}` })) };
  });
  const queen = new Queen({ url: fake.url, queuedOperationBehavior: 'poll' });
  const messages = await queen.queue('q').group('g').pop({ batch: 2, partitions: 2 });
  const results = await queen.ack(messages);
  assert.deepEqual(results.map(({ success }) => success), [false, true]);
  assert.match(results[0]!.error!, /no room/);
  await assert.rejects(messages[0]!.ack(), failing('operation_failed', { operation: 'o-a' }, /no room/));
  await messages[1]!.ack();
});

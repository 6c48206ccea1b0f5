import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Queen, QueenError } from 'queen-client';
import type { Parse } from 'queen-client';

import { Fake, popped } from './support/fake.js';

function badUse(part: RegExp) {
  return (error: unknown) => {
    assert.ok(error instanceof QueenError, String(error));
    assert.equal(error.kind, 'bad_use', error.message);
    assert.match(error.message, part);
    return true;
  };
}

test('a client needs URLs with a scheme, and sensible times', () => {
  assert.throws(() => new Queen([]), badUse(/give the URL/));
  assert.throws(() => new Queen({}), badUse(/give the URL/));
  assert.throws(() => new Queen(undefined as unknown as string), badUse(/give the URL/));
  assert.throws(() => new Queen({ urls: 'http://a' as unknown as string[] }), badUse(/list/));
  assert.throws(() => new Queen({ url: 'http://a', urls: ['http://b'] }), badUse(/not both/));
  assert.throws(() => new Queen('localhost:6632'), badUse(/http:\/\//));
  assert.throws(() => new Queen('http://'), badUse(/no URL/));
  assert.throws(() => new Queen('http://user:secret@host'), (error: QueenError) => !error.message.includes('secret'));
  assert.throws(() => new Queen({ url: 'http://a', deadline: -1 }), badUse(/deadline/));
  assert.throws(() => new Queen({ url: 'http://a', deadline: 0 }), badUse(/deadline/));
  assert.throws(() => new Queen({ url: 'http://a', retryDelay: NaN }), badUse(/retryDelay/));
  assert.throws(() => new Queen({ url: 'http://a', queuedOperationBehavior: 'wait' as 'poll' }), badUse(/one of/));
  new Queen('http://a/below/');
});

test('names are texts of 1 to 255 characters, as the broker counts them', () => {
  const queen = new Queen('http://127.0.0.1:1');
  for (const name of ['', 'a'.repeat(256), 'a\0b', '\ud800', undefined as unknown as string]) {
    assert.throws(() => queen.queue(name), badUse(/queue/));
    assert.throws(() => queen.queue('q').partition(name), badUse(/partition/));
    assert.throws(() => queen.queue('q').group(name), badUse(/group/));
  }
  queen.queue('\u{1f41d}'.repeat(255));
});

test('what makes no sense is refused before anything is sent', async () => {
  await using fake = await Fake.start(() => popped({ a: [1] }));
  const queen = new Queen(fake.url);
  const queue = queen.queue<unknown>('q');
  const group = queue.group('g');
  await assert.rejects(queue.pop({ batch: 0 }), badUse(/batch/));
  await assert.rejects(queue.pop({ batch: 1.5 }), badUse(/batch/));
  await assert.rejects(queue.pop({ partitions: 0 }), badUse(/partitions/));
  await assert.rejects(queue.pop({ wait: -1 }), badUse(/wait/));
  await assert.rejects(queue.pop({ lease: 0 }), badUse(/lease/));
  await assert.rejects(queue.pop({ subscription: 'new' }), badUse(/group/));
  await assert.rejects(group.pop({ subscription: 'old' as 'new' }), badUse(/subscription/));
  await assert.rejects(queen.queue('..').pop(), badUse(/path/));
  await assert.rejects(queue.push(undefined), badUse(/JSON/));
  await assert.rejects(queue.push(1n), badUse(/JSON/));
  await assert.rejects(queue.push([1, 2], { transactionId: 'one' }), badUse(/function/));
  await assert.rejects(queue.push(1, { transactionId: '' }), badUse(/transactionId/));
  await assert.rejects(queue.push(1, { deadline: -5 }), badUse(/deadline/));
  await assert.rejects(queue.partition('a').push(1, { partition: 'b' } as object), badUse(/already/));
  await assert.rejects(queen.transaction().commit(), badUse(/empty/));
  assert.throws(() => group.consume({ batch: 0 }, () => {}), badUse(/batch/));
  assert.throws(() => group.consume({ concurrency: 0 }).batches(() => {}), badUse(/concurrency/));
  assert.throws(() => group.consume({ idleTimeout: -1 }, () => {}), badUse(/idleTimeout/));
  assert.throws(() => queen.discover({}), badUse(/namespace/));
  assert.throws(() => queen.discover({ namespace: 'n', partition: 'p' } as object), badUse(/partition/));
  assert.throws(() => queue.buffer({ maxMessages: 0 }), badUse(/maxMessages/));
  assert.throws(() => queue.buffer({ linger: -1 }), badUse(/linger/));
  assert.deepEqual(await queue.push([]), []);
  assert.equal(fake.asked.length, 0);
});

test('what has to be a function is one, or nothing is begun', async () => {
  await using fake = await Fake.start(() => popped({ a: [1] }));
  const queen = new Queen(fake.url);
  const queue = queen.queue<unknown>('q');
  const nothing = undefined as unknown as () => void;
  assert.throws(() => queue.consume({}, nothing), badUse(/handler/));
  assert.throws(() => queue.consume().each(nothing), badUse(/handler/));
  assert.throws(() => queue.consume().batches(nothing), badUse(/handler/));
  assert.throws(() => queue.consume((() => {}) as object), badUse(/options come first/));
  const schema = { parse: () => 1 } as unknown as Parse<number>;
  assert.throws(() => queen.queue('q', { parse: schema }), badUse(/parse/));
  assert.throws(() => queen.discover({ task: 't' }, { parse: schema }), badUse(/parse/));
  assert.equal(fake.asked.length, 0);
});

test('a transaction pushes to queues and partitions, and not to groups', () => {
  const queen = new Queen('http://127.0.0.1:1');
  const group = queen.queue('q').group('g') as unknown as string;
  assert.throws(() => queen.transaction().push(group, 1), badUse(/queue or a partition/));
  assert.throws(() => queen.transaction().push(undefined as unknown as string, 1), badUse(/queue or a partition/));
});

test('messages of several groups are not acknowledged together, and not by another group', async () => {
  await using fake = await Fake.start((asked) => {
    const reply = popped({ a: [1] }) as { status: number; body: { messages: { consumerGroup: string }[] } };
    reply.body.messages[0]!.consumerGroup = asked.query.get('consumerGroup')!;
    return reply;
  });
  const queue = new Queen(fake.url).queue('q');
  const messages = [...(await queue.group('one').pop()), ...(await queue.group('two').pop())];
  await assert.rejects(new Queen(fake.url).ack(messages), badUse(/several consumer groups/));
  await assert.rejects(queue.group('two').ack(messages), badUse(/of the group "one"/));
  assert.equal(fake.asked.length, 2);
});

test('a message that was acknowledged at delivery has nothing to acknowledge and no lease', async () => {
  await using fake = await Fake.start(() => {
    const reply = popped({ a: [1] }) as { status: number; body: { messages: { leaseId: string }[] } };
    reply.body.messages[0]!.leaseId = '';
    return reply;
  });
  const queen = new Queen(fake.url);
  const [message] = await queen.queue('q').pop({ autoAck: true });
  assert.equal(fake.asked[0]!.query.get('autoAck'), 'true');
  await assert.rejects(message!.ack(), badUse(/autoAck/));
  await assert.rejects(message!.renew(), badUse(/autoAck/));
  assert.throws(() => queen.transaction().ack(message!), badUse(/autoAck/));
  assert.equal(fake.asked.length, 1);
});

test('a closed client refuses everything', async () => {
  const queen = new Queen('http://127.0.0.1:1');
  await queen.close();
  const closed = (error: QueenError) => error.kind === 'closed';
  await assert.rejects(queen.queue('q').push(1), closed);
  await assert.rejects(queen.queue('q').pop(), closed);
  await assert.rejects(queen.admin.overview(), closed);
  await assert.rejects(queen.transaction().push('q', 1).commit(), closed);
  assert.throws(() => queen.queue('q').buffer(), closed);
  assert.throws(() => queen.queue('q').consume({}, () => {}), closed);
  await queen.close();
});

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
  assert.throws(() => new Queen([]), badUse(/a broker URL is required/));
  assert.throws(() => new Queen({}), badUse(/a broker URL is required/));
  assert.throws(() => new Queen(undefined as unknown as string), badUse(/a broker URL is required/));
  assert.throws(() => new Queen({ urls: 'http://a' as unknown as string[] }), badUse(/list/));
  assert.throws(() => new Queen({ url: 'http://a', urls: ['http://b'] }), badUse(/not both/));
  assert.throws(() => new Queen('localhost:6632'), badUse(/http:\/\//));
  assert.throws(() => new Queen('http://'), badUse(/not a URL/));
  assert.throws(() => new Queen('http://user:secret@host'), (error: QueenError) => !error.message.includes('secret'));
  assert.throws(() => new Queen({ url: 'http://a', deadline: -1 }), badUse(/deadline/));
  assert.throws(() => new Queen({ url: 'http://a', deadline: 0 }), badUse(/deadline/));
  assert.throws(() => new Queen({ url: 'http://a', retryDelay: NaN }), badUse(/retryDelay/));
  assert.throws(() => new Queen({ url: 'http://a', queuedOperationBehavior: 'wait' as 'poll' }), badUse(/one of/));
  new Queen('http://a/below/');
});

test('options stand beside the URLs or with them, and nothing else does', () => {
  const Any = Queen as unknown as new (...given: unknown[]) => Queen;
  for (const urls of ['http://a', ['http://a', 'http://b']]) {
    new Queen(urls, { token: 'secret' });
    new Queen(urls, undefined);
    for (const options of ['http://b', ['http://b'], 7, () => 'token']) {
      assert.throws(() => new Any(urls, options), badUse(/options must be an object/));
    }
    assert.throws(() => new Any(urls, { url: 'http://b' }), badUse(/set twice/));
    assert.throws(() => new Any(urls, { urls: ['http://b'] }), badUse(/set twice/));
    assert.throws(() => new Any(urls, { tokne: 'secret' }), badUse(/unknown option: tokne/));
    assert.throws(() => new Any(urls, { deadline: 0 }), badUse(/deadline/));
  }
  assert.throws(() => new Any({ url: 'http://a' }, { token: 'secret' }), badUse(/one object/));
  for (const neither of [7, true, () => 'http://a']) {
    assert.throws(() => new Any(neither), badUse(/a broker URL is required/));
  }
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
  assert.throws(() => queen.transaction().push(group, 1), badUse(/handle of a partition/));
  assert.throws(() => queen.transaction().push(undefined as unknown as string, 1), badUse(/handle of a partition/));
});

test('messages of several groups are not acknowledged together, and not by another group', async () => {
  await using fake = await Fake.start((asked) => {
    const reply = popped({ a: [1] }) as { status: number; body: { messages: { consumerGroup: string }[] } };
    reply.body.messages[0]!.consumerGroup = asked.query.get('consumerGroup')!;
    return reply;
  });
  const queue = new Queen(fake.url).queue('q');
  const messages = [...(await queue.group('one').pop()), ...(await queue.group('two').pop())];
  await assert.rejects(new Queen(fake.url).ack(messages), badUse(/different consumer groups/));
  await assert.rejects(queue.group('two').ack(messages), badUse(/to group "one"/));
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

/** Every verb with options, and the options it gets. */
const VERBS: Record<string, (queen: Queen, options: object) => unknown> = {
  queue: (queen, options) => queen.queue('q', options),
  discover: (queen, options) => queen.discover({ task: 't' }, options),
  'discover by labels': (queen, options) => queen.discover({ task: 't', ...options }),
  'queen.ack': (queen, options) => queen.ack([], options),
  'group.ack': (queen, options) => queen.queue('q').group('g').ack([], options),
  push: (queen, options) => queen.queue('q').push(1, options),
  'push of nothing': (queen, options) => queen.queue('q').push([], options),
  pushOne: (queen, options) => queen.queue('q').pushOne(1, options),
  'push to a partition': (queen, options) => queen.queue('q').partition('p').push(1, options),
  'pushOne to a partition': (queen, options) => queen.queue('q').partition('p').pushOne(1, options),
  pop: (queen, options) => queen.queue('q').pop(options),
  consume: (queen, options) => queen.queue('q').consume(options, () => {}),
  'consume in batches': (queen, options) => queen.queue('q').consume(options).batches(() => {}),
  buffer: (queen, options) => queen.queue('q').buffer(options),
  'buffer of a partition': (queen, options) => queen.queue('q').partition('p').buffer(options),
  'buffer.push': async (queen, options) => {
    const buffer = queen.queue('q').buffer();
    try {
      await buffer.push(1, options);
    } finally {
      await buffer.close();
    }
  },
  'transaction.ack': (queen, options) => queen.transaction().ack([], options),
  'transaction.push': (queen, options) => queen.transaction().push('q', 1, options),
  'transaction.commit': (queen, options) => queen.transaction().push('q', 1).commit(options),
  'deadLetters.list': (queen, options) => queen.queue('q').deadLetters().list(options),
  'deadLetters.count': (queen, options) => queen.queue('q').deadLetters().count(options),
  'deadLetters.redrive': (queen, options) => queen.queue('q').deadLetters().redrive(options),
  'deadLetters.purge': (queen, options) => queen.queue('q').deadLetters().purge(options),
  'traces.add': (queen, options) => queen.traces.add(KEY, 1, options),
  'traces.of': (queen, options) => queen.traces.of(KEY, options),
  'traces.named': (queen, options) => queen.traces.named('n', options),
  'traces.names': (queen, options) => queen.traces.names(options),
  overview: (queen, options) => queen.admin.overview(options),
  status: (queen, options) => queen.admin.status(options),
  doctor: (queen, options) => queen.admin.doctor(options),
  health: (queen, options) => queen.admin.health(options),
  metrics: (queen, options) => queen.admin.metrics(options),
  prometheus: (queen, options) => queen.admin.prometheus(options),
  'queues.list': (queen, options) => queen.admin.queues.list(options),
  'queues.get': (queen, options) => queen.admin.queues.get('q', options),
  'queues.configure': (queen, options) => queen.admin.queues.configure('q', {}, options),
  'options of a queue': (queen, options) => queen.admin.queues.configure('q', options),
  'queues.delete': (queen, options) => queen.admin.queues.delete('q', options),
  'queues.clear': (queen, options) => queen.admin.queues.clear('q', options),
  'queues.depth': (queen, options) => queen.admin.queues.depth('q', options),
  'queues.namespaces': (queen, options) => queen.admin.queues.namespaces(options),
  'queues.tasks': (queen, options) => queen.admin.queues.tasks(options),
  'queues.partitions': (queen, options) => queen.admin.queues.partitions(options),
  'groups.list': (queen, options) => queen.admin.groups.list(options),
  'groups.get': (queen, options) => queen.admin.groups.get('g', options),
  'groups.lagging': (queen, options) => queen.admin.groups.lagging(options),
  'groups.delete': (queen, options) => queen.admin.groups.delete('g', options),
  'groups.seek': (queen, options) => queen.admin.groups.seek('g', 'q', 'end', options),
  'groups.seek of a partition': (queen, options) => queen.admin.groups.seek('g', 'q', 'end', { partition: 'p', ...options }),
  'groups.subscription': (queen, options) => queen.admin.groups.subscription('g', new Date(), options),
  'messages.list': (queen, options) => queen.admin.messages.list(options),
  'messages.get': (queen, options) => queen.admin.messages.get(KEY, options),
  'messages.life': (queen, options) => queen.admin.messages.life(KEY, options),
  'messages.delete': (queen, options) => queen.admin.messages.delete(KEY, options),
  'messages.deadLetter': (queen, options) => queen.admin.messages.deadLetter(KEY, options),
  'messages.retry': (queen, options) => queen.admin.messages.retry(KEY, options),
  'operations.list': (queen, options) => queen.admin.operations.list(options),
  'operations.get': (queen, options) => queen.admin.operations.get('o', options),
  'operations.stats': (queen, options) => queen.admin.operations.stats(options),
  'operations.retry': (queen, options) => queen.admin.operations.retry('o', options),
  'operations.cancel': (queen, options) => queen.admin.operations.cancel('o', options),
  'redrives.list': (queen, options) => queen.admin.redrives.list(options),
  'redrives.get': (queen, options) => queen.admin.redrives.get('r', options),
  'maintenance.get': (queen, options) => queen.admin.maintenance.get(options),
  'maintenance.push': (queen, options) => queen.admin.maintenance.push(true, options),
  'maintenance.pop': (queen, options) => queen.admin.maintenance.pop(true, options),
};
const KEY = { partitionId: 'p', transactionId: 't' };

test('an option that there is not is refused by every verb, and nothing is sent', async () => {
  await using fake = await Fake.start(() => ({ status: 204 }));
  const queen = new Queen({ url: fake.url, deadline: 1_000 });
  assert.throws(() => new Queen({ url: fake.url, retries: 3 } as object), badUse(/unknown option: retries/));
  for (const [name, verb] of Object.entries(VERBS)) {
    await assert.rejects(async () => verb(queen, { dryrun: true, tiemout: 1 }), badUse(/unknown option: dryrun, tiemout/), name);
  }
  assert.equal(fake.asked.length, 0);
});

test('what is tried with an unknown option is all of the admin plane', () => {
  const { admin, traces } = new Queen('http://127.0.0.1:1');
  for (const [prefix, part] of Object.entries({ ...admin, traces } as Record<string, object>)) {
    const names = Object.getOwnPropertyNames(Object.getPrototypeOf(part)).filter((name) => name !== 'constructor');
    assert.ok(names.length > 0, prefix);
    assert.deepEqual(names.filter((name) => !(`${prefix}.${name}` in VERBS)), [], prefix);
  }
  const own = Object.getOwnPropertyNames(Object.getPrototypeOf(admin)).filter((name) => name !== 'constructor');
  assert.deepEqual(own.filter((name) => !(name in VERBS)), []);
});

test('the verbs of a message and of a redrive refuse an option that there is not', async () => {
  await using fake = await Fake.start((asked) => {
    return asked.method === 'GET' ? popped({ a: [1] }) : { status: 200, body: { id: 'r', status: 'running' } };
  });
  const queen = new Queen(fake.url);
  const [message] = await queen.queue('q').group('g').pop();
  const redrive = await queen.queue('q').deadLetters().redrive();
  const [typo, asked] = [{ timeout: 1 } as object, fake.asked.length];
  const calls = {
    ack: () => message!.ack(typo),
    nack: () => message!.nack('no', typo),
    retry: () => message!.retry(typo),
    deadLetter: () => message!.deadLetter('no', typo),
    renew: () => message!.renew(1_000, typo),
    trace: () => message!.trace(1, typo),
    refresh: () => redrive.refresh(typo),
    cancel: () => redrive.cancel(typo),
    finished: () => redrive.finished(typo),
  };
  for (const [name, call] of Object.entries(calls)) {
    await assert.rejects(call, badUse(/unknown option: timeout/), name);
  }
  assert.equal(fake.asked.length, asked);
});

test('a dry run of a seek moves nothing, and is not asked of a broker that would', async () => {
  let version = '0.2.0';
  await using fake = await Fake.start(({ path }) => {
    const body = path === '/health' ? { version } : { partitionsUpdated: 2, dryRun: true, messagesReplayed: 3, messagesSkipped: 4 };
    return { status: 200, body };
  });
  const { groups } = new Queen(fake.url).admin;
  const forecast = { partitions: 2, messagesReplayed: 3, messagesSkipped: 4 };
  assert.deepEqual(await groups.seek('g', 'q', 'beginning', { dryRun: true }), forecast);
  assert.deepEqual(await groups.seek('g', 'q', 'end', { partition: 'p', dryRun: true }), forecast);
  const bodies = fake.asked.filter(({ method }) => method === 'POST').map(({ body }) => body);
  assert.deepEqual(bodies, [
    { timestamp: '1970-01-01T00:00:00.000Z', dryRun: true },
    { toEnd: true, dryRun: true },
  ]);
  version = '0.1.9';
  await assert.rejects(groups.seek('g', 'q', 'end', { dryRun: true }), badUse(/0\.1\.9 does not support dryRun/));
  assert.equal(fake.asked.filter(({ method }) => method === 'POST').length, 2);
});

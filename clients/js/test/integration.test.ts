import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, test } from 'node:test';

import { Queen, QueenError } from 'queen-client';

import type { Broker } from './support/broker.js';
import { PACKAGE, startBroker } from './support/broker.js';

let broker: Broker;
let queen: Queen;
before(async () => {
  broker = await startBroker();
  queen = new Queen(broker.url);
});
after(async () => {
  await queen?.close();
  await broker?.stop();
});

/** A unique name. */
function fresh(): string {
  return `js-${randomBytes(5).toString('hex')}`;
}

const NUMBERS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];

test('a consumer that is killed in mid-batch loses nothing', async () => {
  const name = fresh();
  const queue = queen.queue<number>(name).partition('p');
  await queue.push(NUMBERS);
  const victim = spawn(process.execPath, [join(PACKAGE, 'build/test/support/victim.js'), broker.url, name]);
  const handled: number[] = [];
  for await (const line of createInterface(victim.stdout)) {
    if (line === 'at work') {
      victim.kill('SIGKILL');
    } else {
      handled.push(Number(line));
    }
  }
  assert.deepEqual(handled, [1, 2]);
  // Its lease expires, and all unacknowledged messages are redelivered in order.
  const again: number[] = [];
  await queue.group('g').consume({ batch: 10, idleTimeout: 5_000 }, (message) => {
    again.push(message.data);
  }).done;
  assert.deepEqual(again, NUMBERS.slice(-again.length));
  assert.ok(again.length >= 8, `${again}`);
});

test('what a stopped consumer has not handled is free at once, and costs no retry', async () => {
  const name = fresh();
  await queen.admin.queues.configure(name, { leaseTime: 300, retryLimit: 0 });
  const queue = queen.queue<number>(name).partition('p');
  await queue.push(NUMBERS);
  const group = queue.group('g');
  const consumer = group.consume({ batch: 10 }, (message) => {
    if (message.data === 3) {
      void consumer.stop();
    }
  });
  assert.deepEqual(await consumer.done, { handled: 3, failed: 0, batches: 1 });
  const rest = await group.pop({ batch: 10 });
  assert.deepEqual(rest.map(({ data }) => data), NUMBERS.slice(3));
  assert.ok(rest.every(({ retryCount }) => retryCount === 0));
});

test('a stopped consumer that was waiting takes nothing afterwards', async () => {
  const queue = queen.queue<number>(fresh());
  const group = queue.group('g');
  const consumer = group.consume({ concurrency: 3 }, () => assert.fail('nothing is there'));
  // By then the consumer's pops usually wait, too; if not, the stop must handle that.
  await group.pop({ wait: 100 });
  await consumer.stop();
  await queue.push(1);
  assert.equal((await group.pop()).length, 1);
});

test('typed payloads, trace contexts and labels travel with messages', async () => {
  const namespace = fresh();
  const parse = (payload: unknown) => ({ total: Number((payload as { total: string }).total) });
  const traceparent = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01';
  const queue = queen.queue<{ total: string }>(`${namespace}.orders`);
  const [pushed] = await queue.push([{ total: '10' }], { partition: 'p', transactionId: 'mine', traceparent });
  const [message] = await queen.discover({ namespace }, { parse }).group('g').pop({ lease: 10_000 });
  assert.ok(message);
  assert.equal(message.data.total, 10);
  assert.deepEqual(message.payload, { total: '10' });
  assert.deepEqual([message.id, message.transactionId], [pushed!.id, 'mine']);
  assert.deepEqual([message.queue, message.partition, message.group], [`${namespace}.orders`, 'p', 'g']);
  assert.equal(message.traceparent, traceparent);
  assert.equal(message.lease, 10_000);
  assert.ok((await message.renew(20_000)) > new Date(Date.now() + 10_000));
  assert.equal((await queue.push({ total: '10' }, { partition: 'p', transactionId: 'mine' }))[0]!.status, 'duplicate');
  assert.ok((await message.ack()).leaseReleased);
  assert.ok((await message.ack()).repeated);
  const kind = (wanted: string) => (error: QueenError) => error.kind === wanted;
  await assert.rejects(message.nack('too late'), kind('refused'));
  await assert.rejects(message.renew(), kind('refused'));
});

test('a transaction moves a message from one queue to another, or does nothing', async () => {
  const [from, to] = [queen.queue<number>(fresh()), queen.queue<number>(fresh())];
  await from.partition('p').push([1, 2]);
  const messages = await from.group('g').pop({ batch: 2 });
  const committed = await queen.transaction().ack(messages[0]!).push(to.partition('q'), 10).commit();
  assert.deepEqual(committed.pushed.map(({ status, partition }) => [status, partition]), [['queued', 'q']]);
  assert.deepEqual(committed.acked.map(({ success }) => success), [true]);
  await messages[1]!.retry();
  const late = queen.transaction().ack(messages[1]!).push(to.name, [20, 30]);
  await assert.rejects(late.commit(), (error: QueenError) => error.kind === 'rolled_back');
  assert.deepEqual((await to.pop({ batch: 10, partitions: 10 })).map(({ data }) => data), [10]);
});

test('dead letters are listed, counted, redriven and purged', async () => {
  const queue = queen.queue<string>(fresh()).partition('p');
  const group = queue.group('g');
  await queue.push(['a', 'b', 'c']);
  const results = await group.ack(await group.pop({ batch: 3 }), { status: 'dlq', error: 'hopeless' });
  assert.ok(results.every(({ deadLettered }) => deadLettered));
  const { messages, total } = await group.deadLetters().list({ limit: 2 });
  assert.deepEqual([messages.length, total, messages[0]!.error, messages[0]!.group], [2, 3, 'hopeless', 'g']);
  assert.equal(await queue.deadLetters().count({ error: 'HOPE' }), 3);
  assert.equal(await queue.deadLetters().count({ error: 'else' }), 0);
  const redrive = await group.deadLetters().redrive({ perSecond: 1_000 });
  const { status, done } = await redrive.finished();
  assert.deepEqual([status, done], ['completed', 3]);
  // By a client that did not pop it.
  const { redrives } = queen.admin;
  assert.equal((await (await redrives.get(redrive.id)).finished()).done, 3);
  assert.ok((await redrives.list({ limit: 10 })).some(({ id }) => id === redrive.id));
  assert.equal((await redrive.cancel()).status, 'completed');
  const again = await group.pop({ batch: 3 });
  assert.deepEqual(again.map(({ data }) => data), ['a', 'b', 'c']);
  await group.ack(again, { status: 'dlq' });
  assert.equal(await group.deadLetters().purge(), 3);
  assert.equal((await queue.deadLetters().list()).total, 0);
});

test('queues, partitions and groups are looked at and changed', async () => {
  const { queues, groups } = queen.admin;
  const name = fresh();
  const configured = await queues.configure(name, { leaseTime: 7 }, { namespace: 'js', task: 'test' });
  assert.deepEqual([configured.namespace, configured.task, configured.options.leaseTime], ['js', 'test', 7]);
  const queue = queen.queue<number>(name);
  await queue.push([1, 2, 3], { partition: (number) => `p${number}` });
  assert.deepEqual((await queues.list({ search: name })).map((one) => one.name), [name]);
  const namespace = (await queues.namespaces()).find((one) => one.namespace === 'js');
  assert.ok(namespace!.queues >= 1 && namespace!.messages.total >= 0);
  assert.ok((await queues.tasks()).some(({ task, partitions }) => task === 'test' && partitions >= 0));
  const detail = await queues.get(name, { limit: 2 });
  assert.deepEqual([detail.partitionCount, detail.partitions.length], [3, 2]);
  const [message] = await queue.group('g').pop();
  assert.equal(message!.lease, 7_000);
  await message!.ack();
  assert.equal((await queues.depth(name, { group: 'g' })).pending, 2);
  assert.ok((await queues.partitions({ queue: name })).length > 0);
  assert.ok((await groups.list()).some((group) => group.name === 'g' && group.queueName === name));
  assert.ok(name in (await groups.get('g')));
  assert.ok(Array.isArray(await groups.lagging({ minLag: 0 })));
  const forecast = { partitions: 3, messagesReplayed: 0, messagesSkipped: 2 };
  assert.deepEqual(await groups.seek('g', name, 'end', { dryRun: true }), forecast);
  assert.equal((await queues.depth(name, { group: 'g' })).pending, 2);
  assert.equal(await groups.seek('g', name, 'end'), 3);
  assert.equal((await queues.depth(name, { group: 'g' })).pending, 0);
  assert.equal(await groups.seek('g', name, new Date(0)), 3);
  const one = { partitions: 1, messagesReplayed: 0, messagesSkipped: 1 };
  assert.deepEqual(await groups.seek('g', name, 'end', { partition: 'p1', dryRun: true }), one);
  assert.equal(await groups.seek('g', name, 'end', { partition: 'p1' }), 1);
  assert.equal((await queues.depth(name, { group: 'g' })).pending, 2);
  assert.ok((await groups.subscription('g', new Date())) >= 0);
  assert.equal(await groups.delete('g', { queue: name }), 3);
  assert.equal(await queues.clear(name, { partition: 'p1' }), 1);
  assert.equal(await queues.clear(name), 2);
  assert.equal(await queues.delete(name), true);
  assert.equal(await queues.delete(name), false);
  await assert.rejects(queues.get(name), (error: QueenError) => error.kind === 'not_found' && error.status === 404);
});

test('single messages are looked at, noted about, buried and replayed', async () => {
  const { messages } = queen.admin;
  const queue = queen.queue<number>(fresh()).partition('p');
  const [first, second] = await queue.push([1, 2], {
    traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01',
  });
  assert.equal((await messages.list({ queue: queue.name })).length, 2);
  assert.deepEqual((await messages.get(first!)).payload, 1);
  assert.equal((await messages.life(first!)).push.transactionId, first!.transactionId);
  const label = fresh();
  const [message] = await queue.group('g').pop();
  await message!.trace({ note: 'seen' }, { names: label, event: 'looked' });
  await queen.traces.add(first!, { note: 'again' }, { names: [label] });
  const notes = await queen.traces.of(first!);
  assert.deepEqual(notes.map(({ event, group }) => [event, group]), [['looked', 'g'], ['info', undefined]]);
  assert.equal((await queen.traces.named(label)).traces[0]!.queue, queue.name);
  assert.ok((await queen.traces.names()).names.some(({ name }) => name === label));
  await messages.deadLetter(second!, { group: 'h', error: 'by hand' });
  const replayed = await messages.retry(second!);
  assert.notEqual(replayed.transactionId, second!.transactionId);
  await messages.delete(first!);
  await assert.rejects(messages.get(first!), (error: QueenError) => error.kind === 'not_found');
});

test('the broker tells how it is', async () => {
  const { admin } = queen;
  assert.equal((await admin.health()).status, 'healthy');
  assert.ok((await admin.overview()).queues >= 0);
  assert.ok('queues' in (await admin.status()));
  assert.equal(typeof (await admin.doctor()).healthy, 'boolean');
  assert.ok('uptime' in (await admin.metrics()));
  assert.match(await admin.prometheus(), /^# HELP/m);
  assert.deepEqual(await admin.operations.list({ status: 'failed', olderThan: 1_000 }), []);
  assert.ok((await admin.operations.stats()).systemHealth.queueDepth >= 0);
  const unknown = '01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01';
  for (const verb of ['get', 'retry', 'cancel'] as const) {
    await assert.rejects(admin.operations[verb](unknown), (error: QueenError) => error.kind === 'not_found');
  }
});

test('maintenance sends pushes to the spool and lets pops find nothing', async () => {
  const { maintenance } = queen.admin;
  const queue = queen.queue<number>(fresh());
  assert.equal((await maintenance.get()).maintenanceMode, false);
  await maintenance.push(true);
  try {
    assert.equal((await queue.push(1))[0]!.status, 'buffered');
  } finally {
    await maintenance.push(false);
  }
  assert.equal((await queue.pop({ wait: 20_000, autoAck: true })).length, 1);
  await queue.push(2);
  await maintenance.pop(true);
  try {
    assert.deepEqual(await queue.pop(), []);
  } finally {
    await maintenance.pop(false);
  }
  assert.equal((await queue.pop()).length, 1);
});

test('a buffer of thousands arrives complete and in order', async () => {
  const queue = queen.queue<number>(fresh());
  const partitions = ['a', 'b', 'c'];
  const buffer = queue.buffer({ maxMessages: 500 });
  const all = Array.from({ length: 3_000 }, (_, number) => number);
  for (const number of all) {
    await buffer.push(number, { partition: partitions[number % 3] });
  }
  await buffer.close();
  for (const [index, name] of partitions.entries()) {
    const messages = await queue.partition(name).pop({ batch: 10_000 });
    assert.deepEqual(messages.map(({ data }) => data), all.filter((number) => number % 3 === index));
  }
});

test('a program that has closed its client ends by itself', async () => {
  const code = `import { Queen } from 'queen-client';
    const queen = new Queen(${JSON.stringify(broker.url)});
    queen.queue(${JSON.stringify(fresh())}).consume({}, () => {});
    await queen.queue('some').push(1);
    await queen.close();`;
  const program = spawn(process.execPath, ['--input-type=module', '-e', code], { cwd: PACKAGE, stdio: 'inherit' });
  assert.deepEqual(await once(program, 'exit'), [0, null]);
});

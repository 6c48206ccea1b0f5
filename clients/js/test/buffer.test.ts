import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { text } from 'node:stream/consumers';
import { test } from 'node:test';

import { Queen, QueenError } from 'queen-client';

import { PACKAGE } from './support/broker.js';
import { failing, gate, QUICK } from './support/expect.js';
import { Fake, pushed } from './support/fake.js';
import type { Asked, Reply } from './support/fake.js';

function payloads(asked: Asked): unknown[] {
  return asked.body.items.map((item: { payload: unknown }) => item.payload);
}

test('pushes travel together, and their receipts tell what became of them', async () => {
  await using fake = await Fake.start(pushed);
  const options = { linger: 60_000, batchMessages: 3 };
  await using buffer = new Queen(fake.url).queue<number>('q').partition('p').buffer(options);
  const receipts = await Promise.all([1, 2, 3].map((number) => buffer.push(number)));
  const results = await Promise.all(receipts.map((receipt) => receipt.result));
  assert.deepEqual(results.map(({ status }) => status), ['queued', 'queued', 'queued']);
  assert.deepEqual(results.map((result) => result.transactionId), receipts.map((receipt) => receipt.transactionId));
  assert.deepEqual(fake.asked.map(payloads), [[1, 2, 3]]);
});

test('a partition keeps its order, with one request in flight per lane', async () => {
  let flying = 0;
  let most = 0;
  await using fake = await Fake.start(async (asked) => {
    most = Math.max(most, ++flying);
    await new Promise((resolve) => setImmediate(resolve));
    flying -= 1;
    return pushed(asked);
  });
  const queue = new Queen(fake.url).queue<[string, number]>('q');
  await using buffer = queue.buffer({ linger: 0, batchMessages: 3, lanes: 2 });
  for (let number = 0; number < 100; number++) {
    for (const partition of ['a', 'b', 'c']) {
      await buffer.push([partition, number], { partition });
    }
  }
  await buffer.flush();
  assert.equal(buffer.size, 0);
  assert.ok(most <= 2, `${most}`);
  assert.ok(fake.asked.every((asked) => asked.body.items.length <= 3));
  for (const partition of ['a', 'b', 'c']) {
    const sent = fake.asked.flatMap(payloads).filter((payload) => (payload as [string])[0] === partition);
    assert.deepEqual(sent, Array.from({ length: 100 }, (_, number) => [partition, number]));
  }
});

test('a full buffer lets pushes wait, in their order and within its bounds', async () => {
  const { open, opened } = gate();
  await using fake = await Fake.start(async (asked) => {
    await opened;
    return pushed(asked);
  });
  const buffer = new Queen(fake.url).queue<number>('q').buffer({ maxMessages: 2, linger: 0, batchMessages: 1 });
  await buffer.push(1);
  await buffer.push(2);
  const waiting = [3, 4, 5].map((number) => buffer.push(number));
  const impatient = buffer.push(6, { signal: AbortSignal.timeout(1) });
  await assert.rejects(impatient);
  assert.equal(buffer.size, 2);
  open();
  await Promise.all(waiting);
  assert.ok(buffer.size <= 2);
  await buffer.close();
  assert.deepEqual(fake.asked.flatMap(payloads), [1, 2, 3, 4, 5]);
});

test('bytes are bounded too, but a message larger than the buffer passes alone', async () => {
  const { open, opened } = gate();
  await using fake = await Fake.start(async (asked) => {
    await opened;
    return pushed(asked);
  });
  const options = { maxBytes: 200, whenFull: 'reject', linger: 0 } as const;
  const buffer = new Queen(fake.url).queue<string>('q').buffer(options);
  await buffer.push('x'.repeat(500));
  await assert.rejects(buffer.push('y'), (error: QueenError) => error.kind === 'buffer_full');
  open();
  await buffer.flush();
  await buffer.push('y');
  await buffer.close();
  assert.equal(fake.asked.length, 2);
});

test('undelivered messages are reported once, by flush or close', async () => {
  await using fake = await Fake.start((asked) => {
    return payloads(asked).includes('good') ? pushed(asked) : { status: 403, body: { error: 'not yours' } };
  });
  const told: QueenError[] = [];
  const onError = (error: QueenError) => told.push(error);
  const buffer = new Queen(fake.url).queue<string>('q').buffer({ linger: 0, batchMessages: 1, onError });
  const lost = await buffer.push('bad', { partition: 'p', transactionId: 'mine' });
  await buffer.push('good');
  const missing = (error: QueenError) => {
    assert.equal(error.kind, 'forbidden');
    assert.match(error.message, /not yours/);
    const [message] = error.undelivered!;
    assert.equal(error.undelivered!.length, 1);
    assert.deepEqual([message!.queue, message!.partition, message!.payload, message!.transactionId], ['q', 'p', 'bad', 'mine']);
    return true;
  };
  await assert.rejects(buffer.flush(), missing);
  await buffer.flush();
  assert.ok(told.length === 1 && missing(told[0]!));
  await assert.rejects(lost.result, (error: QueenError) => error.kind === 'forbidden');

  const seen = await buffer.push('bad');
  await assert.rejects(seen.result);
  await buffer.push('bad again');
  await assert.rejects(buffer.close(), (error: QueenError) => error.undelivered?.length === 1);
  await assert.rejects(buffer.push('late'), (error: QueenError) => error.kind === 'closed');
});

test('a message that is too large does not take its neighbours along', async () => {
  await using fake = await Fake.start((asked) => (payloads(asked).includes(5) ? { status: 413 } : pushed(asked)));
  const buffer = new Queen(fake.url).queue<number>('q').partition('p').buffer();
  const receipts = await Promise.all(Array.from({ length: 10 }, (_, number) => buffer.push(number)));
  const ends = await Promise.allSettled(receipts.map((receipt) => receipt.result));
  assert.deepEqual(ends.map((end) => end.status === 'rejected'), ends.map((_, number) => number === 5));
  const stored = fake.asked.filter((asked) => !payloads(asked).includes(5)).flatMap(payloads);
  assert.deepEqual(stored, [0, 1, 2, 3, 4, 6, 7, 8, 9]);
  await buffer.close();
});

test('a batch that fails on the way is sent again with the same ids', async () => {
  const replies: Reply[] = ['close', { status: 503 }];
  await using fake = await Fake.start((asked) => replies.shift() ?? pushed(asked));
  await using buffer = new Queen({ url: fake.url, ...QUICK }).queue<number>('q').buffer();
  const receipt = await buffer.push(1);
  assert.equal((await receipt.result).status, 'queued');
  const ids = fake.asked.map((asked) => asked.body.items[0].transactionId);
  assert.deepEqual(ids, [receipt.transactionId, receipt.transactionId, receipt.transactionId]);
});

test('undelivered messages take room until they are reported', async () => {
  await using fake = await Fake.start(() => ({ status: 403 }));
  const bounds = [{ maxMessages: 2 }, { maxBytes: 300 }];
  for (const bound of bounds) {
    const told: QueenError[] = [];
    const onError = (error: QueenError) => told.push(error);
    const queue = new Queen(fake.url).queue<string>('q').partition('p');
    const buffer = queue.buffer({ ...bound, linger: 0, onError });
    const payload = 'x'.repeat(40);
    const receipts = [await buffer.push(payload), await buffer.push(payload)];
    // Waiting pushes fail too once nothing can make room anymore.
    const full = failing('buffer_full', {}, /flush\(\)/);
    await assert.rejects(buffer.push(payload), full);
    await assert.rejects(buffer.push(payload), full);
    assert.equal(told.flatMap((error) => error.undelivered).length, 2);
    // Reading a receipt's result takes responsibility for its failure.
    await assert.rejects(receipts[0]!.result, failing('forbidden'));
    await buffer.push(payload);
    await assert.rejects(buffer.flush(), (error: QueenError) => error.undelivered?.length === 2);
    await buffer.push(payload);
    await assert.rejects(buffer.close(), (error: QueenError) => error.undelivered?.length === 1);
  }
});

test('a listener that throws takes no message along', async () => {
  await using fake = await Fake.start((asked) => (payloads(asked).includes(1) ? { status: 400 } : pushed(asked)));
  const said = await program(fake.url, `
    process.on('uncaughtException', (error) => console.log(error.message));
    const onError = () => { throw new Error('of the application'); };
    const buffer = queue.buffer({ linger: 60_000, lanes: 1, onError });
    const receipts = await Promise.all([1, 2].map((number) => buffer.push(number)));
    await buffer.close().catch((error) => console.log(error.undelivered.length));
    console.log((await receipts[1].result).status);`);
  assert.deepEqual(said, { code: 0, out: ['of the application', '1', 'queued'] });
});

test('a failure that was asked for and is not handled is loud', async () => {
  await using fake = await Fake.start(() => ({ status: 403 }));
  const said = await program(fake.url, `
    process.on('unhandledRejection', (error) => console.log(error.kind));
    const buffer = queue.buffer({ linger: 0 });
    const { result } = await buffer.push(1);
    await buffer.close();`);
  assert.deepEqual(said, { code: 0, out: ['forbidden'] });
});

/** Runs code with a queue of a broker in a separate process. */
async function program(url: string, code: string): Promise<{ code: number; out: string[] }> {
  const head = `import { Queen } from 'queen-client'; const queue = new Queen('${url}').queue('q');`;
  const child = spawn(process.execPath, ['--input-type=module', '-e', head + code], {
    cwd: PACKAGE,
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  const [out, [status]] = await Promise.all([text(child.stdout), once(child, 'exit')]);
  return { code: status, out: out.trimEnd().split('\n') };
}

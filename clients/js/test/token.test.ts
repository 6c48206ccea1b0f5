import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Queen } from 'queen-client';

import { failing, QUICK, until } from './support/expect.js';
import { acked, Fake, popped, pushed } from './support/fake.js';
import type { Reply } from './support/fake.js';

const never = () => new Promise<string>(() => {});

test('a token is asked for before every attempt', async () => {
  const replies: Reply[] = [{ status: 503 }];
  await using fake = await Fake.start((asked) => replies.shift() ?? pushed(asked));
  let number = 0;
  const token = async () => `token-${++number}`;
  await new Queen({ url: fake.url, token, ...QUICK }).queue('q').push(1);
  assert.deepEqual(fake.asked.map(({ headers }) => headers.authorization), ['Bearer token-1', 'Bearer token-2']);
});

test('a token in the second argument is sent', async () => {
  await using fake = await Fake.start((asked) => pushed(asked));
  await new Queen(fake.url, { token: 'secret' }).queue('q').push(1);
  await new Queen([fake.url], { token: 'secret' }).queue('q').push(1);
  assert.deepEqual(fake.asked.map(({ headers }) => headers.authorization), ['Bearer secret', 'Bearer secret']);
});

test('a token that does not come ends with the deadline and the signal of the call', async () => {
  const queue = new Queen({ url: 'http://127.0.0.1:1', token: never }).queue('q');
  await assert.rejects(queue.push(1, { deadline: 30 }), failing('timeout', {}, /token/));
  await assert.rejects(queue.push(1, { signal: AbortSignal.timeout(30) }), { name: 'TimeoutError' });
});

test('a consumer that waits for its token is stopped', async () => {
  let asked = 0;
  const token = () => {
    asked += 1;
    return never();
  };
  const queen = new Queen({ url: 'http://127.0.0.1:1', token });
  const consumer = queen.queue('q').consume({}, () => {});
  await until(() => asked === 1);
  assert.deepEqual(await consumer.stop(), { handled: 0, failed: 0, batches: 0 });
  await queen.close();
});

test('a temporary failure of the token function is retried, and no broker is blamed', async () => {
  await using one = await Fake.start(() => ({ status: 200, body: {} }));
  await using other = await Fake.start(() => ({ status: 200, body: {} }));
  let fail = true;
  const token = () => {
    if (fail && !(fail = false)) {
      throw new Error('the vault is closed');
    }
    return 'token';
  };
  await new Queen({ urls: [one.url, other.url], token, ...QUICK }).admin.overview();
  assert.deepEqual([one.asked.length, other.asked.length], [1, 0]);

  const vault = () => Promise.reject(new Error('the vault is closed'));
  const queue = new Queen({ url: one.url, token: vault, ...QUICK }).queue('q');
  await assert.rejects(queue.push(1, { deadline: 50 }), failing('network', {}, /cannot get a token: the vault is closed/));
});

test('a consumer survives a temporary failure of the token function, and reports it', async () => {
  await using fake = await Fake.start((asked) => (asked.method === 'GET' ? popped({ a: [1] }) : acked(asked)));
  let number = 0;
  const token = async () => {
    // The token of the pop, and that of the acknowledgement.
    if (++number % 2 === 1) {
      throw new Error('the vault is closed');
    }
    return 'token';
  };
  const told: string[] = [];
  const onError = (error: unknown, { during }: { during: string }) => told.push(`${during}: ${(error as Error).message}`);
  const consumer = new Queen({ url: fake.url, token, ...QUICK }).queue('q').consume({ limit: 1, onError }, () => {});
  assert.deepEqual(await consumer.done, { handled: 1, failed: 0, batches: 1 });
  assert.deepEqual(told, ['pop: cannot get a token: the vault is closed']);
  assert.deepEqual(fake.asked.map(({ path }) => path), ['/api/v1/pop/queue/q', '/api/v1/ack']);
});

test('a token that no header can hold is wrong use, and is not shown', async () => {
  const queue = new Queen({ url: 'http://127.0.0.1:1', token: () => 'sec\nret' }).queue('q');
  await assert.rejects(queue.push(1), (error: Error) => {
    return failing('bad_use')(error) && !error.message.includes('sec') && error.cause === undefined;
  });
});

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Queen, QueenError } from 'queen-client';
import type { ErrorKind } from 'queen-client';
import { Brokers, routeKey } from '#dist/brokers.js';
import { sleep } from '#dist/clock.js';

import { failing, gate, QUICK, until } from './support/expect.js';
import { acked, Fake, popped, pushed } from './support/fake.js';
import type { Reply } from './support/fake.js';

/** Partitions of the queue `q` with affinity to the first of these brokers. */
function partitionsAt(first: string, other: string): [string, ...string[]] {
  const brokers = new Brokers([first, other]);
  const names = Array.from({ length: 100 }, (_, number) => `p${number}`);
  const own = names.filter((name) => brokers.choose({ key: routeKey('q', name) }, 0) === first);
  return own as [string, ...string[]];
}

test('a push is sent again with the same ids until it is answered', async () => {
  const replies: Reply[] = [{ status: 503 }, 'close', { status: 429 }, { status: 500 }];
  await using fake = await Fake.start((asked) => replies.shift() ?? pushed(asked));
  const results = await new Queen({ url: fake.url, ...QUICK }).queue('q').push([1, 2]);
  assert.deepEqual(results.map((result) => result.status), ['queued', 'queued']);
  assert.equal(fake.asked.length, 5);
  for (const asked of fake.asked) {
    assert.deepEqual(asked.body, fake.asked[0]!.body);
  }
  const ids = fake.asked[0]!.body.items.map((item: { transactionId: string }) => item.transactionId);
  assert.deepEqual(ids, results.map((result) => result.transactionId));
  for (const id of ids) {
    assert.match(id, /^[\da-f]{8}-[\da-f]{4}-7[\da-f]{3}-[89ab][\da-f]{3}-[\da-f]{12}$/);
  }
});

test('a refusal of the broker is reported at once, in its words', async () => {
  const kinds: [number, ErrorKind][] = [
    [400, 'bad_request'],
    [401, 'unauthorized'],
    [403, 'forbidden'],
    [404, 'not_found'],
    [408, 'bad_request'],
    [409, 'conflict'],
    [413, 'bad_request'],
  ];
  for (const [status, kind] of kinds) {
    await using fake = await Fake.start(() => ({ status, body: { error: 'its words', code: 'its_code' } }));
    const push = new Queen({ url: fake.url, ...QUICK }).queue('q').push(1);
    await assert.rejects(push, failing(kind, { status, code: 'its_code', attempts: 1 }));
    await assert.rejects(push, /its words/);
    assert.equal(fake.asked.length, 1);
  }
});

test('with retryOn429 off a 429 is reported at once, with the time to wait', async () => {
  await using fake = await Fake.start(() => ({ status: 429, headers: { 'Retry-After': '7' } }));
  const queen = new Queen({ url: fake.url, retryOn429: false });
  await assert.rejects(queen.queue('q').push(1), failing('rate_limited', { retryAfter: 7_000, attempts: 1 }));
});

test('a wait that would pass the deadline is not begun', async () => {
  await using fake = await Fake.start(() => ({ status: 429, headers: { 'Retry-After': '20' } }));
  const began = performance.now();
  await assert.rejects(new Queen({ url: fake.url, deadline: 10_000 }).queue('q').push(1), failing('rate_limited'));
  assert.ok(performance.now() - began < 5_000);
  assert.equal(fake.asked.length, 1);
});

test('no response is a timeout, no broker a network error, and both are retried until the deadline', async () => {
  await using fake = await Fake.start(() => 'silence');
  const slow = new Queen({ url: fake.url, requestTimeout: 20, ...QUICK });
  await assert.rejects(slow.queue('q').push(1, { deadline: 1_000 }), (error: QueenError) => {
    return failing('timeout')(error) && error.attempts > 1;
  });

  const gone = await Fake.start(() => 'close');
  await gone[Symbol.asyncDispose]();
  const nobody = new Queen({ url: gone.url, ...QUICK });
  await assert.rejects(nobody.queue('q').push(1, { deadline: 1_000 }), (error: QueenError) => {
    return failing('network', {}, /ECONNREFUSED/)(error) && error.attempts > 1;
  });
});

test('an aborted call ends with the reason of its signal, also between attempts', async () => {
  await using silent = await Fake.start(() => 'silence');
  await using busy = await Fake.start(() => ({ status: 503, headers: { 'Retry-After': '20' } }));
  for (const fake of [silent, busy]) {
    const controller = new AbortController();
    const push = new Queen(fake.url).queue('q').push(1, { signal: controller.signal });
    await until(() => fake.asked.length === 1);
    controller.abort(new Error('enough'));
    await assert.rejects(push, /enough/);
  }
  const controller = new AbortController();
  const pause = sleep(60_000, controller.signal);
  controller.abort(new Error('enough'));
  await assert.rejects(pause, /enough/);
});

test('a caller with a short deadline gets the previous error, and the broker is not blamed', async () => {
  const replies: Reply[] = [{ status: 503, body: { error: 'no database' } }];
  await using fake = await Fake.start(() => replies.shift() ?? 'silence');
  const quick = new Queen({ url: fake.url, ...QUICK });
  await assert.rejects(quick.queue('q').push(1, { deadline: 1_000 }), failing('unavailable', {}, /no database/));

  let answers = false;
  await using one = await Fake.start((asked) => (answers ? pushed(asked) : 'silence'));
  await using other = await Fake.start(pushed);
  const partition = new Queen([one.url, other.url]).queue('q').partition(partitionsAt(one.url, other.url)[0]);
  await assert.rejects(partition.push(1, { deadline: 50 }), failing('timeout', { attempts: 1 }));
  answers = true;
  await partition.push(1);
  assert.equal(other.asked.length, 0);
});

test('a request refused by all brokers waits, whatever other requests find meanwhile', async () => {
  const busy = { status: 503, headers: { 'Retry-After': '20' } };
  const { open, opened } = gate();
  let waiting: Promise<unknown> | undefined;
  await using one = await Fake.start(async ({ method }) => {
    if (method !== 'GET') {
      return busy;
    }
    await opened;
    return { status: 204 };
  });
  await using other = await Fake.start(async () => {
    open();
    await waiting;
    return busy;
  });
  const partition = new Queen([one.url, other.url]).queue('q').partition(partitionsAt(one.url, other.url)[0]);
  waiting = partition.pop({ wait: 60_000 });
  await until(() => one.asked.length === 1);
  await assert.rejects(partition.push(1, { deadline: 10_000 }), failing('unavailable', { attempts: 2 }));
});

test('a request goes on at another broker at once, and lanes stay where they were', async () => {
  await using sick = await Fake.start(() => ({ status: 503, headers: { 'Retry-After': '20' } }));
  await using well = await Fake.start(pushed);
  const queen = new Queen([sick.url, well.url]);
  const began = performance.now();
  for (let number = 0; number < 20; number++) {
    await queen.queue('q').partition(`p${number}`).push(number);
  }
  assert.ok(performance.now() - began < 5_000);
  // Retried after a second, in case the machine is that slow.
  assert.ok(sick.asked.length >= 1 && sick.asked.length < 5, `${sick.asked.length}`);
  assert.equal(well.asked.length, 20);
});

test('messages are acknowledged and renewed where they came from', async () => {
  const script = (asked: { method: string; path: string }) => {
    if (asked.method === 'GET') {
      return popped({ [asked.path]: [1] });
    }
    return asked.path.endsWith('extend')
      ? { status: 200, body: { success: true, expiresAt: '2026-01-01T00:00:00Z' } }
      : acked(asked as never);
  };
  await using one = await Fake.start(script);
  await using other = await Fake.start(script);
  const queen = new Queen([one.url, other.url]);
  for (const [fake, [name]] of [
    [one, partitionsAt(one.url, other.url)],
    [other, partitionsAt(other.url, one.url)],
  ] as const) {
    const [message] = await queen.queue('q').partition(name).group('g').pop();
    assert.equal(message!.broker, fake.url);
    await message!.renew();
    await message!.ack();
    const paths = fake.asked.slice(1).map(({ path }) => path);
    assert.deepEqual(paths, ['/api/v1/lease/lease/extend', '/api/v1/ack']);
  }
});

test('a buffer of one partition sends where its pushes go', async () => {
  await using one = await Fake.start(pushed);
  await using other = await Fake.start(pushed);
  const queen = new Queen([one.url, other.url]);
  for (const name of partitionsAt(one.url, other.url).slice(0, 10)) {
    await using buffer = queen.queue<number>('q').partition(name).buffer({ linger: 0 });
    const { result } = await buffer.push(1);
    await result;
  }
  assert.equal(other.asked.length, 0);
});

test('headers are sent along, and nothing is kept by a cache', async () => {
  await using fake = await Fake.start(pushed);
  await new Queen({ url: fake.url, headers: { 'X-Own': 'yes' } }).queue('q').push(1);
  assert.equal(fake.asked[0]!.headers['x-own'], 'yes');
  assert.equal(fake.asked[0]!.headers['cache-control'], 'no-cache');
});

test('an item that was not stored makes the push fail, with all results', async () => {
  await using fake = await Fake.start((asked) => {
    const reply = pushed(asked) as { status: number; body: { status: string; error?: string }[] };
    Object.assign(reply.body[1]!, { status: 'failed', error: 'no room' });
    return reply;
  });
  await assert.rejects(new Queen(fake.url).queue('q').push([1, 2]), (error: QueenError) => {
    assert.deepEqual(error.results?.map((result) => 'status' in result && result.status), ['queued', 'failed']);
    return failing('refused')(error) && /no room/.test(error.message);
  });
});

test('a payload that cannot be decoded throws when it is accessed', async () => {
  await using fake = await Fake.start(() => popped({ a: [1] }));
  const parse = (payload: unknown): string => {
    if (typeof payload !== 'string') {
      throw new Error('not a text');
    }
    return payload;
  };
  const [message] = await new Queen(fake.url).queue('q', { parse }).pop();
  assert.equal(message!.payload, 1);
  assert.throws(() => message!.data, (error: QueenError) => failing('decode')(error) && /not a text/.test(error.message));
});

test('a pop that waits is given its wait and the time to answer', async () => {
  await using fake = await Fake.start(() => ({ status: 204 }));
  const group = new Queen(fake.url).queue('a b/c').partition('p').group('g');
  const since = new Date('2026-01-01T00:00:00Z');
  assert.deepEqual(await group.pop({ batch: 5, partitions: 2, wait: 60_000, lease: 1_500, subscription: since }), []);
  const { path, query } = fake.asked[0]!;
  assert.equal(path, '/api/v1/pop/queue/a b/c/partition/p');
  const { timeout, ...others } = Object.fromEntries(query);
  assert.ok(Number(timeout) > 50_000 && Number(timeout) <= 60_000, timeout);
  assert.deepEqual(others, {
    consumerGroup: 'g',
    batch: '5',
    partitions: '2',
    wait: 'true',
    leaseSeconds: '2',
    subscriptionFrom: '2026-01-01T00:00:00.000Z',
  });
});

test('a nack with a lost response that is then refused may have been executed', async () => {
  const replies: Reply[] = [];
  const refused = { index: 0, transactionId: 'a-0', success: false, error: 'Invalid or expired lease', dlq: false };
  await using fake = await Fake.start((asked) => {
    return asked.method === 'GET' ? popped({ a: [1] }) : (replies.shift() ?? { status: 200, body: [refused] });
  });
  const [message] = await new Queen({ url: fake.url, ...QUICK }).queue('q').group('g').pop();
  for (const [verb, kind] of [['nack', 'outcome_unknown'], ['retry', 'outcome_unknown'], ['ack', 'refused']] as const) {
    replies.push('close');
    await assert.rejects(message![verb](), failing(kind, { attempts: 2 }), verb);
  }
  await assert.rejects(message!.nack(), failing('refused', { attempts: 1 }));
});

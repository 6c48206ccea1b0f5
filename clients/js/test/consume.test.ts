import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Queen, QueenError } from 'queen-client';
import type { ConsumeOptions } from 'queen-client';

import { failing, QUICK, until } from './support/expect.js';
import { acked, Fake, popped } from './support/fake.js';
import type { Asked, Reply } from './support/fake.js';

/** A broker with deliveries; once they are used up, pops wait until their wait is ended. */
function broker(deliveries: Reply[], more: (asked: Asked) => Reply | undefined = () => undefined) {
  const waits = new Map<string, (reply: Reply) => void>();
  return Fake.start((asked) => {
    const own = more(asked);
    if (own) {
      return own;
    }
    if (asked.path.startsWith('/api/v1/pop/waits/')) {
      const end = waits.get(asked.path.split('/').pop()!);
      end?.({ status: 204 });
      return { status: 200, body: { ended: end !== undefined } };
    }
    if (asked.method === 'GET') {
      const next = deliveries.shift();
      return next ?? new Promise<Reply>((resolve) => waits.set(asked.query.get('waitId')!, resolve));
    }
    return acked(asked);
  });
}

function acks(fake: Fake): [string, string, string?][][] {
  const asked = fake.asked.filter(({ path }) => path.startsWith('/api/v1/ack'));
  return asked.map(({ body }) => {
    return (body.acknowledgments ?? [body]).map((ack: any) =>
      ack.error === undefined ? [ack.transactionId, ack.status] : [ack.transactionId, ack.status, ack.error],
    );
  });
}

function group<T = unknown>(fake: Fake, parse?: (payload: unknown) => T) {
  return new Queen({ url: fake.url, ...QUICK }).queue<T>('q', { parse }).group('g');
}

test('a batch is handled in order and acknowledged with one request', async () => {
  await using fake = await broker([popped({ a: [1, 2], b: [3] })]);
  const seen: unknown[] = [];
  const consumer = group(fake).consume({ batch: 10, partitions: 2, limit: 3 }, (message) => seen.push(message.data));
  assert.deepEqual(await consumer.done, { handled: 3, failed: 0, batches: 1 });
  assert.deepEqual(seen, [1, 2, 3]);
  assert.deepEqual(acks(fake), [[['a-0', 'completed'], ['a-1', 'completed'], ['b-0', 'completed']]]);
});

test('behind a message that failed nothing of its partition is handled, other partitions go on', async () => {
  await using fake = await broker([popped({ a: [1, 2, 3, 4], b: [5, 6] })]);
  const seen: unknown[] = [];
  const errors: unknown[] = [];
  const options: ConsumeOptions = { batch: 10, limit: 4, onError: (error) => errors.push(error) };
  const consumer = group(fake).consume(options, (message) => {
    seen.push(message.data);
    if (message.data === 2) {
      throw new Error('no');
    }
  });
  assert.deepEqual(await consumer.done, { handled: 3, failed: 1, batches: 1 });
  assert.deepEqual(seen, [1, 2, 5, 6]);
  assert.equal(errors.length, 1);
  // `retry` counts a failure if the failed message became a dead letter, which does not end the lease.
  const expected = [['a-0', 'completed'], ['a-1', 'failed', 'no'], ['a-2', 'retry'], ['b-0', 'completed'], ['b-1', 'completed']];
  assert.deepEqual(acks(fake), [expected]);
});

test('batches succeed or fail as one', async () => {
  await using fake = await broker([popped({ a: [1, 2] }), popped({ a: [1, 2] })]);
  let calls = 0;
  const consumer = group(fake)
    .consume({ limit: 4 })
    .batches(async (messages) => {
      assert.deepEqual(messages.map(({ data }) => data), [1, 2]);
      if (++calls === 1) {
        throw new Error('no');
      }
    });
  assert.deepEqual(await consumer.done, { handled: 2, failed: 2, batches: 2 });
  assert.equal(fake.asked[0]!.query.get('batch'), '4');
  const failed = [['a-0', 'failed', 'no'], ['a-1', 'failed', 'no']];
  assert.deepEqual(acks(fake), [failed, [['a-0', 'completed'], ['a-1', 'completed']]]);
});

test('a payload that cannot be decoded is nacked with the reason and never reaches a handler', async () => {
  for (const mode of ['each', 'batches'] as const) {
    await using fake = await broker([popped({ a: [1, 'x', 3], b: [4] })]);
    const seen: unknown[] = [];
    const consume = group(fake, numbers).consume({ batch: 10, limit: 3 });
    const consumer =
      mode === 'each'
        ? consume.each((message) => seen.push(message.data))
        : consume.batches((messages) => seen.push(...messages.map(({ data }) => data)));
    assert.deepEqual(await consumer.done, { handled: 2, failed: 1, batches: 1 }, mode);
    assert.deepEqual(seen, [1, 4]);
    const told = new Map(acks(fake)[0]!.map(([id, ...rest]) => [id, rest]));
    assert.deepEqual(told.get('a-0'), ['completed']);
    assert.deepEqual(told.get('a-1'), ['failed', 'cannot decode the payload: not a number']);
    assert.deepEqual(told.get('a-2'), ['retry']);
    assert.deepEqual(told.get('b-0'), ['completed']);
  }
});

test('a handler that settles for itself is not spoken over', async () => {
  await using fake = await broker([popped({ a: [1, 2, 3], b: [4, 5] })]);
  const seen: unknown[] = [];
  const consumer = group(fake).consume({ batch: 10, limit: 4 }, async (message) => {
    seen.push(message.data);
    if (message.data === 1) {
      await message.ack();
    } else if (message.data === 2) {
      await message.retry();
    } else if (message.data === 4) {
      await message.deadLetter('poison');
    }
  });
  await consumer.done;
  assert.deepEqual(seen, [1, 2, 4, 5]);
  const expected = [[['a-0', 'completed']], [['a-1', 'retry']], [['b-0', 'dlq', 'poison']], [['b-1', 'completed']]];
  assert.deepEqual(acks(fake), expected);
});

test('completions are sent before a handler returns its message, which ends the lease', async () => {
  for (const way of ['message', 'transaction'] as const) {
    const committed = { transactionId: 't', success: true, results: [{ type: 'ack', success: true, dlq: false }] };
    await using fake = await broker([popped({ a: [1, 2, 3] })], (asked) => {
      return asked.path === '/api/v1/transaction' ? { status: 200, body: committed } : undefined;
    });
    const queen = new Queen(fake.url);
    const errors: unknown[] = [];
    const options = { batch: 3, limit: 2, onError: (error: unknown) => errors.push(error) };
    const consumer = queen.queue('q').group('g').consume(options, async (message) => {
      if (message.data === 2) {
        await (way === 'message' ? message.retry() : queen.transaction().ack(message, { status: 'retry' }).commit());
      }
    });
    assert.deepEqual(await consumer.done, { handled: 2, failed: 0, batches: 1 });
    const told = fake.asked.filter(({ method }) => method === 'POST');
    assert.deepEqual(
      told.map(({ body }) => body.operations?.[0] ?? body).map((ack) => [ack.transactionId, ack.status]),
      [['a-0', 'completed'], ['a-1', 'retry']],
      way,
    );
    assert.deepEqual(errors, []);
  }
});

test('a handler that fails has failed, also with autoAck off', async () => {
  await using fake = await broker([popped({ a: [1, 2], b: [3] }), popped({ a: [1, 2] }), popped({ a: [1, 2] })]);
  const no = () => Promise.reject(new Error('no'));
  const options = { batch: 10, limit: 2, autoAck: false };
  await group(fake).consume(options, no).done;
  await group(fake).consume(options).batches(no).done;
  const failed = ['a-0', 'failed', 'no'];
  const each = [failed, ['a-1', 'retry'], ['b-0', 'failed', 'no']];
  assert.deepEqual(acks(fake), [each, [failed, ['a-1', 'failed', 'no']]]);

  // Unless it has acknowledged the message itself.
  fake.asked.length = 0;
  const settled = group(fake).consume({ ...options, batch: 2 }, async (message) => {
    await message.ack();
    throw new Error('no');
  });
  assert.deepEqual(await settled.done, { handled: 0, failed: 2, batches: 1 });
  assert.deepEqual(acks(fake), [[['a-0', 'completed']], [['a-1', 'completed']]]);
});

test('where an acknowledgement is refused nothing more is handled', async () => {
  await using fake = await broker([popped({ a: [1, 2, 3], b: [4] })], (asked) => {
    const refused = { index: 0, transactionId: 'a-0', success: false, error: 'Invalid or expired lease', dlq: false };
    return asked.body?.transactionId === 'a-0' ? { status: 200, body: [refused] } : undefined;
  });
  const seen: unknown[] = [];
  const consumer = group(fake).consume({ batch: 4, limit: 3 }, async (message) => {
    seen.push(message.data);
    if (message.data === 2) {
      // Completed messages are acknowledged once a second.
      await until(() => acks(fake).length === 1);
      await message.deadLetter();
    }
  });
  await consumer.done;
  assert.deepEqual(seen, [1, 2, 4]);
});

test('a stopped consumer ends its wait, and has nothing leased', async () => {
  await using fake = await broker([]);
  const consumer = group(fake).consume({ concurrency: 3 }, () => {});
  await until(() => fake.asked.length === 3);
  assert.deepEqual(await consumer.stop(), { handled: 0, failed: 0, batches: 0 });
  assert.deepEqual(await consumer.stop(), { handled: 0, failed: 0, batches: 0 });
  const pops = fake.asked.filter(({ method }) => method === 'GET');
  const ends = fake.asked.filter(({ method }) => method === 'DELETE');
  const ids = pops.map(({ query }) => `/api/v1/pop/waits/${query.get('waitId')}`);
  assert.deepEqual(ends.map(({ path }) => path).sort(), ids.sort());
});

test('what a pop brings while the consumer stops is given back', async () => {
  await using fake = await broker([], (asked) => {
    if (asked.method === 'GET') {
      return new Promise<Reply>((resolve) => (deliver = resolve)) as never;
    }
    if (asked.method === 'DELETE') {
      deliver(popped({ a: [1, 2], b: [3] }));
      return { status: 200, body: { ended: true } };
    }
    return undefined;
  });
  let deliver: (reply: Reply) => void = () => {};
  const consumer = group(fake).consume({ batch: 10 }, () => assert.fail('not to be handled'));
  await until(() => fake.asked.length === 1);
  assert.deepEqual(await consumer.stop(), { handled: 0, failed: 0, batches: 0 });
  assert.deepEqual(acks(fake), [[['a-0', 'retry'], ['b-0', 'retry']]]);
});

test('stop awaits the handler that runs and gives back the rest', async () => {
  await using fake = await broker([popped({ a: [1, 2, 3], b: [4] })]);
  let finish = () => {};
  let stopping = false;
  const consumer = group(fake).consume({ batch: 10 }, async (_, context) => {
    await new Promise<void>((resolve) => (finish = resolve));
    stopping = context.stopping && !context.signal.aborted;
  });
  const running = finish;
  await until(() => finish !== running);
  const stopped = consumer.stop();
  finish();
  assert.deepEqual(await stopped, { handled: 1, failed: 0, batches: 1 });
  assert.ok(stopping);
  assert.deepEqual(acks(fake), [[['a-0', 'completed'], ['a-1', 'retry'], ['b-0', 'retry']]]);
});

test('a handler that does not end is notified, and its message is given back', async () => {
  for (const mode of ['each', 'batches'] as const) {
    await using fake = await broker([popped({ a: [1, 2] })]);
    let handling: AbortSignal | undefined;
    const hang = (_: unknown, { signal }: { signal: AbortSignal }) => {
      handling = signal;
      return new Promise(() => {});
    };
    const consumer = group(fake).consume({ batch: 10, stopTimeout: 0 })[mode](hang);
    await until(() => handling !== undefined);
    assert.deepEqual(await consumer.stop(), { handled: 0, failed: 0, batches: 0 }, mode);
    assert.ok(handling!.aborted);
    assert.deepEqual(acks(fake), [[['a-0', 'retry']]]);
  }
});

test('what a handler that does not end has settled itself is not given back, but what is behind it', async () => {
  for (const [mode, settledTo] of [['each', 0], ['batches', 1]] as const) {
    await using fake = await broker([popped({ a: [1, 2, 3], b: [4] })]);
    let settled = false;
    const consume = group(fake).consume({ batch: 10, stopTimeout: 0 });
    const hang = async (message: { ack(): Promise<unknown> }) => {
      await message.ack();
      settled = true;
      await new Promise(() => {});
    };
    const consumer = mode === 'each' ? consume.each(hang) : consume.batches((messages) => hang(messages[settledTo]!));
    await until(() => settled);
    await consumer.stop();
    const given = [[`a-${settledTo + 1}`, 'retry'], ['b-0', 'retry']];
    assert.deepEqual(acks(fake), [[[`a-${settledTo}`, 'completed']], given], mode);
  }
});

test('a handler stops its consumer', async () => {
  await using fake = await broker([popped({ a: [1, 2] })]);
  const consumer = group(fake).consume({ batch: 10 }, (_, context) => {
    context.stop();
    assert.ok(context.stopping);
  });
  assert.deepEqual(await consumer.done, { handled: 1, failed: 0, batches: 1 });
  assert.deepEqual(acks(fake), [[['a-0', 'completed'], ['a-1', 'retry']]]);
});

test('a signal stops a consumer', async () => {
  await using fake = await broker([]);
  const controller = new AbortController();
  const consumer = group(fake).consume({ signal: controller.signal }, () => {});
  await until(() => fake.asked.length === 1);
  controller.abort();
  await consumer.done;
});

test('a lease is renewed while handlers run; a lost one is reported and not acknowledged', async () => {
  let renewals = 0;
  await using fake = await broker([popped({ a: [1, 2] }, 1.5)], (asked) => {
    if (!asked.path.endsWith('/extend')) {
      return undefined;
    }
    const success = ++renewals < 2;
    return { status: 200, body: { success, expiresAt: success ? '2026-01-01T00:00:00Z' : null, error: null } };
  });
  const errors: unknown[] = [];
  const seen: unknown[] = [];
  const consumer = group(fake).consume({ batch: 2, onError: (error) => errors.push(error) }, async (message, { signal }) => {
    seen.push(message.data);
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
  });
  await until(() => fake.asked.filter(({ method }) => method === 'GET').length === 2);
  await consumer.stop();
  assert.equal(renewals, 2);
  assert.deepEqual(fake.asked.find(({ path }) => path.endsWith('/extend'))!.body, { seconds: 2 });
  assert.deepEqual(seen, [1]);
  assert.equal((errors.at(-1) as QueenError).kind, 'refused');
  assert.deepEqual(acks(fake), []);
});

test('a lease that runs out while it cannot be renewed is lost', async () => {
  await using fake = await broker([popped({ a: [1, 2] }, 0.3)], (asked) => {
    return asked.path.endsWith('/extend') ? 'close' : undefined;
  });
  const told: string[] = [];
  const onError = (error: unknown, { during }: { during: string }) => told.push(`${during}: ${(error as QueenError).kind}`);
  const seen: unknown[] = [];
  const consumer = group(fake).consume({ batch: 2, onError }, async (message, { signal }) => {
    seen.push(message.data);
    await new Promise((resolve) => signal.addEventListener('abort', resolve));
  });
  await until(() => fake.asked.filter(({ method }) => method === 'GET').length === 2);
  await consumer.stop();
  assert.deepEqual(seen, [1]);
  assert.ok(told.includes('renew: network'), `${told}`);
  assert.equal(told.at(-1), 'renew: refused');
  assert.deepEqual(acks(fake), []);
});

test('a lease that was used up is not lost', async () => {
  // Longer than a third of the lease, when it would be renewed.
  const work = 800;
  await using fake = await broker([popped({ a: [1, 2] }, 1.5), popped({ a: [1] }, 1.5)], (asked) => {
    // As a broker responds when everything is acknowledged: there is no lease.
    const gone = { success: acks(fake).length === 0, expiresAt: null, error: null };
    return asked.path.endsWith('/extend') ? { status: 200, body: gone } : undefined;
  });
  const errors: unknown[] = [];
  const onError = (error: unknown) => errors.push(error);
  const last = async (messages: readonly { ack(): Promise<unknown> }[], { signal }: { signal: AbortSignal }) => {
    await messages.at(-1)!.ack();
    await new Promise((resolve) => setTimeout(resolve, work));
    assert.ok(!signal.aborted);
  };
  const batches = group(fake).consume({ limit: 2, onError }).batches(last);
  assert.deepEqual(await batches.done, { handled: 2, failed: 0, batches: 1 });
  fake.asked.length = 0;
  const each = group(fake).consume({ limit: 1, onError }, (message, context) => last([message], context));
  assert.deepEqual(await each.done, { handled: 1, failed: 0, batches: 1 });
  assert.deepEqual(errors, []);
});

test('temporary failures of pops are reported and retried, others end the consumer', async () => {
  const replies: Reply[] = [{ status: 503 }, 'close', { status: 429 }, { status: 500 }];
  await using fake = await broker([...replies, popped({ a: [1] }), { status: 401, body: { error: 'who are you?' } }]);
  const kinds: string[] = [];
  const onError = (error: unknown) => kinds.push((error as QueenError).kind);
  const consumer = group(fake).consume({ onError }, () => {});
  await assert.rejects(consumer.done, (error: QueenError) => error.kind === 'unauthorized');
  assert.deepEqual(kinds, ['unavailable', 'network', 'rate_limited', 'server']);
  assert.deepEqual(acks(fake), [[['a-0', 'completed']]]);
});

test('a refused acknowledgement is reported, and the consumer continues', async () => {
  const refused = { index: 0, transactionId: 'a-0', success: false, error: 'Invalid or expired lease', dlq: false };
  await using fake = await broker([popped({ a: [1] }), popped({ a: [1] })], (asked) => {
    return asked.path === '/api/v1/ack' && acks(fake).length === 1 ? { status: 200, body: [refused] } : undefined;
  });
  const told: string[] = [];
  const onError = (error: unknown, { during }: { during: string }) => told.push(`${during}: ${(error as QueenError).kind}`);
  const consumer = group(fake).consume({ limit: 2, onError }, () => {});
  assert.deepEqual(await consumer.done, { handled: 2, failed: 0, batches: 2 });
  assert.deepEqual(told, ['ack: refused']);
});

test('a consumer ends when it was idle for long enough', async () => {
  await using fake = await broker([popped({ a: [1] })], (asked) => {
    // A waiting pop ends with the idle time.
    const first = fake.asked.length === 1;
    return asked.method === 'GET' && !first ? { status: 204 } : undefined;
  });
  const consumer = group(fake).consume({ idleTimeout: 30 }, () => {});
  assert.deepEqual(await consumer.done, { handled: 1, failed: 0, batches: 1 });
  assert.ok(fake.asked.every(({ query }) => Number(query.get('timeout') ?? 0) <= 30));
});

test('a consumer whose pops fail ends when it was idle for long enough, with the error', async () => {
  const gone = await Fake.start(() => 'close');
  await gone[Symbol.asyncDispose]();
  await using busy = await Fake.start(() => ({ status: 503, headers: { 'Retry-After': '30' } }));
  for (const [fake, kind] of [[gone, 'network'], [busy, 'unavailable']] as const) {
    const consumer = new Queen(fake.url).queue('q').consume({ idleTimeout: 50, concurrency: 2 }, () => {});
    await assert.rejects(consumer.done, failing(kind));
  }
});

test('a consumer bears a 429 whatever the options say', async () => {
  await using fake = await broker([{ status: 429 }, popped({ a: [1] })]);
  const consumer = new Queen({ url: fake.url, retryOn429: false, ...QUICK }).queue('q').consume({ limit: 1 }, () => {});
  assert.equal((await consumer.done).handled, 1);
});

test('workers together stay within the limit', async () => {
  let next = 0;
  await using fake = await broker([], (asked) => {
    return asked.method === 'GET' ? popped({ [`p${++next}`]: Array(Number(asked.query.get('batch'))).fill(next) }) : undefined;
  });
  const consumer = group(fake).consume({ batch: 3, concurrency: 4, limit: 20 }, () => {});
  assert.equal((await consumer.done).handled, 20);
  const popped20 = fake.asked.filter(({ method }) => method === 'GET').map(({ query }) => Number(query.get('batch')));
  assert.equal(popped20.reduce((sum, batch) => sum + batch), 20);
});

test('with autoAck off nothing is settled for the handler', async () => {
  await using fake = await broker([popped({ a: [1] }), popped({ a: [2] })]);
  const consumer = group(fake).consume({ limit: 2, autoAck: false }, async (message) => {
    if (message.data === 2) {
      await message.ack();
    }
  });
  assert.deepEqual(await consumer.done, { handled: 2, failed: 0, batches: 2 });
  assert.deepEqual(acks(fake), [[['a-0', 'completed']]]);
});

test('what is done is acknowledged after a second, though the batch goes on', async () => {
  await using fake = await broker([popped({ a: [1, 2] })]);
  const consumer = group(fake).consume({ batch: 2, limit: 2 }, async (message) => {
    if (message.data === 2) {
      await until(() => acks(fake).length === 1);
    }
  });
  await consumer.done;
  assert.deepEqual(acks(fake), [[['a-0', 'completed']], [['a-1', 'completed']]]);
});

test('nothing of a batch is acknowledged before its handler ends: a dead letter would complete what is before it', async () => {
  await using fake = await broker([popped({ a: [1, 'x'] })]);
  const consume = group(fake, numbers).consume({ batch: 2, limit: 2 });
  const consumer = consume.batches(async () => {
    await new Promise((resolve) => setTimeout(resolve, 1_100));
    assert.deepEqual(acks(fake), []);
    throw new Error('no');
  });
  assert.deepEqual(await consumer.done, { handled: 0, failed: 2, batches: 1 });
  const unread = ['a-1', 'failed', 'cannot decode the payload: not a number'];
  assert.deepEqual(acks(fake), [[unread, ['a-0', 'failed', 'no']]]);
});

test('a payload that cannot be decoded is nacked even if handlers acknowledge themselves', async () => {
  await using fake = await broker([popped({ a: [1, 'x', 3] })]);
  const consumer = group(fake, numbers).consume({ batch: 3, limit: 2, autoAck: false }, (message) => message.ack());
  await consumer.done;
  const unread = ['a-1', 'failed', 'cannot decode the payload: not a number'];
  assert.deepEqual(acks(fake), [[['a-0', 'completed']], [unread, ['a-2', 'retry']]]);
});

function numbers(payload: unknown): number {
  if (typeof payload !== 'number') {
    throw new Error('not a number');
  }
  return payload;
}

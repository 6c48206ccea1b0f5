import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Queen } from 'queen-client';
import type { Logger, QueenOptions } from 'queen-client';

import { QUICK, until } from './support/expect.js';
import { acked, Fake, popped } from './support/fake.js';
import type { Reply } from './support/fake.js';

function listening(): { lines: string[]; logger: Logger } {
  const lines: string[] = [];
  return { lines, logger: { error: (text) => lines.push(`error ${text}`), warn: (text) => lines.push(`warn ${text}`) } };
}

function delivering(deliveries: Reply[]): Promise<Fake> {
  return Fake.start((asked) => (asked.method === 'GET' ? (deliveries.shift() ?? { status: 204 }) : acked(asked)));
}

/** A handler with a bug. */
function mistaken(): void {
  (undefined as unknown as () => void)();
}

test('a handler that fails is reported on the console with its message, its error and its stack', async (context) => {
  await using fake = await delivering([popped({ 'customer-7': [1] })]);
  const said = context.mock.method(console, 'error', () => {});
  await new Queen(fake.url).queue('q').group('g').consume({ limit: 1 }, mistaken).done;
  assert.equal(said.mock.callCount(), 1);
  const [text] = said.mock.calls[0]!.arguments as [string];
  assert.match(text, /^queen-client: handler failed \(queue q, partition customer-7, transaction id customer-7-0\): TypeError: /);
  assert.match(text, /\n +at mistaken/);
});

test('a report of a batch names its first message and how many there are, and the cause of its error', async () => {
  await using fake = await delivering([popped({ a: [1, 2, 3] })]);
  const { lines, logger } = listening();
  const broken = () => {
    throw new Error('no invoice', { cause: new RangeError('total is -1') });
  };
  await new Queen({ url: fake.url, logger }).queue('q').group('g').consume({ limit: 3 }).batches(broken).done;
  assert.equal(lines.length, 1);
  assert.match(lines[0]!, /^error queen-client: handler failed \(queue q, partition a, transaction id a-0, first of 3\): Error: no invoice\n/);
  assert.match(lines[0]!, /\ncaused by: RangeError: total is -1\n/);
});

test('what a listener hears is not logged as well', async () => {
  await using fake = await delivering([popped({ a: [1] })]);
  const { lines, logger } = listening();
  const heard: unknown[] = [];
  const options = { limit: 1, onError: (error: unknown) => heard.push(error) };
  await new Queen({ url: fake.url, logger }).queue('q').group('g').consume(options, mistaken).done;
  assert.equal(heard.length, 1);
  assert.deepEqual(lines, []);
});

test('an outage of a broker is reported when it starts and when it ends, however many requests fail', async () => {
  let away = 6;
  let wanted: 'close' | undefined = 'close';
  await using fake = await Fake.start((asked) => {
    if (wanted && away-- > 0) {
      return wanted;
    }
    return asked.method === 'GET' ? { status: 204 } : acked(asked);
  });
  const { lines, logger } = listening();
  const consumer = new Queen({ url: fake.url, logger, ...QUICK }).queue('q').group('g').consume({ concurrency: 2, wait: 50 }, () => {});
  await until(() => lines.length === 2);
  await consumer.stop();
  assert.ok(fake.asked.length > 6);
  assert.match(lines[0]!, new RegExp(`^warn queen-client: broker ${fake.url} does not respond: .*cannot reach`));
  assert.match(lines[1]!, new RegExp(`^warn queen-client: broker ${fake.url} responds again after [0-9.]+ s$`));
  assert.equal(lines.length, 2);
});

test('a failing token function is reported once, and so is its recovery', async () => {
  await using fake = await delivering([]);
  const { lines, logger } = listening();
  let asked = 0;
  const token = () => {
    if (++asked <= 3) {
      throw new Error('the vault is closed');
    }
    return 'secret';
  };
  await new Queen({ url: fake.url, logger, token, ...QUICK }).queue('q').pop();
  assert.equal(lines.length, 2);
  assert.match(lines[0]!, /^warn queen-client: token function does not respond: .*the vault is closed$/);
  assert.match(lines[1]!, /^warn queen-client: token function responds again after [0-9.]+ s$/);
});

test('pops that a broker refuses for a while are reported when that begins and when it ends', async () => {
  let refusals = 5;
  await using fake = await Fake.start(() => (refusals-- > 0 ? { status: 500, body: { error: 'out of order' } } : { status: 204 }));
  const { lines, logger } = listening();
  const consumer = new Queen({ url: fake.url, logger, ...QUICK }).queue('q').group('g').consume({ wait: 50 }, () => {});
  await until(() => lines.length === 2);
  await consumer.stop();
  assert.deepEqual(lines.map((line) => line.replace(/after [0-9.]+ s/, 'after N s')), [
    'warn queen-client: pops are failing; retrying (queue q): GET /api/v1/pop/queue/q: 500 out of order',
    'warn queen-client: pops work again after N s (queue q)',
  ]);
});

test('an acknowledgement that fails and a lease that is lost are reported with their messages', async () => {
  await using fake = await Fake.start((asked) => {
    if (asked.path.endsWith('/extend')) {
      return { status: 200, body: { success: false, expiresAt: null, error: 'expired' } };
    }
    return asked.method === 'GET' ? popped({ a: [1] }, 0.06) : { status: 403, body: { error: 'not yours' } };
  });
  const { lines, logger } = listening();
  const group = new Queen({ url: fake.url, logger, ...QUICK }).queue('q').group('g');
  await group.consume({ limit: 1, renew: false }, () => {}).done;
  const consumer = group.consume({}, (_, context) => {
    return new Promise<void>((resolve) => {
      context.signal.addEventListener('abort', () => {
        context.stop();
        resolve();
      });
    });
  });
  await consumer.done;
  assert.equal(lines.length, 2);
  assert.match(lines[0]!, /^error queen-client: acknowledgement failed \(queue q, partition a, transaction id a-0\): .*403 not yours$/);
  assert.match(lines[1]!, /^error queen-client: renewal failed \(queue q, partition a, transaction id a-0\): the lease is lost/);
});

test('undelivered messages of a buffer are logged, unless their receipts are awaited', async () => {
  await using fake = await Fake.start(() => ({ status: 403, body: { error: 'not yours' } }));
  const { lines, logger } = listening();
  const buffer = new Queen({ url: fake.url, logger }).queue<number>('q').buffer({ linger: 0 });
  const receipt = await buffer.push(1);
  await assert.rejects(receipt.result);
  await buffer.push(2);
  await assert.rejects(buffer.flush());
  assert.equal(lines.length, 1);
  assert.match(lines[0]!, /^error queen-client: 1 messages could not be delivered, .*not yours \(queue q\)$/);
});

test('a logger has what it needs, and one that throws ends nothing', async () => {
  assert.throws(() => new Queen({ url: 'http://a', logger: console.log as unknown as Logger }), /logger/);
  assert.throws(() => new Queen({ url: 'http://a', logger: { error: () => {} } as unknown as Logger }), /logger/);
  await using fake = await delivering([popped({ a: [1] })]);
  const full = () => {
    throw new Error('the disk is full');
  };
  const options: QueenOptions = { url: fake.url, logger: { error: full, warn: full } };
  const { failed } = await new Queen(options).queue('q').group('g').consume({ limit: 1 }, mistaken).done;
  assert.equal(failed, 1);
});

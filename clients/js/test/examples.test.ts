import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';

import type { Broker } from './support/broker.js';
import { PACKAGE, startBroker } from './support/broker.js';

const run = promisify(execFile);
const PATIENCE = 60_000;

/** What the last line of each says. */
const ENDS: Record<string, string> = {
  'fan-out': 'mails: 3, statistics: 3',
  'per-customer-ordering': '15 in order, 0 out of order',
  pipeline: '3 orders, 3 invoices',
  replay: 'again: 12',
  worker: '20 handled, 1 failed',
};

let broker: Broker;
before(async () => {
  broker = await startBroker();
});
after(() => broker.stop());

async function output(file: string): Promise<string> {
  const env = { ...process.env, QUEEN_URL: broker.url };
  const { stdout } = await run(process.execPath, [file], { env, timeout: PATIENCE });
  return stdout.trimEnd();
}

test('every example is tried here', async () => {
  const files = await readdir(join(PACKAGE, 'examples'));
  assert.deepEqual(files.sort(), Object.keys(ENDS).map((name) => `${name}.ts`).sort());
});

for (const [name, end] of Object.entries(ENDS)) {
  test(`the example ${name} does what it says`, async () => {
    const said = await output(join(PACKAGE, 'build/examples', `${name}.js`));
    assert.equal(said.split('\n').pop(), end);
  });
}

test('the quickstart of the README runs as it stands there', async () => {
  const readme = await readFile(join(PACKAGE, 'README.md'), 'utf8');
  const code = /## Quickstart[^]*?```js\n([^]*?)```/.exec(readme)![1]!;
  assert.ok(code.includes("'http://localhost:6632'"));
  const file = join(PACKAGE, 'build/quickstart.mjs');
  await writeFile(file, code.replace("'http://localhost:6632'", 'process.env.QUEEN_URL'));
  try {
    assert.equal(await output(file), 'customer-7 ordered tea for 10\n1 invoice');
  } finally {
    await rm(file);
  }
});

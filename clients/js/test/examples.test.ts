import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { copyFile, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';
import { promisify } from 'node:util';

import type { Broker } from './support/broker.js';
import { PACKAGE, startBroker } from './support/broker.js';

const run = promisify(execFile);
const PATIENCE = 60_000;

/** The last line that each prints. */
const ENDS: Record<string, string> = {
  'fan-out': 'mails: 3, statistics: 3',
  'per-customer-ordering': '15 in order, 0 out of order',
  pipeline: '3 orders, 3 invoices',
  replay: 'again: 12',
  worker: '20 handled, 1 failed',
};

let broker: Broker;
/** A folder in which the package is installed. */
let folder: string;

before(async () => {
  broker = await startBroker();
  folder = await mkdtemp(join(tmpdir(), 'queen-js-recipes-'));
  const pack = ['pack', '--ignore-scripts', '--json', '--offline', '--pack-destination', folder];
  const { stdout } = await run('npm', pack, { cwd: PACKAGE });
  const [{ filename }] = JSON.parse(stdout) as [{ filename: string }];
  await run('npm', ['install', '--offline', '--no-audit', '--no-fund', join(folder, filename)], { cwd: folder });
});
after(async () => {
  await rm(folder, { recursive: true, force: true });
  await broker.stop();
});

/** The output of `node NAME` in that folder. */
async function output(name: string): Promise<string> {
  const env = { ...process.env, QUEEN_URL: broker.url };
  const { stdout } = await run(process.execPath, [name], { cwd: folder, env, timeout: PATIENCE });
  return stdout.trimEnd();
}

test('every example is tried here, and the docs link to it', async () => {
  const files = await readdir(join(PACKAGE, 'examples'));
  assert.deepEqual(files.sort(), Object.keys(ENDS).map((name) => `${name}.mjs`).sort());
  const docs = await readFile(join(PACKAGE, '../../docs/clients.md'), 'utf8');
  assert.deepEqual(files.filter((name) => !docs.includes(`(../clients/js/examples/${name})`)), []);
});

for (const [name, end] of Object.entries(ENDS)) {
  test(`the example ${name} runs as it is and does what it says`, async () => {
    await copyFile(join(PACKAGE, 'examples', `${name}.mjs`), join(folder, `${name}.mjs`));
    const said = await output(`${name}.mjs`);
    assert.equal(said.split('\n').pop(), end);
  });
}

test('the quickstart of the README runs unchanged', async () => {
  const readme = await readFile(join(PACKAGE, 'README.md'), 'utf8');
  const code = /## Quickstart[^]*?```js\n([^]*?)```/.exec(readme)![1]!;
  assert.ok(code.includes("'http://localhost:6632'"));
  await writeFile(join(folder, 'quickstart.mjs'), code.replace("'http://localhost:6632'", 'process.env.QUEEN_URL'));
  assert.equal(await output('quickstart.mjs'), 'customer-7 ordered tea for 10\n1 invoice');
});

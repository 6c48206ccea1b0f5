/** Runs the scenario suite: `queen-testkit scenarios -- node build/test/scenarios.js [part of a name]`. */

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';

import { Queen } from 'queen-client';
import type { QueenError, QueenOptions } from 'queen-client';

import { duration, isTold, none, VERBS } from './support/verbs.js';
import type { Json, Outcome, Surroundings } from './support/verbs.js';

const [URLS, CONTROL, FOLDER] = ['URLS', 'CONTROL', 'DIR'].map((name) => {
  const value = process.env[`QUEEN_SCENARIOS_${name}`];
  return value ?? assert.fail(`QUEEN_SCENARIOS_${name} is not set: queen-testkit scenarios -- COMMAND`);
}) as [string, string, string];

async function control(method: string, path: string, body: unknown = {}): Promise<Json> {
  const sent = method === 'GET' ? {} : { body: JSON.stringify(body) };
  const response = await fetch(CONTROL + path, { method, headers: { 'Content-Type': 'application/json' }, ...sent });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${text}`);
  return text ? JSON.parse(text) : undefined;
}

function client({ urls = 1, client = {} }: Json): Queen {
  const { token, requestTimeout, deadline, retryDelay, maxRetryDelay, retryOn429, honorRetryAfter, ...more } = client;
  const { queuedOperationBehavior, ...rest } = more;
  none(rest);
  const times = Object.entries({ requestTimeout, deadline, retryDelay, maxRetryDelay });
  const given = times.filter(([, text]) => text !== undefined).map(([name, text]) => [name, duration(text)]);
  const options: QueenOptions = { token, retryOn429, honorRetryAfter, queuedOperationBehavior, ...Object.fromEntries(given) };
  return new Queen({ ...options, urls: URLS.split(',').slice(0, urls) });
}

/** Replaces every `$word` with a unique name. */
function replaced(value: Json, names: Map<string, string>): Json {
  if (typeof value === 'string') {
    return value.replace(/\$([a-z]+)/g, (_, word: string) => {
      const name = names.get(word) ?? `${word}-${randomBytes(4).toString('hex')}`;
      names.set(word, name);
      return name;
    });
  }
  if (Array.isArray(value)) {
    return value.map((element) => replaced(element, names));
  }
  if (typeof value === 'object' && value !== null) {
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, replaced(inner, names)]));
  }
  return value;
}

async function run(scenario: Json): Promise<void> {
  const { name: _, urls, client: options, steps, ...rest } = scenario;
  none(rest);
  await control('POST', '/reset');
  const queen = client({ urls, client: options });
  try {
    await perform(replaced(steps, new Map()), { queen, saved: new Map(), control });
  } finally {
    await queen.close().catch(() => {});
  }
}

async function perform(steps: Json[], around: Surroundings, where = ''): Promise<void> {
  for (const [index, step] of steps.entries()) {
    const place = `${where}${index + 1}`;
    if ('parallel' in step) {
      const { parallel, ...rest } = step;
      none(rest);
      const lists = parallel.map((list: Json[], number: number) => perform(list, around, `${place}.${number + 1}.`));
      // All of them end before the next scenario begins.
      const ends: PromiseSettledResult<void>[] = await Promise.allSettled(lists);
      for (const end of ends) {
        if (end.status === 'rejected') {
          throw end.reason;
        }
      }
      continue;
    }
    const { expect = {}, save, ...verbs } = step;
    const [[verb, fields], ...more] = Object.entries(verbs) as [[string, Json]];
    none(Object.fromEntries(more));
    try {
      await performOne(verb, fields, expect, save, around);
    } catch (cause) {
      throw new Error(`step ${place} (${verb}): ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
    }
  }
}

async function performOne(verb: string, fields: Json, expect: Json, save: string | undefined, around: Surroundings) {
  const action = VERBS[verb];
  assert.ok(action, `the runner knows no verb ${verb}`);
  const began = performance.now();
  let outcome: Outcome;
  try {
    outcome = await action(fields, around);
  } catch (error) {
    if (!isTold(error)) {
      throw error;
    }
    outcome = { error };
  }
  const took = performance.now() - began;
  if (outcome.error !== undefined && expect.error === undefined) {
    throw outcome.error;
  }
  if (save !== undefined) {
    assert.ok(outcome.messages, `${verb} has no messages to save`);
    around.saved.set(save, outcome.messages);
  }
  for (const [name, wanted] of Object.entries(expect)) {
    const check = EXPECTATIONS[name];
    assert.ok(check, `the runner knows no expectation ${name}`);
    check(wanted, outcome, took);
  }
}

type Check = (wanted: Json, outcome: Outcome, took: number) => void;

function same(name: keyof Outcome): Check {
  return (wanted, outcome) => assert.deepEqual(told(outcome, name), wanted, `${name}: ${JSON.stringify(outcome[name])}`);
}

/** An unknown expectation is an error. */
function told<N extends keyof Outcome>(outcome: Outcome, name: N): NonNullable<Outcome[N]> {
  const value = outcome[name];
  assert.ok(value !== undefined && value !== null, `nothing is told about ${name}`);
  return value;
}

function atMost(value: number, most: number, what: string): void {
  assert.ok(value <= most, `${what} is ${value} and at most ${most} was expected`);
}

function atLeast(value: number, least: number, what: string): void {
  assert.ok(value >= least, `${what} is ${value} and at least ${least} was expected`);
}

function sorted(values: readonly unknown[]): string[] {
  return values.map((value) => JSON.stringify(value)).sort();
}

function gaps(outcome: Outcome): number[] {
  const requests = told(outcome, 'requests');
  return requests.slice(1).map((request, index) => request.atMs - requests[index].atMs);
}

const EXPECTATIONS: Record<string, Check> = {
  statuses: same('statuses'),
  operation: same('operation'),
  data: same('data'),
  dataUnordered: (wanted, outcome) => assert.deepEqual(sorted(told(outcome, 'data')), sorted(wanted)),
  count: same('count'),
  partitions: (wanted, outcome) => assert.deepEqual(told(outcome, 'partitions'), [...wanted].sort()),
  traceparents: same('traceparents'),
  errors: same('errors'),
  success: same('success'),
  handled: same('handled'),
  failed: same('failed'),
  batches: same('batches'),
  leaseLost: same('leaseLost'),
  depth: same('depth'),
  errorsToldAtLeast: (wanted, outcome) => atLeast(told(outcome, 'errorsTold'), wanted, 'errors told'),
  stopTookAtMostMs: (wanted, outcome) => atMost(told(outcome, 'stopTookMs'), wanted, 'the stop'),
  tookAtLeastMs: (wanted, _, took) => atLeast(took, wanted, 'the step'),
  tookAtMostMs: (wanted, _, took) => atMost(took, wanted, 'the step'),
  error: (wanted, outcome) => checkError(wanted, told(outcome, 'error') as QueenError),
  countAtLeast: (wanted, outcome) => atLeast(told(outcome, 'requests').length, wanted, 'count'),
  countAtMost: (wanted, outcome) => atMost(told(outcome, 'requests').length, wanted, 'count'),
  sameTransactionIds(wanted, outcome) {
    assert.equal(wanted, true);
    const [first, ...others] = told(outcome, 'requests').map(({ transactionIds }) => transactionIds);
    assert.ok(first?.length > 0, 'no transaction ids');
    others.forEach((ids) => assert.deepEqual(ids, first));
  },
  itemsAtMost(wanted, outcome) {
    const requests = told(outcome, 'requests');
    atLeast(requests.length, 1, 'requests');
    requests.forEach(({ items }) => atMost(items, wanted, 'items'));
  },
  gapAtLeastMs: (wanted: number[], outcome) => wanted.forEach((gap, index) => atLeast(gaps(outcome)[index]!, gap, 'gap')),
  gapAtMostMs: (wanted: number[], outcome) => wanted.forEach((gap, index) => atMost(gaps(outcome)[index]!, gap, 'gap')),
  brokersUsed: (wanted, outcome) => {
    assert.equal(new Set(told(outcome, 'requests').map(({ broker }) => broker)).size, wanted, 'brokers used');
  },
  authorization: (wanted, outcome) => {
    assert.deepEqual(told(outcome, 'requests').map(({ authorization }) => authorization), wanted);
  },
};

function checkError(wanted: Json, error: QueenError): void {
  const { kind, status, contains, attempts, attemptsAtLeast: least, statuses, undelivered, ...rest } = wanted;
  none(rest);
  const what = `${error.kind}: ${error.message}`;
  assert.equal(error.kind, kind ?? error.kind, what);
  assert.equal(error.status, status ?? error.status, what);
  assert.ok(contains === undefined || error.message.includes(contains), what);
  assert.equal(error.attempts, attempts ?? error.attempts, `attempts of ${what}`);
  atLeast(error.attempts, least ?? 0, 'attempts');
  if (statuses !== undefined) {
    assert.deepEqual(error.results?.map((result) => 'status' in result && result.status), statuses, what);
  }
  if (undelivered !== undefined) {
    assert.equal(error.undelivered?.length, undelivered, what);
  }
}

const [, , part = ''] = process.argv;
let passed = 0;
const failures: string[] = [];
for (const file of (await readdir(FOLDER)).filter((name) => name.endsWith('.json')).sort()) {
  for (const scenario of JSON.parse(await readFile(join(FOLDER, file), 'utf8'))) {
    const name = `${file}: ${scenario.name}`;
    if (!name.includes(part)) {
      continue;
    }
    try {
      await run(scenario);
      passed += 1;
      console.log(`ok      ${name}`);
    } catch (error) {
      failures.push(name);
      console.log(`FAILED  ${name}\n        ${error instanceof Error ? error.message : String(error)}`);
    }
  }
}
console.log(`${passed} passed, ${failures.length} failed`);
failures.forEach((name) => console.log(`failed: ${name}`));
process.exitCode = failures.length === 0 && passed > 0 ? 0 : 1;

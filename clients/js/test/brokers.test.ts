import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Brokers, mix, routeKey } from '#dist/brokers.js';

const URLS = ['http://a:6632', 'http://b:6632', 'http://c:6632'];
const KEYS = Array.from({ length: 300 }, (_, number) => routeKey('orders', `customer-${number}`));

const [A, B, C] = URLS as [string, string, string];

test('the hash is the one that other clients compute', () => {
  assert.equal(routeKey(''), 0x811c9dc5);
  assert.equal(routeKey('a'), 0xe40c292c);
  assert.equal(routeKey('foobar'), 0xbf9cf968);
  assert.equal(routeKey('foo', 'bar'), routeKey('foo\nbar'));
  assert.equal(mix(0), 0);
  assert.equal(mix(1), 0x514e28b7);
});

test('keys are spread, and a broker that goes down moves its own only', () => {
  const brokers = new Brokers(URLS);
  const before = KEYS.map((key) => brokers.choose({ key }, 0));
  for (const url of URLS) {
    const share = before.filter((chosen) => chosen === url).length;
    assert.ok(share > 60 && share < 140, `${url}: ${share}`);
  }
  brokers.down(B, 0);
  KEYS.forEach((key, index) => {
    const after = brokers.choose({ key }, 0);
    assert.notEqual(after, B);
    assert.ok(before[index] === B || before[index] === after);
  });
  brokers.up(B);
  assert.deepEqual(KEYS.map((key) => brokers.choose({ key }, 0)), before);
});

test('what a broker delivered goes back to it while it is well, and else to the first that is', () => {
  const brokers = new Brokers(URLS);
  assert.equal(brokers.choose({ at: C }, 0), C);
  assert.equal(brokers.choose({}, 0), A);
  brokers.down(C, 0);
  assert.equal(brokers.choose({ at: C }, 0), A);
  brokers.down(A, 0);
  assert.equal(brokers.choose({}, 0), B);
});

test('a broker is left alone for a second, and twice as long each time, up to half a minute', () => {
  const brokers = new Brokers([A]);
  let now = 0;
  for (const pause of [1, 2, 4, 8, 16, 30, 30]) {
    brokers.down(A, now);
    assert.ok(!brokers.anyHealthy(now + pause * 1000 - 1), `${pause}`);
    now += pause * 1000;
    assert.ok(brokers.anyHealthy(now), `${pause}`);
  }
  brokers.up(A);
  brokers.down(A, now);
  assert.ok(brokers.anyHealthy(now + 1000));
});

test('requests that fail together are one failure', () => {
  const brokers = new Brokers([A]);
  for (let failure = 0; failure < 10; failure++) {
    brokers.down(A, 0);
  }
  assert.ok(brokers.anyHealthy(1000));
});

test('when all are down the one due first is asked, and they take turns', () => {
  const brokers = new Brokers([A, B]);
  brokers.down(A, 0);
  brokers.down(B, 100);
  assert.equal(brokers.choose({}, 200), A);
  brokers.down(A, 200);
  assert.equal(brokers.choose({}, 300), B);
});

/** The client in a web page: in Chromium, from another origin, with only the built files. */

import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFile } from 'node:fs/promises';
import type { AddressInfo } from 'node:net';
import { createServer } from 'node:http';
import { join, normalize } from 'node:path';
import { after, before, test } from 'node:test';

import { chromium } from 'playwright-core';
import type { Browser } from 'playwright-core';

import type { Broker } from './support/broker.js';
import { PACKAGE, startBroker } from './support/broker.js';

/** The code of the page, as text because it runs there and not here. */
const SCRIPT = `
  import { Queen } from '/dist/index.js';

  window.run = async (url) => {
    const queen = new Queen(url);
    const queue = queen.queue('from-a-browser');
    const pushed = await queue.partition('ü/1').push([{ n: 1 }, { n: 2 }, { n: 3 }]);
    const seen = [];
    const summary = await queue.group('page').consume({ limit: 3, idleTimeout: 30_000 }, (message) => {
      seen.push([message.partition, message.data.n]);
    }).done;

    const waiting = queue.group('page').consume({}, () => {});
    await waiting.stop();

    const buffer = queue.buffer({ linger: 1 });
    const receipt = await buffer.push({ n: 4 });
    await buffer.close();
    const [message] = await queue.group('page').pop();
    const ack = await message.ack();

    const refused = await new Queen({ url: 'http://127.0.0.1:1', deadline: 300 }).queue('q').push(1).catch((error) => error.kind);
    await queen.close();
    return { statuses: pushed.map((one) => one.status), seen, handled: summary.handled, popped: message.data.n, acked: ack.success, refused };
  };
`;

let broker: Broker;
let browser: Browser;
const site = createServer(async (request, response) => {
  const path = normalize(request.url ?? '/');
  if (path === '/') {
    response.setHeader('Content-Type', 'text/html; charset=utf-8');
    response.end(`<!doctype html><title>a page</title><script type="module">${SCRIPT}</script>`);
  } else if (path.startsWith('/dist/')) {
    response.setHeader('Content-Type', 'text/javascript');
    response.end(await readFile(join(PACKAGE, path)));
  } else {
    response.writeHead(404).end();
  }
});

before(async () => {
  site.listen(0, '127.0.0.1');
  await once(site, 'listening');
  broker = await startBroker({ QUEEN_CORS_ORIGINS: `http://127.0.0.1:${(site.address() as AddressInfo).port}` });
  browser = await chromium.launch({
    executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium',
    // Chromium's sandbox does not run as root. The other flags keep it from contacting the internet.
    args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--disable-background-networking', '--disable-component-update'],
  });
});
after(async () => {
  await browser?.close();
  await broker?.stop();
  site.close();
});

test('a page pushes, consumes, waits, buffers and acknowledges, from another origin', async () => {
  const page = await browser.newPage();
  const errors: string[] = [];
  page.on('pageerror', (error) => errors.push(String(error)));
  await page.goto(`http://127.0.0.1:${(site.address() as AddressInfo).port}/`);
  const outcome = await page.evaluate(`window.run(${JSON.stringify(broker.url)})`);
  assert.deepEqual(outcome, {
    statuses: ['queued', 'queued', 'queued'],
    seen: [['ü/1', 1], ['ü/1', 2], ['ü/1', 3]],
    handled: 3,
    popped: 4,
    acked: true,
    refused: 'network',
  });
  assert.deepEqual(errors, []);
});

/** A broker as users run it: in its own process, with its own PostgreSQL. */

import { spawn } from 'node:child_process';
import { chmod, mkdtemp, open, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { fileURLToPath } from 'node:url';

/** The folder of the package, from build/test/support. */
export const PACKAGE = fileURLToPath(new URL('../../../', import.meta.url));

const BINARY = process.env.QUEEN_BIN ?? join(PACKAGE, '../../target/debug/queen');
const KEPT = ['PATH', 'HOME', 'TMPDIR', 'QUEEN_PG_BIN_DIR', 'LOG_LEVEL', 'RUST_BACKTRACE'];
const START_PATIENCE = 60_000;

export interface Broker {
  readonly url: string;
  stop(): Promise<void>;
}

/** `QUEEN_URL` is the address of a running broker with its own settings. */
export async function startBroker(settings: Record<string, string> = {}): Promise<Broker> {
  if (process.env.QUEEN_URL) {
    return { url: process.env.QUEEN_URL, stop: async () => {} };
  }
  const folder = await mkdtemp(join(tmpdir(), 'queen-js-'));
  // As root, PostgreSQL runs as another user, who needs access to the folder.
  await chmod(folder, 0o755);
  const log = join(folder, 'log');
  const output = await open(log, 'w');
  // Not all variables: a stray PG_HOST would send the broker to another database.
  const kept = Object.fromEntries(KEPT.flatMap((name) => (process.env[name] ? [[name, process.env[name]]] : [])));
  const broker = spawn(BINARY, ['serve', '--data-dir', join(folder, 'data')], {
    // Nothing is deferred only because this machine is busy.
    env: { ...kept, HOST: '127.0.0.1', PORT: '0', OPQ_PATIENCE_MS: '3600000', ...settings },
    stdio: ['ignore', output.fd, output.fd],
  });
  const ended = new Promise<number | null>((resolve, reject) => {
    broker.once('exit', resolve);
    broker.once('error', reject);
  });
  await output.close();
  const clean = () => rm(folder, { recursive: true, force: true });

  const began = performance.now();
  let url: string | undefined;
  while (url === undefined) {
    const text = await readFile(log, 'utf8');
    url = /listening on (http:\/\/[\w.:[\]-]+)\n/.exec(text)?.[1];
    const late = performance.now() - began > START_PATIENCE;
    const dead = await Promise.race([ended.then(() => true), sleep(50, false)]);
    if (!url && (late || dead)) {
      broker.kill('SIGKILL');
      await clean();
      throw new Error(`the broker does not listen:\n${text}`);
    }
  }
  return {
    url,
    async stop() {
      broker.kill('SIGTERM');
      const code = await ended;
      const text = await readFile(log, 'utf8');
      await clean();
      if (code !== 0 || text.includes('panicked')) {
        throw new Error(`the broker ended with ${code}:\n${text}`);
      }
    },
  };
}

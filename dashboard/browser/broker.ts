// A broker as users run it: the real program in its own process.

import { execFile, spawn, type ChildProcess } from 'node:child_process'
import { mkdirSync } from 'node:fs'
import { open, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { promisify } from 'node:util'

export const QUEEN = process.env.QUEEN_BIN ?? fileURLToPath(new URL('../../target/debug/queen', import.meta.url))

/** Timing assertions must hold for unoptimized builds. */
export const DEBUG_BUILD = QUEEN.includes('/debug/')

const KEPT = ['PATH', 'HOME', 'TMPDIR', 'QUEEN_PG_BIN_DIR', 'LOG_LEVEL', 'RUST_BACKTRACE']
/** The first start creates a PostgreSQL cluster, possibly on a busy machine. */
const START_PATIENCE_MS = 60_000

export type Settings = Record<string, string>

/** Not all variables: a stray PG_HOST would send the broker to another database. */
export function environment(settings: Settings): Settings {
  const kept = KEPT.flatMap((name) => (process.env[name] === undefined ? [] : [[name, process.env[name]]]))
  return { ...Object.fromEntries(kept), ...settings }
}

/** Runs a command of the same program; returns its stdout. */
export async function command(settings: Settings, ...args: string[]): Promise<string> {
  const { stdout } = await promisify(execFile)(QUEEN, args, { env: environment(settings) })
  return stdout.trim()
}

export class Broker {
  readonly url: string
  readonly settings: Settings
  readonly #folder: string
  #process: ChildProcess
  #ended: Promise<number | null>

  private constructor(url: string, settings: Settings, folder: string, running: Running) {
    this.url = url
    this.settings = settings
    this.#folder = folder
    this.#process = running.process
    this.#ended = running.ended
  }

  get pid(): number {
    return this.#process.pid!
  }

  /** `folder` contains its files; the caller removes it. */
  static async start(folder: string, settings: Settings): Promise<Broker> {
    mkdirSync(folder, { recursive: true })
    const all = { HOST: '127.0.0.1', PORT: '0', FILE_BUFFER_DIR: join(folder, 'spool'), ...settings }
    const running = await run(folder, all)
    // It keeps the free port that it got.
    return new Broker(running.url, { ...all, PORT: new URL(running.url).port }, folder, running)
  }

  /** Like a machine that loses power. */
  async kill(): Promise<void> {
    this.#process.kill('SIGKILL')
    await this.#ended
  }

  /** After `kill`: restarts at the same address. */
  async again(): Promise<void> {
    const running = await run(this.#folder, this.settings)
    this.#process = running.process
    this.#ended = running.ended
  }

  async stop(): Promise<void> {
    this.#process.kill('SIGTERM')
    const code = await this.#ended
    const said = await readFile(log(this.#folder), 'utf8')
    if (code !== 0 || said.includes('panicked')) throw new Error(`the broker ended with ${code}:\n${said}`)
  }
}

interface Running {
  process: ChildProcess
  ended: Promise<number | null>
  url: string
}

function log(folder: string): string {
  return join(folder, 'log')
}

async function run(folder: string, settings: Settings): Promise<Running> {
  const output = await open(log(folder), 'w')
  // Nothing is deferred only because this machine is busy.
  const env = environment({ OPQ_PATIENCE_MS: '3600000', ...settings })
  const started = spawn(QUEEN, ['serve'], { env, stdio: ['ignore', output.fd, output.fd] })
  const ended = new Promise<number | null>((resolve) => {
    started.once('exit', resolve)
    started.once('error', () => resolve(null))
  })
  // Also if an earlier failure kept it from being stopped.
  const last = () => void started.kill('SIGKILL')
  process.once('exit', last)
  void ended.then(() => process.off('exit', last))
  await output.close()
  const until = performance.now() + START_PATIENCE_MS
  for (;;) {
    const text = await readFile(log(folder), 'utf8')
    const url = /listening on (http:\/\/[\w.:[\]-]+)\n/.exec(text)?.[1]
    if (url !== undefined) return { process: started, ended, url }
    const dead = await Promise.race([ended.then(() => true), sleep(50, false)])
    if (dead || performance.now() > until) {
      started.kill('SIGKILL')
      throw new Error(`${QUEEN} does not listen:\n${text}`)
    }
  }
}

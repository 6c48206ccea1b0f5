// Brokers for the tests of a file, each with its own database in the PostgreSQL that `setup.ts` started.

import { spawn } from 'node:child_process'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { createConnection, createServer, type Socket } from 'node:net'
import { join } from 'node:path'
import { inject } from 'vitest'
import { Broker, QUEEN, command, environment, type Settings } from './broker.ts'

/** A unique name. */
function mark(): string {
  return randomUUID().slice(0, 8)
}

/** An empty database, and how to connect to it. */
export async function database(): Promise<string> {
  const name = `test_${mark()}`
  await sql(where('queen'), `create database ${name}`)
  return where(name)
}

function where(name: string): string {
  const { folder, port } = inject('socket')
  return `host=${folder} port=${port} user=queen dbname=${name}`
}

export async function broker(database: string, settings: Settings = {}): Promise<Broker> {
  return Broker.start(join(inject('folder'), `broker-${mark()}`), { DATABASE_URL: database, ...settings })
}

const QUIET = ['-X', '-q', '-A', '-t', '-v', 'ON_ERROR_STOP=1']

export function sql(database: string, text: string): Promise<string> {
  return command({ DATABASE_URL: database }, 'psql', ...QUIET, '-c', text)
}

/** Moves the clock of a database. */
export function travel(database: string, ago: string): Promise<string> {
  return sql(
    database,
    `create or replace function queen.now() returns timestamptz language sql volatile parallel safe
     as $$ select clock_timestamp() - interval '${ago}' $$`,
  )
}

/** Runs this in a session that stays open, with its locks, until it is ended. */
export async function session(database: string, text: string): Promise<() => Promise<void>> {
  const psql = spawn(QUEEN, ['psql', ...QUIET], {
    env: environment({ DATABASE_URL: database }),
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  psql.stdin.write(`${text};\n\\echo ready\n`)
  let said = ''
  for await (const piece of psql.stdout.iterator({ destroyOnReturn: false })) {
    said += piece
    if (said.includes('ready')) break
  }
  if (!said.includes('ready')) throw new Error(`psql cannot do ${text}`)
  return async () => {
    const gone = once(psql, 'exit')
    psql.stdin.end()
    await gone
  }
}

/** A connection to the database that can be cut. */
export interface Way {
  /** The same database, through this connection. */
  database: string
  cut(): void
  mend(): void
  close(): Promise<void>
}

export async function way(database: string): Promise<Way> {
  const { folder, port } = inject('socket')
  const open = new Set<Socket>()
  let whole = true
  const server = createServer((near) => {
    if (!whole) return void near.destroy()
    const far = createConnection(join(folder, `.s.PGSQL.${port}`))
    for (const [one, other] of [[near, far], [far, near]] as const) {
      open.add(one)
      one.pipe(other)
      one.on('error', () => other.destroy())
      one.on('close', () => {
        open.delete(one)
        other.destroy()
      })
    }
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const address = server.address() as { port: number }
  const cutAll = () => open.forEach((socket) => socket.destroy())
  return {
    database: database.replace(/host=\S+ port=\S+/, `host=127.0.0.1 port=${address.port}`),
    cut() {
      whole = false
      cutAll()
    },
    mend() {
      whole = true
    },
    async close() {
      cutAll()
      server.close()
      await once(server, 'close')
    },
  }
}


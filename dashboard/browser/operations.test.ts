import { Api, named, type Pushed } from './api.ts'
import type { Broker } from './broker.ts'
import { broker, database, session, sql } from './brokers.ts'
import { afterAll, agrees, beforeAll, cell, describe, dialog, eventually, expect, go, heading, load, noticed, rows, said, stat, test, text, toast, type Page } from './page.ts'

// A separate broker: here the database cannot keep up, and switches apply to all brokers.
let place: string
let server: Broker
let api: Api

beforeAll(async () => {
  place = await database()
  // The broker must not time out waiting for a lock before the tests are done with it.
  server = await broker(place, { OPQ_PATIENCE_MS: '100', DB_LOCK_TIMEOUT: '600000', DB_STATEMENT_TIMEOUT: '600000' })
  api = new Api(server.url)
})
afterAll(() => server?.stop())

/** Blocks the log until it is called: pushes are deferred. */
async function strain(): Promise<() => Promise<void>> {
  const off = await session(place, 'begin; lock table queen.segments in share mode')
  const waiting: Promise<unknown>[] = []
  const push = (partition: string) => api.ask<Pushed[]>('POST', '/api/v1/push', { items: [{ queue: 'strain', partition }] })
  // More than may be in flight at once.
  for (let n = 0; n < 6; n += 1) waiting.push(push(`stuck ${n}`))
  let probes = 0
  let first: Pushed | undefined
  await eventually(async () => {
    probes += 1
    const probe = push(`probe ${probes}`)
    waiting.push(probe)
    // One that is not deferred waits for the lock.
    const late = new Promise<undefined>((resolve) => setTimeout(resolve, 500))
    const answer = await Promise.race([probe, late])
    first = answer?.body[0]
    return answer?.status
  }).toBe(202)
  // The broker tries to store this one, and cannot.
  await eventually(() => statusOf(first!.operationId!)).toBe('processing')
  return async () => {
    await off()
    await Promise.all(waiting)
  }
}

/** From here on the broker leaves pending operations alone for the duration of a test. */
async function postpone(): Promise<void> {
  await sql(place, `create function queen.later() returns trigger language plpgsql as
    $$ begin new.due_at := new.due_at + interval '55 seconds'; return new; end $$`)
  await sql(place, `create trigger later before insert or update on queen.deferred for each row
    when (new.status = 'pending') execute function queen.later()`)
}

async function deferred(queue: string): Promise<string> {
  const [pushed] = await api.push([{ queue, payload: { total: 10 } }])
  expect(pushed!.operationId).toBeDefined()
  return pushed!.operationId!
}

async function statusOf(operation: string): Promise<string> {
  return (await api.get(`/api/v1/operations/${operation}`)).status
}

/** A line under "Facts". */
function fact(page: Page, name: string) {
  return page.locator('dl.facts > dt', { hasText: new RegExp(`^${name}$`) }).locator('xpath=following-sibling::dd[1]')
}

describe('deferred operations', () => {
  let calm: (() => Promise<void>) | undefined

  beforeAll(async () => {
    calm = await strain()
    await postpone()
  })
  afterAll(() => calm?.())

  test('are counted, listed and followed to their end', async ({ page }) => {
    const queue = named('busy')
    await load(page, server.url, ['push'], { queue })
    await page.getByRole('button', { name: 'Push', exact: true }).click()
    await toast(page, 'Deferred: durable, and will be stored in order').waitFor()
    await page.getByRole('link', { name: /^Operation / }).click()
    await heading(page, 'Deferred push').waitFor()
    expect(['pending', 'processing']).toContain(await text(fact(page, 'Status')))
    expect(await text(fact(page, 'Queue'))).toBe(queue)
    await go(page, ['operations'])
    await agrees(page, () => text(stat(page, 'Waiting')), async () => String((await api.get('/api/v1/operations/stats')).systemHealth.queueDepth))
    await page.getByLabel('Queue').fill(queue)
    await page.getByLabel('Queue').press('Enter')
    await eventually(() => rows(page, 'Deferred operations', queue).count()).toBe(1)
  })

  test('that wait are taken back: their messages are not stored', async ({ page }) => {
    const queue = named('cancel')
    const operation = await deferred(queue)
    await load(page, server.url, ['operations', operation])
    await eventually(() => text(fact(page, 'Status'))).toBe('pending')
    await page.getByRole('button', { name: 'Withdraw' }).click()
    await dialog(page).getByText('This message was confirmed to the producer as durable.').waitFor()
    await dialog(page).getByRole('button', { name: 'Withdraw' }).click()
    await toast(page, 'Operation is cancelled').waitFor()
    await eventually(() => text(fact(page, 'Status'))).toBe('cancelled')
    expect(await statusOf(operation)).toBe('cancelled')
  })

  test('that failed tell why, and are tried again or given up', async ({ page }) => {
    const queue = named('failed')
    const [again, never] = [await deferred(queue), await deferred(queue)]
    await sql(place, `select queen.close_deferred(array['${again}','${never}']::uuid[], 'failed', 'the disk is full', array[null, null]::text[])`)
    await load(page, server.url, ['operations'], { status: 'failed', queue })
    const failed = rows(page, 'Deferred operations', queue)
    await eventually(() => failed.count()).toBe(2)
    expect(await cell(failed.first(), 'Reason')).toBe('the disk is full')
    await eventually(() => text(stat(page, 'Failed'))).toBe('2')
    await failed.first().getByRole('button', { name: 'Retry' }).click()
    await toast(page, 'Pending again').waitFor()
    await eventually(() => failed.count()).toBe(1)
    await failed.first().getByRole('button', { name: 'Discard' }).click()
    await dialog(page).getByRole('button', { name: 'Discard' }).click()
    await toast(page, 'Operation is cancelled').waitFor()
    await eventually(() => failed.count()).toBe(0)
    await said(page, 'No failed operation matches')
    expect([await statusOf(again), await statusOf(never)].sort()).toEqual(['cancelled', 'pending'])
  })

  test('that failed are all tried again, and stored once the database keeps up', async ({ page }) => {
    const queue = named('all')
    const operations = [await deferred(queue), await deferred(queue), await deferred(queue)]
    const ids = operations.map((id) => `'${id}'`).join(',')
    await sql(place, `select queen.close_deferred(array[${ids}]::uuid[], 'failed', 'why', array[null, null, null]::text[])`)
    await sql(place, "drop trigger later on queen.deferred; update queen.deferred set due_at = queen.now() where status = 'pending'")
    await load(page, server.url, ['operations'], { status: 'failed', queue })
    await page.getByRole('button', { name: 'Retry all failed' }).click()
    await toast(page, '3 pending again').waitFor()
    await load(page, server.url, ['operations', operations[0]!])
    await calm?.()
    calm = undefined
    await noticed(page, () => text(fact(page, 'Status'))).toBe('completed')
    expect(await api.consume(queue, 3)).toHaveLength(3)
    await go(page, ['operations'])
    await noticed(page, () => text(stat(page, 'Waiting'))).toBe('0')
  })

  test('that are not there say so', async ({ page }) => {
    await load(page, server.url, ['operations', '00000000-0000-0000-0000-000000000000'])
    await said(page, 'Operation not found')
  })
})

describe('maintenance', () => {
  afterAll(async () => {
    await api.post('/api/v1/system/maintenance', { enabled: false })
    await api.post('/api/v1/system/maintenance/pop', { enabled: false })
  })

  async function flip(page: Page, name: string, to: 'on' | 'off'): Promise<void> {
    await page.getByRole('switch', { name }).click()
    await dialog(page).getByRole('button', { name: `Turn ${to}` }).click()
    await toast(page, `${name}: ${to}`).waitFor()
    await eventually(() => page.getByRole('switch', { name }).getAttribute('aria-checked')).toBe(String(to === 'on'))
    expect(await dialog(page).count()).toBe(0)
  }

  test('sends pushes to the spool, and hands them in afterwards', async ({ page }) => {
    const queue = named('spool')
    await load(page, server.url, ['operations'], { view: 'spool' })
    await eventually(() => text(stat(page, 'Spooled'))).toBe('0')
    await flip(page, 'Pushes go to the spool', 'on')
    expect((await api.get('/api/v1/system/maintenance')).maintenanceMode).toBe(true)
    await go(page, ['push'], { queue })
    await page.getByRole('button', { name: 'Push', exact: true }).click()
    await toast(page, 'Spooled until the database is available').waitFor()
    await eventually(() => text(page.getByRole('region', { name: 'Pushed from here' }))).toContain('buffered')
    await go(page, ['operations'], { view: 'spool' })
    await eventually(() => text(stat(page, 'Spooled'))).toBe('1')
    expect(await text(stat(page, 'Oldest'))).toMatch(/^just now$| ago$/)
    expect(await api.pop(queue)).toEqual([])
    await flip(page, 'Pushes go to the spool', 'off')
    await noticed(page, () => text(stat(page, 'Spooled'))).toBe('0')
    expect(await text(stat(page, 'Oldest'))).toBe('None')
    expect(await api.take(queue, 1)).toHaveLength(1)
    await go(page, ['messages'], { queue })
    await eventually(() => rows(page, 'Messages').count()).toBe(1)
  })

  test('has pops find nothing', async ({ page }) => {
    const queue = named('pops')
    await api.pushMany(queue, 1)
    await load(page, server.url, ['operations'], { view: 'spool' })
    await flip(page, 'Pops return no messages', 'on')
    await eventually(() => api.pop(queue)).toEqual([])
    // Switched by another client.
    await api.post('/api/v1/system/maintenance/pop', { enabled: false })
    const state = () => page.getByRole('switch', { name: 'Pops return no messages' }).getAttribute('aria-checked')
    await noticed(page, state).toBe('false')
    expect(await api.take(queue, 1)).toHaveLength(1)
  })
})

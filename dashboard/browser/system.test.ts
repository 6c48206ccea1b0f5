import { Api } from './api.ts'
import type { Broker } from './broker.ts'
import { broker, database, session, sql } from './brokers.ts'
import { address, afterAll, beforeAll, cell, describe, eventually, expect, go, heading, load, rows, said, stat, test, text, toast } from './page.ts'

// Two brokers on one database, one of them with different settings.
let place: string
let server: Broker
let other: Broker
let api: Api

beforeAll(async () => {
  place = await database()
  server = await broker(place, { DEFAULT_BATCH_SIZE: '17', QUEEN_ENCRYPTION_KEY: '7'.repeat(64), JWT_SECRET: 'nobody-may-ever-see-this-text-on-a-page' })
  other = await broker(place)
  api = new Api(server.url)
})
afterAll(async () => {
  await Promise.all([server?.stop(), other?.stop()])
})

describe.concurrent('the system', () => {
  test('lists the brokers, and tells how this one is', async ({ page }) => {
    await load(page, server.url, ['system'])
    const { brokers, broker: own } = await api.get('/api/v1/system/shared-state')
    const lines = page.getByRole('region', { name: 'Brokers' }).last().locator('tbody tr')
    await eventually(() => lines.count()).toBe(2)
    const { worker_id } = brokers.find(({ id }: { id: string }) => id === own)
    expect(await text(lines.filter({ hasText: 'this one' }))).toContain(worker_id)
    expect(await text(stat(page, 'Database'))).toBe('reached')
    const { database } = await api.get('/metrics')
    expect(await text(stat(page, 'Connections'))).toMatch(new RegExp(`^\\d+ / ${database.poolSize}$`))
    expect(await text(stat(page, 'Memory'))).toMatch(/MiB$/)
    await eventually(() => page.locator('figure canvas').count()).toBe(3)
  })

  test('shows what PostgreSQL is doing', async ({ page }) => {
    await load(page, server.url, ['system', 'database'])
    const table = 'Tables of Queen'
    await rows(page, table).first().waitFor()
    const { tableSizes } = await api.get('/api/v1/analytics/postgres-stats')
    const [largest] = tableSizes.toSorted((a: { totalBytes: number }, b: { totalBytes: number }) => b.totalBytes - a.totalBytes)
    expect(await cell(rows(page, table).first(), 'Table')).toBe(largest.table)
    const head = page.getByRole('columnheader', { name: 'Table' })
    await head.getByRole('button').click()
    expect(await head.getAttribute('aria-sort')).toBe('ascending')
  })

  test('shows statements that are slow, and transactions that stay open', async ({ page }) => {
    const end = await session(place, 'begin; select pg_current_xact_id()')
    // Only statements of Queen's own sessions are shown.
    const slow = session(place, "set application_name = 'queen'; select pg_sleep(5)")
    const running = async () => JSON.stringify((await api.get('/api/v1/analytics/postgres-stats')).activeQueries)
    await eventually(running).toContain('pg_sleep')
    await load(page, server.url, ['system', 'database'])
    await page.getByText('select pg_sleep(5)').first().waitFor()
    await page.getByRole('link', { name: 'Doctor' }).click()
    expect(address(page).path).toEqual(['system', 'doctor'])
    await page.getByRole('button', { name: 'Examine now' }).click()
    await toast(page, 'Examine the database').waitFor()
    await eventually(() => text(page.getByRole('region', { name: 'Open transactions' }).last())).toContain('idle in transaction')
    await end()
    await (await slow)()
  })
})

describe.concurrent('what is wrong', () => {
  test('is said in the words of the doctor', async ({ page }) => {
    await sql(place, 'drop index queen.dead_letters_newest')
    await load(page, server.url, ['system', 'doctor'])
    await page.getByRole('button', { name: 'Examine now' }).click()
    await toast(page, 'Examine the database').waitFor()
    const { findings } = await api.get('/api/v1/system/doctor')
    expect(findings.length).toBeGreaterThan(0)
    for (const { message } of findings) await said(page, message)
    await go(page, [''])
    await eventually(() => text(page.getByRole('region', { name: 'Health' }))).toMatch(/^\d+ (problem|warning)/)
    for (const { message } of findings) await said(page, message)
  })
})

describe.concurrent('a payload that is stored encrypted', () => {
  test('is shown by a broker that has the key, and another says why it cannot', async ({ page }) => {
    await api.post('/api/v1/configure', { queue: 'secrets', options: { encryptionEnabled: true } })
    const [pushed] = await api.push([{ queue: 'secrets', payload: { pin: 1234 } }])
    const path = ['messages', pushed!.partition_id, pushed!.transaction_id]
    await load(page, server.url, path)
    await said(page, 'stored encrypted')
    expect(await text(page.locator('pre[aria-label="Payload as text"]'))).toContain('1234')
    const { decryptionError } = await new Api(other.url).get(`/api/v1/messages/${pushed!.partition_id}/${pushed!.transaction_id}`)
    const second = await page.context().newPage()
    await load(second, other.url, path)
    await said(second, decryptionError)
    expect(await second.locator('pre[aria-label="Payload as text"]').count()).toBe(0)
  })
})

describe.concurrent('settings', () => {
  test('are those in force, with where they came from', async ({ page }) => {
    await load(page, server.url, ['settings'])
    await heading(page, 'Settings').waitFor()
    const { settings } = await api.get('/api/v1/system/settings')
    await eventually(() => page.locator('main li').count()).toBe(settings.length)
    await page.getByLabel('Search').fill('DEFAULT_BATCH_SIZE')
    const line = page.locator('main li').filter({ hasText: 'DEFAULT_BATCH_SIZE' })
    await eventually(() => page.locator('main li').count()).toBe(1)
    expect(await text(line)).toMatch(/17\s*environment/)
    expect(address(page).query.get('search')).toBe('DEFAULT_BATCH_SIZE')
  })

  test('never show a secret', async ({ page }) => {
    await load(page, server.url, ['settings'], { search: 'JWT_SECRET' })
    await eventually(() => text(page.locator('main li').first())).toContain('(set)')
    await load(page, server.url, ['settings'])
    await said(page, 'JWT_SECRET')
    expect(await page.content()).not.toContain('nobody-may-ever-see-this-text')
  })

  test('are narrowed down to what differs from the default', async ({ page }) => {
    await load(page, server.url, ['settings'])
    await page.getByLabel('Only changed settings').check()
    const { settings } = await api.get('/api/v1/system/settings')
    const differ = settings.filter(({ source }: { source: string }) => source !== 'default')
    await eventually(() => page.locator('main li').count()).toBe(differ.length)
    await page.getByLabel('Search').fill('nothing is called like this')
    await said(page, 'No setting matches.')
    await page.getByRole('button', { name: 'Show all' }).click()
    await eventually(() => page.locator('main li').count()).toBe(settings.length)
  })
})

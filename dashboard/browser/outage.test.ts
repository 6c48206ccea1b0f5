import { Api, named } from './api.ts'
import type { Broker } from './broker.ts'
import { broker, database, way, type Way } from './brokers.ts'
import { afterAll, beforeAll, describe, eventually, expect, go, heading, load, noticed, settled, stat, test, text, type Page } from './page.ts'

let road: Way
let server: Broker
let api: Api

beforeAll(async () => {
  road = await way(await database())
  server = await broker(road.database)
  api = new Api(server.url)
})
afterAll(async () => {
  await server?.stop()
  await road?.close()
})

function health(page: Page) {
  return page.locator('header .health')
}

/** The health summary. */
function verdict(page: Page) {
  return page.getByRole('region', { name: 'Health' })
}

/** The error of a page at an address: the reason for a database outage varies. */
function refusals(page: Page, path: string): string[] {
  const told: string[] = []
  page.on('response', async (response) => {
    if (response.status() < 500 || !response.url().includes(path)) return
    // The page may have read it already.
    const body = (await response.json().catch(() => undefined)) as { error: string } | undefined
    if (body) told.push(body.error)
  })
  return told
}

/** Set in the current page; a reload would lose it. */
async function mark(page: Page): Promise<() => Promise<unknown>> {
  await page.evaluate(() => Object.assign(window, { stillHere: true }))
  return async () => expect(await page.evaluate(() => 'stillHere' in window)).toBe(true)
}

describe('when the database is away', () => {
  test('pages say so in the words of the broker, keep what they knew, and recover by themselves', async ({ page }) => {
    const queue = named('outage')
    await api.pushMany(queue, 3)
    await load(page, server.url, ['queues', queue])
    await eventually(() => text(stat(page, 'Backlog'))).toBe('3')
    const unharmed = await mark(page)
    const told = refusals(page, `/api/v1/status/queues/${queue}`)
    road.cut()
    try {
      await noticed(page, () => text(health(page))).toBe('Database unavailable')
      await noticed(page, () => page.getByRole('alert').count()).toBeGreaterThan(0)
      await eventually(async () => {
        const shown = await text(page.getByRole('alert').first())
        return told.some((words) => shown.includes(words)) || `${shown} and not one of ${told.join(', ')}`
      }).toBe(true)
      expect(await text(stat(page, 'Backlog'))).toBe('3')
      await go(page, [''])
      await noticed(page, () => text(verdict(page))).toContain('Database unavailable')
      await go(page, ['queues', queue])
      await noticed(page, () => page.getByRole('alert').count()).toBeGreaterThan(0)
    } finally {
      road.mend()
    }
    await noticed(page, () => text(health(page))).toBe('Healthy')
    await noticed(page, () => page.getByRole('alert').count()).toBe(0)
    await api.pushMany(queue, 1)
    await noticed(page, () => text(stat(page, 'Backlog'))).toBe('4')
    await unharmed()
  })
})

describe('when the broker is restarted', () => {
  test('pages say so, keep what they knew, and recover by themselves', async ({ page }) => {
    const queue = named('restart')
    await api.pushMany(queue, 2)
    await load(page, server.url, ['queues', queue])
    await eventually(() => text(stat(page, 'Backlog'))).toBe('2')
    const unharmed = await mark(page)
    await server.kill()
    await noticed(page, () => text(health(page))).toBe('Broker unreachable')
    await noticed(page, () => page.getByRole('alert').count()).toBeGreaterThan(0)
    expect(await text(page.getByRole('alert').first())).toContain('the broker cannot be reached')
    expect(await text(stat(page, 'Backlog'))).toBe('2')
    await server.again()
    await noticed(page, () => text(health(page))).toBe('Healthy')
    await noticed(page, () => page.getByRole('alert').count()).toBe(0)
    await api.pushMany(queue, 3)
    await noticed(page, () => text(stat(page, 'Backlog'))).toBe('5')
    await unharmed()
  })

  test('the overview shows an unreachable broker, and its recovery', async ({ page }) => {
    await load(page, server.url)
    await heading(page, 'Overview').waitFor()
    await noticed(page, () => text(health(page))).toBe('Healthy')
    await server.kill()
    await noticed(page, () => text(verdict(page))).toContain('Broker unreachable')
    await server.again()
    await noticed(page, () => text(verdict(page))).not.toContain('does not answer')
  })

  test('"Try again" asks at once', async ({ page }) => {
    const queue = named('again')
    await api.pushMany(queue, 1)
    await load(page, server.url, ['queues', queue])
    await eventually(() => text(stat(page, 'Backlog'))).toBe('1')
    await server.kill()
    await page.getByRole('alert').waitFor()
    // From here on, no automatic requests.
    await page.clock.pauseAt(Date.now() + 5_000)
    await server.again()
    // One for each part of the page with a failed request.
    const tries = page.getByRole('button', { name: 'Try again' })
    for (let left = await tries.count(); left > 0; left = await tries.count()) {
      await tries.first().click()
      await eventually(() => tries.count()).not.toBe(left)
    }
    await eventually(() => page.getByRole('alert').count()).toBe(0)
  })
})

describe('a hidden page', () => {
  test('asks nothing', async ({ page }) => {
    await load(page, server.url)
    await heading(page, 'Overview').waitFor()
    await settled(page)
    const look = (hidden: boolean) =>
      page.evaluate((now) => {
        Object.defineProperty(document, 'hidden', { configurable: true, get: () => now })
        document.dispatchEvent(new Event('visibilitychange'))
      }, hidden)
    await look(true)
    const asked: string[] = []
    page.on('request', (request) => asked.push(request.url()))
    await page.clock.runFor(60_000)
    expect(asked).toEqual([])
    await look(false)
    await eventually(() => asked.length).toBeGreaterThan(2)
  })
})

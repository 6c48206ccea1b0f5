import { Api, named } from './api.ts'
import type { Broker } from './broker.ts'
import { broker, database, way, type Way } from './brokers.ts'
import { afterAll, beforeAll, describe, eventually, expect, go, heading, load, said, settled, stat, test, text, type Page } from './page.ts'

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

/** Set on the page that is there; a reload would lose it. */
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
    road.cut()
    try {
      await eventually(() => text(health(page))).toBe('Database away')
      await page.getByRole('alert').first().waitFor()
      const words = await api.refusal('GET', `/api/v1/status/queues/${queue}`)
      expect(await text(page.getByRole('alert').first())).toContain(words)
      expect(await text(stat(page, 'Backlog'))).toBe('3')
      await go(page, [''])
      await said(page, 'The database is away')
      await go(page, ['queues', queue])
      await page.getByRole('alert').first().waitFor()
    } finally {
      road.mend()
    }
    await eventually(() => text(health(page))).toBe('Healthy')
    await eventually(() => page.getByRole('alert').count()).toBe(0)
    await api.pushMany(queue, 1)
    await eventually(() => text(stat(page, 'Backlog'))).toBe('4')
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
    await eventually(() => text(health(page))).toBe('Broker unreachable')
    await page.getByRole('alert').first().waitFor()
    expect(await text(page.getByRole('alert').first())).toContain('the broker cannot be reached')
    expect(await text(stat(page, 'Backlog'))).toBe('2')
    await server.again()
    await eventually(() => text(health(page))).toBe('Healthy')
    await eventually(() => page.getByRole('alert').count()).toBe(0)
    await api.pushMany(queue, 3)
    await eventually(() => text(stat(page, 'Backlog'))).toBe('5')
    await unharmed()
  })

  test('the overview says that nobody answers, and then how it is', async ({ page }) => {
    await load(page, server.url)
    await heading(page, 'Overview').waitFor()
    await eventually(() => text(health(page))).toBe('Healthy')
    await server.kill()
    await said(page, 'The broker does not answer')
    await server.again()
    await eventually(() => text(page.getByRole('region', { name: 'Health' }))).not.toContain('does not answer')
  })

  test('"Try again" asks at once', async ({ page }) => {
    const queue = named('again')
    await api.pushMany(queue, 1)
    await load(page, server.url, ['queues', queue])
    await eventually(() => text(stat(page, 'Backlog'))).toBe('1')
    await server.kill()
    await page.getByRole('alert').first().waitFor()
    await server.again()
    await page.getByRole('button', { name: 'Try again' }).first().click()
    await eventually(() => page.getByRole('alert').count(), 2_000).toBe(0)
  })
})

describe('a page that nobody looks at', () => {
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
    // The fastest question is asked every two seconds. To see that something does not happen takes its time.
    await page.waitForTimeout(5_000)
    expect(asked).toEqual([])
    await look(false)
    await eventually(() => asked.length).toBeGreaterThan(2)
  })
})

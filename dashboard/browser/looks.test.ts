// Every page in both themes, on a laptop and a phone, with and without data: no violations reported by axe, nothing wider than the
// screen, and a screenshot of each in dashboard/screenshots.

import { Api } from './api.ts'
import type { Broker } from './broker.ts'
import { broker, database } from './brokers.ts'
import { LAPTOP, PHONE, afterAll, beforeAll, context, describe, dialog, eventually, expect, go, load, picture, rows, settled, test, violations, watch, type Page, type Theme } from './page.ts'
import { shop, type Shop } from './shop.ts'

interface Place {
  name: string
  path: string[]
  query?: Record<string, string>
  /** Text that appears only once the page has its data. */
  shows: string
}

const SIZES = [
  ['laptop', LAPTOP],
  ['phone', PHONE],
] as const

/** A walk consists of many waits with their own limits; this one only ends endless loops. */
const LONG_MS = 15 * 60_000

let trading: Shop
let close: () => Promise<void>
let empty: Broker

beforeAll(async () => {
  trading = await shop()
  close = trading.open()
  empty = await broker(await database())
  await new Api(empty.url).post('/api/v1/configure', { queue: 'untouched' })
  await new Api(empty.url).delete('/api/v1/resources/queues/untouched')
  await trading.remember()
})
afterAll(async () => {
  await close?.()
  await Promise.all([trading?.close(), empty?.stop()])
})

function full(): Place[] {
  const { partition_id, transaction_id } = trading.order
  return [
    { name: 'overview', path: [''], shows: 'Healthy' },
    { name: 'overview-live', path: [''], query: { range: 'live' }, shows: 'Furthest behind' },
    { name: 'queues', path: ['queues'], shows: 'shop.emails' },
    { name: 'queue', path: ['queues', 'shop.orders'], shows: 'Namespace' },
    { name: 'queue-partitions', path: ['queues', 'shop.emails'], query: { tab: 'partitions' }, shows: 'amsterdam' },
    { name: 'queue-groups', path: ['queues', 'shop.emails'], query: { tab: 'groups' }, shows: 'mailer, by partition' },
    { name: 'queue-options', path: ['queues', 'shop.billing'], query: { tab: 'options' }, shows: 'Lease time' },
    { name: 'queue-danger', path: ['queues', 'shop.billing'], query: { tab: 'danger' }, shows: 'Clear all messages' },
    { name: 'groups', path: ['groups'], shows: 'mailer' },
    { name: 'group', path: ['groups', 'mailer'], query: { queue: 'shop.emails' }, shows: 'amsterdam' },
    { name: 'messages', path: ['messages'], query: { queue: 'shop.emails' }, shows: 'pending' },
    { name: 'message', path: ['messages', partition_id, transaction_id], shows: 'Note: error' },
    { name: 'push', path: ['push'], query: { queue: 'shop.orders' }, shows: 'Payload (JSON)' },
    { name: 'dead-letters', path: ['dead-letters'], shows: 'was declined by the bank' },
    { name: 'dead-letters-list', path: ['dead-letters'], query: { view: 'letters' }, shows: 'no such customer' },
    { name: 'redrives', path: ['dead-letters'], query: { view: 'redrives' }, shows: 'replayed' },
    { name: 'operations', path: ['operations'], shows: 'Nothing is deferred' },
    { name: 'spool', path: ['operations'], query: { view: 'spool' }, shows: 'Pops return no messages' },
    { name: 'traces', path: ['traces'], shows: 'checkout' },
    { name: 'trace', path: ['traces', 'checkout'], shows: 'printer out of paper' },
    { name: 'system', path: ['system'], shows: 'this one' },
    { name: 'database', path: ['system', 'database'], shows: 'HOT updates' },
    { name: 'doctor', path: ['system', 'doctor'], shows: 'Examine now' },
    { name: 'settings', path: ['settings'], shows: 'QUEEN_DOCTOR_SECONDS' },
    { name: 'missing', path: ['nothing'], shows: 'This address does not exist.' },
  ]
}

/** Every list, and its text when it is empty. */
const EMPTY: Place[] = [
  { name: 'overview', path: [''], shows: 'No messages yet' },
  { name: 'behind', path: [''], query: { range: 'live' }, shows: 'No group is behind.' },
  { name: 'queues', path: ['queues'], shows: 'No queues yet' },
  { name: 'groups', path: ['groups'], shows: 'No consumer groups yet' },
  { name: 'messages', path: ['messages'], shows: 'No messages in the last hour' },
  { name: 'push', path: ['push'], shows: 'Nothing yet' },
  { name: 'dead-letters', path: ['dead-letters'], shows: 'No dead letters' },
  { name: 'dead-letters-list', path: ['dead-letters'], query: { view: 'letters' }, shows: 'No dead letters' },
  { name: 'redrives', path: ['dead-letters'], query: { view: 'redrives' }, shows: 'No redrives' },
  { name: 'operations', path: ['operations'], shows: 'Nothing is deferred' },
  { name: 'operations-failed', path: ['operations'], query: { status: 'failed' }, shows: 'Nothing has failed' },
  { name: 'operations-done', path: ['operations'], query: { status: 'completed' }, shows: 'No recent operations' },
  { name: 'traces', path: ['traces'], shows: 'No traces yet' },
  { name: 'statements', path: ['system', 'database'], shows: 'No statement has been running for more than a second.' },
  { name: 'holders', path: ['system', 'doctor'], shows: 'No open transactions.' },
]

async function walk(url: string, size: typeof LAPTOP, folder: (theme: Theme) => string, places: Place[]): Promise<void> {
  const own = await context({ size })
  const page = await own.newPage()
  const problems = watch(page)
  await load(page, url)
  for (const { name, path, query, shows } of places) {
    await go(page, path, query)
    await page.locator('main').getByText(shows).filter({ visible: true }).first().waitFor()
    await settled(page)
    for (const alert of await page.getByRole('alert').allInnerTexts()) problems.push(`${name}: ${alert}`)
    const over = await sideways(page)
    if (over > 0) problems.push(`${name} is ${over} px wider than the screen`)
    problems.push(...(await inBothThemes(page, folder, name)))
  }
  await own.close()
  expect(problems).toEqual([])
}

/** A page differs between themes only in its colors, so only those are checked twice. */
async function inBothThemes(page: Page, folder: (theme: Theme) => string, name: string): Promise<string[]> {
  const problems: string[] = []
  // It starts with the current theme, because changing takes longer than a screenshot.
  for (const theme of (await worn(page)) === 'light' ? (['light', 'dark'] as const) : (['dark', 'light'] as const)) {
    await wear(page, theme)
    await picture(page, `${folder(theme)}/${name}`)
    const found = await violations(page, theme === 'light' ? 'all' : 'colours')
    problems.push(...found.map((words) => `${name}, ${theme}: ${words}`))
  }
  return problems
}

function worn(page: Page): Promise<string | undefined> {
  return page.evaluate(() => document.documentElement.dataset.theme)
}

async function wear(page: Page, theme: Theme): Promise<void> {
  if ((await worn(page)) === theme) return
  await page.emulateMedia({ colorScheme: theme })
  await eventually(() => worn(page)).toBe(theme)
  // Charts are redrawn.
  await page.evaluate(async () => {
    for (let frames = 0; frames < 2; frames += 1) await new Promise(requestAnimationFrame)
  })
}

/** How far the page could be scrolled sideways. */
function sideways(page: Page): Promise<number> {
  return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth)
}

describe.concurrent('every page', () => {
  for (const [name, size] of SIZES) {
    test(`with data, on a ${name}`, () => walk(trading.server.url, size, (theme) => `${name}-${theme}`, full()), LONG_MS)
    test(`without data, on a ${name}`, () => walk(empty.url, size, (theme) => `${name}-${theme}/empty`, EMPTY), LONG_MS)
  }
})

describe.concurrent('dialogs', () => {
  const FORECAST = /will be (delivered again|skipped unread)|No message is replayed/
  const LETTERS = /\d+ dead letters/

  /** `shows`: text that appears only once the dialog has its data. */
  const opened = (): { name: string; path: string[]; query?: Record<string, string>; button: string | RegExp; shows?: RegExp }[] => [
    { name: 'create', path: ['queues'], button: 'Create a queue' },
    { name: 'clear', path: ['queues', 'shop.billing'], query: { tab: 'danger' }, button: 'Clear messages' },
    { name: 'delete', path: ['queues', 'shop.billing'], query: { tab: 'danger' }, button: 'Delete queue' },
    { name: 'clear-partition', path: ['queues', 'shop.emails'], query: { tab: 'partitions' }, button: /^Clear partition/ },
    { name: 'move', path: ['groups', 'mailer'], query: { queue: 'shop.emails' }, button: 'Move…', shows: FORECAST },
    { name: 'move-partition', path: ['groups', 'mailer'], query: { queue: 'shop.emails' }, button: /^Move in partition/, shows: FORECAST },
    { name: 'forget', path: ['groups', 'mailer'], query: { queue: 'shop.emails' }, button: 'Delete…' },
    { name: 'open', path: ['messages'], button: 'Open by id' },
    { name: 'delete-message', path: ['messages', trading.order.partition_id, trading.order.transaction_id], button: 'Delete' },
    { name: 'redrive', path: ['dead-letters'], query: { queue: 'shop.billing' }, button: 'Redrive all…', shows: LETTERS },
    { name: 'purge', path: ['dead-letters'], query: { queue: 'shop.billing' }, button: 'Purge all…', shows: LETTERS },
    { name: 'switch', path: ['operations'], query: { view: 'spool' }, button: 'Pushes go to the spool' },
  ]

  test('in both themes', async () => {
    const own = await context()
    const page = await own.newPage()
    const problems = watch(page)
    const look = async (name: string) => {
      await settled(page)
      problems.push(...(await inBothThemes(page, (theme) => `dialogs-${theme}`, name)))
      await page.keyboard.press('Escape')
      await dialog(page).waitFor({ state: 'hidden' })
    }
    await load(page, trading.server.url)
    for (const { name, path, query, button, shows } of opened()) {
      await go(page, path, query)
      const place = page.locator('main')
      const opener = place.getByRole('button', { name: button }).or(place.getByRole('switch', { name: button }))
      await opener.and(page.locator(':enabled')).first().click()
      await dialog(page).waitFor()
      if (shows !== undefined) await dialog(page).getByText(shows).first().waitFor()
      await look(name)
    }
    await go(page, ['traces', 'checkout'])
    await rows(page, 'Notes').first().locator('td').first().click()
    await dialog(page).waitFor()
    await look('note')
    await own.close()
    expect(problems).toEqual([])
  }, LONG_MS)
})

describe.concurrent('pictures for the README', () => {
  for (const [name, theme, path, shows] of [
    ['overview-light', 'light', [''], 'Healthy'],
    ['dead-letters-dark', 'dark', ['dead-letters'], 'was declined by the bank'],
  ] as const) {
    test(name, async () => {
      const own = await context({ theme })
      const page = await own.newPage()
      const problems = watch(page)
      await load(page, trading.server.url, [...path])
      await page.getByText(shows).first().waitFor()
      // A rate needs two samples.
      if (path[0] === '') await eventually(() => page.getByRole('group', { name: 'Pushed' }).innerText()).toMatch(/\d/)
      await settled(page)
      await picture(page, name)
      await own.close()
      expect(problems).toEqual([])
    })
  }
})

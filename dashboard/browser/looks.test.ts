// Every page in both themes, on a laptop and on a phone, with data and without: nothing that axe complains about, nothing wider
// than the screen, and a picture of each in dashboard/screenshots.

import { Api } from './api.ts'
import type { Broker } from './broker.ts'
import { broker, database } from './brokers.ts'
import { LAPTOP, PHONE, afterAll, beforeAll, context, describe, dialog, eventually, expect, go, load, picture, rows, settled, test, violations, watch, type Look, type Page } from './page.ts'
import { shop, type Shop } from './shop.ts'

interface Place {
  name: string
  path: string[]
  query?: Record<string, string>
  /** Something that is only there once the page shows what it knows. */
  shows: string
}

const LOOKS = (['light', 'dark'] as const).flatMap((theme) => [
  { theme, size: LAPTOP, called: `laptop, ${theme}`, folder: `laptop-${theme}` },
  { theme, size: PHONE, called: `phone, ${theme}`, folder: `phone-${theme}` },
])

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
  await trading?.close()
  await empty?.stop()
})

function full(): Place[] {
  const { partition_id, transaction_id } = trading.order
  return [
    { name: 'overview', path: [''], shows: 'Everything is well' },
    { name: 'overview-live', path: [''], query: { range: 'live' }, shows: 'Most behind' },
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
    { name: 'spool', path: ['operations'], query: { view: 'spool' }, shows: 'Pops find nothing' },
    { name: 'traces', path: ['traces'], shows: 'checkout' },
    { name: 'trace', path: ['traces', 'checkout'], shows: 'printer out of paper' },
    { name: 'system', path: ['system'], shows: 'this one' },
    { name: 'database', path: ['system', 'database'], shows: 'HOT updates' },
    { name: 'doctor', path: ['system', 'doctor'], shows: 'Look now' },
    { name: 'settings', path: ['settings'], shows: 'QUEEN_DOCTOR_SECONDS' },
    { name: 'missing', path: ['nothing'], shows: 'There is nothing at this address.' },
  ]
}

/** Every list, and what it says first when there is nothing in it. */
const EMPTY: Place[] = [
  { name: 'overview', path: [''], shows: 'Nothing here yet' },
  { name: 'behind', path: [''], query: { range: 'live' }, shows: 'Nobody is behind.' },
  { name: 'queues', path: ['queues'], shows: 'No queues yet' },
  { name: 'groups', path: ['groups'], shows: 'No consumer groups yet' },
  { name: 'messages', path: ['messages'], shows: 'No messages in the last hour' },
  { name: 'push', path: ['push'], shows: 'Nothing yet' },
  { name: 'dead-letters', path: ['dead-letters'], shows: 'No dead letters' },
  { name: 'dead-letters-list', path: ['dead-letters'], query: { view: 'letters' }, shows: 'No dead letters' },
  { name: 'redrives', path: ['dead-letters'], query: { view: 'redrives' }, shows: 'No redrives' },
  { name: 'operations', path: ['operations'], shows: 'Nothing is deferred' },
  { name: 'operations-failed', path: ['operations'], query: { status: 'failed' }, shows: 'Nothing has failed' },
  { name: 'operations-done', path: ['operations'], query: { status: 'completed' }, shows: 'None of late' },
  { name: 'traces', path: ['traces'], shows: 'No traces yet' },
  { name: 'statements', path: ['system', 'database'], shows: 'No statement has been running for more than a second.' },
  { name: 'holders', path: ['system', 'doctor'], shows: 'There is none.' },
]

async function walk(url: string, look: Look & { folder: string }, places: Place[]): Promise<void> {
  const own = await context(look)
  const page = await own.newPage()
  const problems = watch(page)
  await load(page, url)
  for (const { name, path, query, shows } of places) {
    await go(page, path, query)
    await page.locator('main').getByText(shows).first().waitFor()
    await settled(page)
    await picture(page, `${look.folder}/${name}`)
    const over = await sideways(page)
    if (over > 0) problems.push(`${name} is ${over} px wider than the screen`)
    problems.push(...(await violations(page)).map((words) => `${name}: ${words}`))
  }
  await own.close()
  expect(problems).toEqual([])
}

/** By how much the page itself could be scrolled sideways. */
function sideways(page: Page): Promise<number> {
  return page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth)
}

describe.concurrent('pages with data', () => {
  for (const look of LOOKS) {
    test(look.called, { timeout: 120_000 }, async () => walk(trading.server.url, look, full()))
  }
})

describe.concurrent('pages without data', () => {
  for (const look of LOOKS) {
    test(look.called, { timeout: 120_000 }, async () => walk(empty.url, { ...look, folder: `${look.folder}/empty` }, EMPTY))
  }
})

describe.concurrent('dialogs', () => {
  const opened = (): [path: string[], query: Record<string, string>, button: string | RegExp][] => [
    [['queues'], {}, 'Create a queue'],
    [['queues', 'shop.billing'], { tab: 'danger' }, 'Clear messages'],
    [['queues', 'shop.billing'], { tab: 'danger' }, 'Delete queue'],
    [['queues', 'shop.emails'], { tab: 'partitions' }, /^Clear partition/],
    [['groups', 'mailer'], { queue: 'shop.emails' }, 'Move…'],
    [['groups', 'mailer'], { queue: 'shop.emails' }, /^Move in partition/],
    [['groups', 'mailer'], { queue: 'shop.emails' }, 'Delete…'],
    [['messages'], {}, 'Open by id'],
    [['messages', trading.order.partition_id, trading.order.transaction_id], {}, 'Delete'],
    [['dead-letters'], { queue: 'shop.billing' }, 'Redrive all…'],
    [['dead-letters'], { queue: 'shop.billing' }, 'Purge all…'],
  ]

  for (const theme of ['light', 'dark'] as const) {
    test(theme, { timeout: 120_000 }, async () => {
      const own = await context({ theme })
      const page = await own.newPage()
      const problems = watch(page)
      await load(page, trading.server.url)
      for (const [at, [path, query, button]] of opened().entries()) {
        await go(page, path, query)
        await page.locator('main').getByRole('button', { name: button }).and(page.locator(':enabled')).first().click()
        await dialog(page).waitFor()
        await settled(page)
        await picture(page, `dialogs-${theme}/${at}`)
        problems.push(...(await violations(page)).map((words) => `${button}: ${words}`))
        await page.keyboard.press('Escape')
        await dialog(page).waitFor({ state: 'hidden' })
      }
      await go(page, ['operations'], { view: 'spool' })
      await page.getByRole('switch').first().click()
      await dialog(page).waitFor()
      problems.push(...(await violations(page)))
      await page.keyboard.press('Escape')
      await go(page, ['traces', 'checkout'])
      await rows(page, 'Notes').first().locator('td').first().click()
      await dialog(page).waitFor()
      problems.push(...(await violations(page)))
      await own.close()
      expect(problems).toEqual([])
    })
  }
})

describe('pictures for the README', () => {
  for (const [name, theme, path, shows] of [
    ['overview-light', 'light', [''], 'Everything is well'],
    ['dead-letters-dark', 'dark', ['dead-letters'], 'was declined by the bank'],
  ] as const) {
    test(name, async () => {
      const own = await context({ theme })
      const page = await own.newPage()
      await load(page, trading.server.url, [...path])
      await page.getByText(shows).first().waitFor()
      // A rate needs two looks.
      if (path[0] === '') await eventually(() => page.getByRole('group', { name: 'Pushed' }).innerText()).toMatch(/\d/)
      await settled(page)
      await picture(page, name)
      await own.close()
    })
  }
})

// What all pages share: keyboard and phone navigation, themes, invalid addresses.

import { Api, named } from './api.ts'
import { PHONE, context, describe, dialog, eventually, expect, go, heading, inject, load, rows, said, test, text, watch, type Page } from './page.ts'

const { url } = inject('shared')
const api = new Api(url)

const PAGES = ['Overview', 'Queues', 'Messages', 'Push', 'Consumer groups', 'Dead letters', 'Operations', 'Traces', 'System', 'Settings']

/** Describes the focused element. */
function focused(page: Page): Promise<string> {
  return page.evaluate(() => {
    const { activeElement } = document
    return activeElement?.getAttribute('aria-label') ?? activeElement?.textContent?.trim() ?? ''
  })
}

async function tabTo(page: Page, wanted: string): Promise<void> {
  for (let presses = 0; presses < 60; presses += 1) {
    await page.keyboard.press('Tab')
    if ((await focused(page)) === wanted) return
  }
  throw new Error(`Tab never comes to ${wanted}`)
}

describe.concurrent('the shell', () => {
  test('leads to every page without a reload', async ({ page }) => {
    await load(page, url)
    await heading(page, 'Overview').waitFor()
    await page.evaluate(() => Object.assign(window, { stillHere: true }))
    const navigation = page.getByRole('navigation', { name: 'Pages' })
    expect(await navigation.getByRole('link').allInnerTexts()).toEqual(PAGES)
    for (const name of PAGES) {
      await navigation.getByRole('link', { name, exact: true }).click()
      await heading(page, name).waitFor()
      expect(await page.title()).toBe(`${name} · Queen`)
      expect(await text(navigation.locator('[aria-current=page]'))).toBe(name)
      await eventually(() => focused(page)).toBe(name)
    }
    expect(await page.evaluate(() => 'stillHere' in window)).toBe(true)
    await page.goBack()
    await heading(page, 'System').waitFor()
  })

  test('says so when an address leads nowhere', async ({ page }) => {
    await load(page, url, ['nothing', 'here'])
    await said(page, 'This address does not exist.')
    await page.getByRole('link', { name: 'Go to the overview' }).click()
    await heading(page, 'Overview').waitFor()
  })

  test('is light or dark as the system says, or as one chose', async ({ page }) => {
    const theme = () => page.evaluate(() => document.documentElement.dataset.theme)
    await load(page, url)
    await heading(page, 'Overview').waitFor()
    expect(await theme()).toBe('light')
    await page.emulateMedia({ colorScheme: 'dark' })
    await eventually(theme).toBe('dark')
    await page.getByRole('button', { name: 'Light' }).click()
    expect(await theme()).toBe('light')
    await page.reload()
    await heading(page, 'Overview').waitFor()
    expect(await theme()).toBe('light')
    expect(await page.getByRole('button', { name: 'Light' }).getAttribute('aria-pressed')).toBe('true')
    await page.getByRole('button', { name: 'Auto' }).click()
    expect(await theme()).toBe('dark')
  })

  test('tells times in words, and exactly in the viewer’s zone', async ({ page }) => {
    const queue = named('times')
    await api.pushMany(queue, 1)
    await load(page, url, ['messages'], { queue })
    const time = rows(page, 'Messages').first().locator('time')
    await eventually(() => text(time)).toMatch(/just now|ago/)
    const [at, title] = [await time.getAttribute('datetime'), await time.getAttribute('title')]
    const hour = new Intl.DateTimeFormat('en-GB', { timeZone: 'Europe/Berlin', hour: '2-digit', minute: '2-digit', second: '2-digit' })
    expect(title).toContain(hour.format(new Date(at!)))
    expect(title).toMatch(/(CET|CEST|GMT\+[12])$/)
  })
})

describe.concurrent('with keys alone', () => {
  test('one skips the navigation, and walks it', async ({ page }) => {
    await load(page, url)
    await heading(page, 'Overview').waitFor()
    await page.keyboard.press('Tab')
    expect(await focused(page)).toBe('Skip to the page')
    await page.keyboard.press('Enter')
    expect(await page.evaluate(() => document.activeElement?.tagName)).toBe('MAIN')
    await page.reload()
    await heading(page, 'Overview').waitFor()
    await tabTo(page, 'Traces')
    await page.keyboard.press('Enter')
    await heading(page, 'Traces').waitFor()
  })

  test('one opens a row of a table', async ({ page }) => {
    const word = named('rows')
    await api.push(['a', 'b', 'c'].map((end) => ({ queue: `${word}.${end}` })))
    await load(page, url, ['queues'], { q: word, sort: 'name' })
    await eventually(() => rows(page, 'Queues').count()).toBe(3)
    await tabTo(page, 'Queues')
    // The navigation link has the same name as the table.
    if ((await page.evaluate(() => document.activeElement?.getAttribute('role'))) !== 'region') await tabTo(page, 'Queues')
    await page.keyboard.press('ArrowDown')
    await eventually(() => focused(page)).toContain(`${word}.a`)
    await page.keyboard.press('ArrowDown')
    await eventually(() => focused(page)).toContain(`${word}.b`)
    await page.keyboard.press('End')
    await eventually(() => focused(page)).toContain(`${word}.c`)
    await page.keyboard.press('ArrowUp')
    await eventually(() => focused(page)).toContain(`${word}.b`)
    await page.keyboard.press('Enter')
    await heading(page, `${word}.b`).waitFor()
  })

  test('one stays in a dialog until it is closed, and is back where one was', async ({ page }) => {
    await load(page, url, ['queues'])
    await heading(page, 'Queues').waitFor()
    await page.getByRole('button', { name: 'Create a queue' }).first().focus()
    await page.keyboard.press('Enter')
    await dialog(page).waitFor()
    expect(await page.evaluate(() => document.activeElement?.tagName)).toBe('INPUT')
    for (let presses = 0; presses < 8; presses += 1) {
      await page.keyboard.press('Tab')
      // The browser's own controls are the only other place.
      const where = await page.evaluate(() => document.activeElement?.closest('dialog') !== null || document.activeElement === document.body)
      expect(where).toBe(true)
    }
    await page.keyboard.press('Escape')
    await dialog(page).waitFor({ state: 'hidden' })
    expect(await focused(page)).toBe('Create a queue')
  })

  test('one deletes a queue', async ({ page }) => {
    const queue = named('keys')
    await api.pushMany(queue, 1)
    await load(page, url, ['queues', queue], { tab: 'danger' })
    await page.getByRole('button', { name: 'Delete queue' }).waitFor()
    await tabTo(page, 'Delete queue')
    await page.keyboard.press('Enter')
    await dialog(page).waitFor()
    await page.keyboard.type(queue)
    await page.keyboard.press('Enter')
    await heading(page, 'Queues').waitFor()
    await eventually(async () => (await api.ask('GET', `/api/v1/status/queues/${queue}`)).status).toBe(404)
  })
})

describe.concurrent('on a phone', () => {
  test('every page is within reach', async () => {
    const own = await context({ size: PHONE })
    const page = await own.newPage()
    const problems = watch(page)
    await load(page, url)
    await heading(page, 'Overview').waitFor()
    const thumb = page.getByRole('navigation', { name: 'Main pages' })
    expect(await page.getByRole('navigation', { name: 'Pages', exact: true }).count()).toBe(0)
    await thumb.getByRole('link', { name: 'Queues' }).tap()
    await heading(page, 'Queues').waitFor()
    for (const name of PAGES) {
      await thumb.getByRole('button', { name: 'More' }).tap()
      await dialog(page).getByRole('link', { name, exact: true }).tap()
      await heading(page, name).waitFor()
      await dialog(page).waitFor({ state: 'hidden' })
    }
    await thumb.getByRole('button', { name: 'More' }).tap()
    await dialog(page).getByRole('button', { name: 'Dark' }).tap()
    expect(await page.evaluate(() => document.documentElement.dataset.theme)).toBe('dark')
    await go(page, ['nothing'])
    await own.close()
    expect(problems).toEqual([])
  })
})

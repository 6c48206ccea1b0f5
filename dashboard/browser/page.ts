// A page for each test, and locators for its elements.

import { mkdirSync, readFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { chromium, type Browser, type BrowserContext, type Locator, type Page } from 'playwright-core'
import { test as plain, expect, inject } from 'vitest'
import { PATIENCE_MS, eventually } from './eventually.ts'

export { describe, expect, inject, beforeAll, afterAll } from 'vitest'
export { eventually } from './eventually.ts'
export type { Page } from 'playwright-core'

export const LAPTOP = { width: 1280, height: 800 }
export const PHONE = { width: 390, height: 844 }
export type Theme = 'light' | 'dark'

/** Folder for screenshots, also those of failed tests. Not in the repository. */
export const PICTURES = fileURLToPath(new URL('../screenshots', import.meta.url))

let browser: Promise<Browser> | undefined

/** One for all files. */
function connected(): Promise<Browser> {
  browser ??= chromium.connect(inject('browser'))
  return browser
}

export interface Look {
  size?: { width: number; height: number }
  theme?: Theme
}

export async function context({ size = LAPTOP, theme = 'light' }: Look = {}): Promise<BrowserContext> {
  const made = await (await connected()).newContext({
    viewport: size,
    colorScheme: theme,
    // Tests must not depend on where they run.
    timezoneId: 'Europe/Berlin',
    locale: 'en-GB',
    reducedMotion: 'reduce',
    hasTouch: size.width < 600,
    isMobile: size.width < 600,
  })
  made.setDefaultTimeout(PATIENCE_MS)
  return made
}

/** A page's requests in progress, and when their number last changed. */
const traffic = new WeakMap<Page, { open: number; at: number }>()

/** Waits until a page has its responses: no request is in progress for a moment. */
export async function settled(page: Page): Promise<void> {
  const under = traffic.get(page)
  if (under === undefined) throw new Error('nobody watches this page')
  await eventually(() => under.open === 0 && performance.now() - under.at > 200).toBe(true)
}

/** Shorter than the page's request timeout, so that no request times out meanwhile. */
const JUMP_MS = 25_000
const ANSWERED_MS = 1_000

/** Like `eventually`, for what a page notices at its next poll: moves its clock forward. For pages of `test`. */
export function noticed(page: Page, ask: () => unknown): ReturnType<typeof eventually> {
  let jumped = -Infinity
  return eventually(async () => {
    if (traffic.get(page)?.open === 0 && performance.now() - jumped > ANSWERED_MS) {
      await page.clock.fastForward(JUMP_MS)
      jumped = performance.now()
    }
    return ask()
  })
}

/** The page agrees with what the API reports at that moment. */
export async function agrees(page: Page, shown: () => Promise<string>, reported: () => Promise<string>): Promise<void> {
  await noticed(page, async () => {
    const [here, there] = [await shown(), await reported()]
    return here === there || `${here} and not ${there}`
  }).toBe(true)
}

/** What must never happen on a page: an exception, an error of the browser, a request to another host. */
export function watch(page: Page): string[] {
  const problems: string[] = []
  const under = { open: 0, at: performance.now() }
  traffic.set(page, under)
  const moved = (by: number) => () => {
    under.open += by
    under.at = performance.now()
  }
  page.on('request', moved(1))
  page.on('requestfinished', moved(-1))
  page.on('requestfailed', moved(-1))
  page.on('pageerror', (error) => problems.push(String(error)))
  page.on('console', (message) => {
    // A refusal of the broker is not an error of the page.
    const refused = message.text().startsWith('Failed to load resource')
    if (['error', 'warning'].includes(message.type()) && !refused) problems.push(message.text())
  })
  let home: string | undefined
  page.on('request', (request) => {
    const { origin, protocol } = new URL(request.url())
    if (!protocol.startsWith('http')) return
    home ??= origin
    if (origin !== home) problems.push(`asked ${request.url()}`)
  })
  return problems
}

export const test = plain.extend<{ page: Page }>({
  page: async ({ task }, use) => {
    const own = await context()
    // It runs normally until `noticed` moves it forward.
    await own.clock.install()
    const page = await own.newPage()
    const problems = watch(page)
    await use(page)
    if (task.result?.state === 'fail') await picture(page, `failed/${task.name}`)
    await own.close()
    expect(problems).toEqual([])
  },
})

export async function picture(page: Page, name: string, fullPage = false): Promise<void> {
  const path = join(PICTURES, `${name.replaceAll(/[^\w/-]+/g, '-')}.png`)
  mkdirSync(join(path, '..'), { recursive: true })
  await page.screenshot({ path, fullPage })
}

/** `#/queues/a%2Fb?tab=options` of `['queues', 'a/b']` and `{ tab: 'options' }`. */
export function hash(path: string[] = [''], query: Record<string, string> = {}): string {
  const search = new URLSearchParams(query).toString()
  return `#/${path.map(encodeURIComponent).join('/')}${search === '' ? '' : `?${search}`}`
}

/** Loads the pages of a broker at an address. */
export async function load(page: Page, url: string, path?: string[], query?: Record<string, string>): Promise<void> {
  await page.goto(`${url}/${hash(path, query)}`)
}

/** Navigates to another address. */
export async function go(page: Page, path?: string[], query?: Record<string, string>): Promise<void> {
  await page.evaluate(async (to) => {
    location.hash = to
    // Then the page has noticed, and sent its requests.
    for (let frames = 0; frames < 2; frames += 1) await new Promise(requestAnimationFrame)
  }, hash(path, query))
}

/** The address as the router reads it. */
export function address(page: Page): { path: string[]; query: URLSearchParams } {
  const [path, query] = new URL(page.url()).hash.replace(/^#\//, '').split('?')
  return { path: (path ?? '').split('/').map(decodeURIComponent), query: new URLSearchParams(query) }
}

export function heading(page: Page, name: string): Locator {
  return page.getByRole('heading', { level: 1, name, exact: true })
}

/** The number of a stat such as "Backlog". */
export function stat(page: Page, label: string): Locator {
  return page.getByRole('group', { name: label, exact: true }).locator('.value')
}

/** Rows of a table, without its heading, that contain a text. */
export function rows(page: Page, table: string, text?: string): Locator {
  const all = page.getByRole('table', { name: table, exact: true }).locator('tbody tr:not([aria-hidden])')
  return text === undefined ? all : all.filter({ hasText: text })
}

/** A cell of a row by the heading of its column. */
export async function cell(row: Locator, column: string): Promise<string> {
  return row.evaluate(
    (element, wanted) => {
      const heads = [...element.closest('table')!.querySelectorAll('thead th')]
      const at = heads.findIndex((head) => head.textContent!.replace(/[↓↑]/g, '').trim() === wanted)
      return (element as HTMLTableRowElement).cells[at]?.textContent?.trim() ?? `no column ${wanted}`
    },
    column,
    { timeout: 2_000 },
  )
}

/** The outcome of an action. */
export function toast(page: Page, text: string | RegExp): Locator {
  return page.locator('.toast').filter({ hasText: text })
}

export function dialog(page: Page): Locator {
  return page.getByRole('dialog')
}

export async function said(page: Page, text: string): Promise<void> {
  await page.getByText(text).first().waitFor()
}

export function text(place: Locator): Promise<string> {
  return place.innerText({ timeout: 2_000 })
}

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8')

/** Violations that axe reports for the current page; `colours`: only those of colors. */
export async function violations(page: Page, about: 'all' | 'colours' = 'all'): Promise<string[]> {
  // Through the debugger: the page's own policy allows no scripts.
  if (!(await page.evaluate(() => 'axe' in window))) await page.evaluate(AXE)
  return page.evaluate(async (options) => {
    interface Violation {
      id: string
      help: string
      nodes: { html: string; failureSummary?: string }[]
    }
    const { axe } = window as unknown as { axe: { run(options: object): Promise<{ violations: Violation[] }> } }
    const { violations } = await axe.run(options)
    return violations.map(({ id, help, nodes }) => `${id}: ${help}: ${nodes.map((node) => `${node.html} ${node.failureSummary}`).join('\n')}`)
  }, about === 'all' ? ALL : COLOURS)
}

/** Only violations are needed, not the long lists of passed checks. */
const ALL = { resultTypes: ['violations'] }
const COLOURS = { ...ALL, runOnly: ['color-contrast', 'link-in-text-block'] }

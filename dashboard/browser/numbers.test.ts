// Page size, load time, scrolling performance of a long list, and the broker's cost of an open page. The numbers are printed; limits
// are those of an optimized broker, and higher for an unoptimized one.

import { readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { Api } from './api.ts'
import { DEBUG_BUILD, type Broker } from './broker.ts'
import { broker, database } from './brokers.ts'
import { afterAll, beforeAll, context, describe, eventually, expect, heading, inject, load, rows, settled, test, watch, type Page } from './page.ts'

const { url, pid } = inject('shared')

const WEIGHT_BYTES = 150_000
/** With an unoptimized broker, other suites run at the same time, so a page only has to load at all. */
const INTERACTIVE_MS = DEBUG_BUILD ? 20_000 : 1_000
const SHARE_OF_A_CORE = DEBUG_BUILD ? 0.06 : 0.01
/**
 * While other suites run, elapsed time says nothing about the page. The processor time of its thread does.
 */
const SLOW_FRAMES = DEBUG_BUILD ? 1 : 0.05
const FRAME_MS = 50
const SEARCH_MS = 200
const QUEUES = 10_000

function told(what: string, value: string): void {
  console.log(`${what}: ${value}`)
}

const median = (values: number[]) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)]!

describe('the first page', () => {
  test(`weighs less than ${WEIGHT_BYTES / 1000} kB`, async () => {
    const own = await context()
    const page = await own.newPage()
    watch(page)
    const wire = await own.newCDPSession(page)
    const addresses = new Map<string, string>()
    const weights = new Map<string, number>()
    await wire.send('Network.enable')
    wire.on('Network.responseReceived', ({ requestId, response }) => addresses.set(requestId, new URL(response.url).pathname))
    wire.on('Network.loadingFinished', ({ requestId, encodedDataLength }) => {
      const path = addresses.get(requestId)
      if (path !== undefined) weights.set(path, encodedDataLength)
    })
    await load(page, url)
    await heading(page, 'Overview').waitFor()
    await eventually(() => page.locator('canvas').count()).toBe(4)
    await settled(page)
    const files = [...weights].filter(([path]) => path === '/' || path.startsWith('/assets/'))
    const sum = (list: [string, number][]) => list.reduce((all, [, bytes]) => all + bytes, 0)
    told('first load', `${(sum(files) / 1000).toFixed(1)} kB in ${files.length} files, ${(sum([...weights]) / 1000).toFixed(1)} kB with all answers`)
    expect(files.length).toBeGreaterThan(2)
    expect(sum(files)).toBeLessThan(WEIGHT_BYTES)
    await own.close()
  })

  test(`is there within ${INTERACTIVE_MS} ms`, async () => {
    const times: number[] = []
    for (let run = 0; run < 5; run += 1) {
      // A new context has an empty cache.
      const own = await context()
      await own.addInitScript(() => {
        const look = () => {
          const health = document.querySelector('header .health')?.textContent?.trim()
          const verdict = document.querySelector('main section h2')?.textContent ?? 'Loading'
          const backlog = document.querySelector('[role=group][aria-label=Backlog] .value')?.textContent ?? '–'
          if (health === 'Healthy' && backlog !== '–' && !verdict.startsWith('Loading')) {
            Object.assign(window, { there: performance.now() })
          } else {
            requestAnimationFrame(look)
          }
        }
        requestAnimationFrame(look)
      })
      const page = await own.newPage()
      await load(page, url)
      const there = () => page.evaluate(() => (window as unknown as { there?: number }).there)
      await eventually(there).toBeDefined()
      times.push((await there())!)
      await own.close()
    }
    told('health known and numbers shown', `${median(times).toFixed(0)} ms (${times.map((time) => time.toFixed(0)).join(', ')})`)
    expect(median(times)).toBeLessThan(INTERACTIVE_MS)
  })
})

describe('an open page', () => {
  /** CPU seconds that the broker has used. */
  function used(): number {
    const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ')
    // utime and stime, in hundredths of a second.
    return (Number(fields[11]) + Number(fields[12])) / 100
  }

  async function share(seconds: number): Promise<number> {
    const [before, began] = [used(), performance.now()]
    await sleep(seconds * 1000)
    return (used() - before) / ((performance.now() - began) / 1000)
  }

  test(`costs the broker less than ${SHARE_OF_A_CORE * 100} % of a core`, async () => {
    const alone = await share(5)
    const own = await context()
    const page = await own.newPage()
    watch(page)
    await load(page, url)
    await heading(page, 'Overview').waitFor()
    await settled(page)
    const watched = await share(10)
    await own.close()
    told('processor time of the broker', `${(watched * 100).toFixed(2)} % with the overview open, ${(alone * 100).toFixed(2)} % without`)
    expect(watched - alone).toBeLessThan(SHARE_OF_A_CORE)
  }, 60_000)
})

describe(`a list of ${QUEUES} queues`, () => {
  let server: Broker

  beforeAll(async () => {
    server = await broker(await database())
    const api = new Api(server.url)
    const name = (n: number) => `queue-${String(n).padStart(5, '0')}`
    for (let from = 0; from < QUEUES; from += 1_000) {
      await api.push(Array.from({ length: 1_000 }, (_, n) => ({ queue: name(from + n), payload: n })))
    }
  }, 180_000)
  afterAll(() => server?.stop())

  /** Scrolls to the end, a screen and a half per frame. */
  function scroll(page: Page) {
    return page.evaluate(async () => {
      const box = document.querySelector<HTMLElement>('[role=region][aria-label=Queues]')!
      const frames: number[] = []
      let [last, most] = [performance.now(), 0]
      while (box.scrollTop + box.clientHeight < box.scrollHeight - 1) {
        box.scrollTop += 800
        const now = await new Promise<number>(requestAnimationFrame)
        frames.push(now - last)
        last = now
        most = Math.max(most, box.querySelectorAll('tbody tr').length)
      }
      return { frames, most, end: box.querySelector('tbody tr:last-child')!.textContent! }
    })
  }

  test('is smooth to scroll and quick to search', async () => {
    const own = await context()
    const page = await own.newPage()
    const problems = watch(page)
    await load(page, server.url, ['queues'], { sort: 'name' })
    await eventually(() => page.locator('h1 + p').innerText()).toContain('10,000')
    await settled(page)
    const wire = await own.newCDPSession(page)
    await wire.send('Performance.enable', { timeDomain: 'threadTicks' })
    /** Milliseconds of processor time that the page's thread has used. */
    const used = async () => {
      const { metrics } = await wire.send('Performance.getMetrics')
      return metrics.find((metric) => metric.name === 'TaskDuration')!.value * 1000
    }

    const before = await used()
    const { frames, most, end } = await scroll(page)
    const worked = (await used()) - before
    const slow = frames.filter((frame) => frame > FRAME_MS)
    told('processor time of the page for a frame', `${(worked / frames.length).toFixed(1)} ms`)
    expect(worked / frames.length).toBeGreaterThan(0)
    expect(worked / frames.length).toBeLessThan(FRAME_MS)
    told('frames while scrolling 10,000 rows', `${frames.length}, median ${median(frames).toFixed(1)} ms, slowest ${Math.max(...frames).toFixed(0)} ms, ${slow.length} over ${FRAME_MS} ms; ${most} rows drawn at most`)
    expect(end).toContain('queue-09999')
    expect(most).toBeLessThan(100)
    expect(slow.length / frames.length).toBeLessThanOrEqual(SLOW_FRAMES)

    const box = page.getByRole('searchbox', { name: 'Search queues by name' })
    await box.focus()
    const idle = await used()
    const took = await page.evaluate(async () => {
      const field = document.querySelector<HTMLInputElement>('input[type=search]')!
      const began = performance.now()
      field.value = 'queue-07777'
      field.dispatchEvent(new Event('input', { bubbles: true }))
      while (document.querySelectorAll('[aria-label=Queues] tbody tr').length !== 1) await new Promise(requestAnimationFrame)
      return performance.now() - began
    })
    const searched = (await used()) - idle
    told('search in 10,000 rows', `${took.toFixed(0)} ms, ${searched.toFixed(0)} ms of processor time`)
    expect(DEBUG_BUILD ? searched : took).toBeLessThan(SEARCH_MS)
    expect(await rows(page, 'Queues').innerText()).toContain('queue-07777')
    await own.close()
    expect(problems).toEqual([])
  }, 120_000)
})

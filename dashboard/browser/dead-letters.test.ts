import { Api, named } from './api.ts'
import { address, cell, describe, dialog, eventually, expect, heading, inject, load, rows, said, test, text, toast, type Page } from './page.ts'

const { url } = inject('shared')
const api = new Api(url)

function errors(page: Page) {
  return page.getByRole('list', { name: 'Errors' }).getByRole('listitem')
}

async function total(queue: string): Promise<number> {
  return (await api.get(`/api/v1/dlq?queue=${queue}&limit=1`)).total
}

describe.concurrent('dead letters', () => {
  test('that failed too often are shown, redriven and consumed', async ({ page }) => {
    const queue = named('redrive')
    await api.post('/api/v1/configure', { queue, options: { retryLimit: 0 } })
    await api.push([41, 42, 43].map((customer) => ({ queue, payload: { customer } })))
    const taken = await api.take(queue, 3, 'billing')
    await api.ack(taken, 'billing', 'failed', 'no such customer 42')
    expect(await total(queue)).toBe(3)
    await load(page, url, ['dead-letters'], { queue })
    await said(page, '3 dead letters')
    expect(await text(errors(page))).toContain('no such customer 42')
    await page.getByRole('button', { name: 'Redrive all…' }).click()
    await dialog(page).getByText('3 dead letters').waitFor()
    await dialog(page).getByRole('button', { name: 'Redrive' }).click()
    await toast(page, 'Started: 3 dead letters at 100 per second').waitFor()
    expect(address(page).query.get('view')).toBe('redrives')
    const job = page.getByRole('list', { name: 'Redrives' }).getByRole('listitem').filter({ hasText: queue })
    await eventually(() => text(job)).toContain('3 of 3 replayed (100 %)')
    await eventually(() => text(job)).toContain('completed')
    const again = await api.consume(queue, 3, 'billing')
    expect(again).toEqual([41, 42, 43].map((customer) => ({ customer })))
    expect(await total(queue)).toBe(0)
  })

  test('are grouped by the shape of their errors, and one shape is redriven alone', async ({ page }) => {
    const queue = named('shapes')
    await api.bury(queue, 'billing', [
      ...[1, 2, 3, 4].map((n) => `no such customer ${n}`),
      'card "4242" was declined',
      'card "1881" was declined',
      null,
    ])
    await load(page, url, ['dead-letters'], { queue })
    await said(page, '7 dead letters')
    const { shapes } = await api.get(`/api/v1/dlq/shapes?queue=${queue}`)
    expect(shapes.map(({ count }: { count: number }) => count)).toEqual([4, 2, 1])
    await eventually(() => errors(page).count()).toBe(3)
    for (const [at, { shape, count }] of shapes.entries()) {
      expect(await text(errors(page).nth(at))).toContain(shape === '' ? 'No error text' : shape)
      expect(await text(errors(page).nth(at).locator('strong'))).toBe(String(count))
    }
    await errors(page).nth(1).getByRole('button', { name: /^Redrive/ }).click()
    await dialog(page).getByText('2 dead letters').waitFor()
    await dialog(page).getByRole('button', { name: 'Redrive' }).click()
    await toast(page, 'Started: 2 dead letters').waitFor()
    await eventually(() => total(queue)).toBe(5)
    expect((await api.get(`/api/v1/dlq/shapes?queue=${queue}`)).shapes.map(({ count }: { count: number }) => count)).toEqual([4, 1])
  })

  test('of one shape are listed, also those without a text', async ({ page }) => {
    const queue = named('list')
    await api.bury(queue, 'billing', ['timeout after 31 ms', 'timeout after 7 ms', null])
    await load(page, url, ['dead-letters'], { queue })
    await page.getByRole('link', { name: 'No error text' }).click()
    await eventually(() => rows(page, 'Dead letters').count()).toBe(1)
    await said(page, 'no text at all')
    await page.getByRole('button', { name: 'All errors' }).click()
    await eventually(() => rows(page, 'Dead letters').count()).toBe(3)
    expect(await cell(rows(page, 'Dead letters', '31 ms'), 'Group')).toBe('billing')
    await page.getByLabel('Error contains').fill('after 7')
    await page.getByLabel('Error contains').press('Enter')
    await eventually(() => rows(page, 'Dead letters').count()).toBe(1)
    await page.getByLabel('Error contains').fill('nothing like that')
    await page.getByLabel('Error contains').press('Enter')
    await said(page, 'No dead letter matches')
    await page.getByRole('button', { name: 'Clear the filter' }).click()
    await eventually(() => address(page).query.toString()).toBe('view=letters')
  })

  test('that were chosen are replayed, others stay', async ({ page }) => {
    const queue = named('chosen')
    await api.bury(queue, 'billing', ['one', 'two', 'three'])
    await load(page, url, ['dead-letters'], { queue, view: 'letters' })
    await eventually(() => rows(page, 'Dead letters').count()).toBe(3)
    for (const error of ['one', 'three']) await rows(page, 'Dead letters', error).getByRole('checkbox').check()
    await said(page, '2 selected')
    await page.getByRole('button', { name: 'Replay' }).click()
    await toast(page, '2 pushed again').waitFor()
    await eventually(() => rows(page, 'Dead letters').count()).toBe(1)
    expect(await total(queue)).toBe(1)
    const again = (await api.consume(queue, 2, 'billing')) as { error: string }[]
    expect(again.map(({ error }) => error).sort()).toEqual(['one', 'three'])
  })

  test('that were chosen are deleted', async ({ page }) => {
    const queue = named('gone')
    await api.bury(queue, 'billing', ['one', 'two'])
    await load(page, url, ['dead-letters'], { queue, view: 'letters' })
    await page.getByLabel('Select all shown').check()
    await said(page, '2 selected')
    await page.getByRole('button', { name: 'Delete…' }).click()
    await dialog(page).getByRole('button', { name: 'Delete', exact: true }).click()
    await toast(page, '2 deleted').waitFor()
    expect(await total(queue)).toBe(0)
  })

  test('all that match are chosen, also those that were not read yet', async ({ page }) => {
    const queue = named('many')
    await api.bury(queue, 'billing', Array.from({ length: 130 }, (_, n) => `failed ${n}`))
    await load(page, url, ['dead-letters'], { queue, view: 'letters' })
    await said(page, '100 of 130 dead letters')
    await page.getByLabel('Select all shown').check()
    await page.getByRole('button', { name: 'Select all 130 matching' }).click()
    await page.getByText('All 130 matching').waitFor()
    await page.getByRole('button', { name: 'Purge…' }).click()
    await dialog(page).getByText('130 dead letters').waitFor()
    await dialog(page).getByLabel(/to confirm/).fill(queue)
    await dialog(page).getByRole('button', { name: 'Purge 130' }).click()
    await toast(page, '130 deleted').waitFor()
    await said(page, 'No dead letter matches')
    expect(await total(queue)).toBe(0)
  })

  test('of one shape are purged when the name of the queue was typed', async ({ page }) => {
    const queue = named('purge')
    await api.bury(queue, 'billing', ['gone 1', 'gone 2', 'stays'])
    await load(page, url, ['dead-letters'], { queue })
    await page.getByRole('button', { name: /^Purge gone/ }).click()
    await dialog(page).getByText('2 dead letters').waitFor()
    const button = dialog(page).getByRole('button', { name: 'Purge 2' })
    expect(await button.isDisabled()).toBe(true)
    await dialog(page).getByLabel(/to confirm/).fill(queue)
    await button.click()
    await toast(page, '2 deleted').waitFor()
    await eventually(() => errors(page).count()).toBe(1)
    const { messages } = await api.get(`/api/v1/dlq?queue=${queue}`)
    expect(messages.map(({ errorMessage }: { errorMessage: string }) => errorMessage)).toEqual(['stays'])
  })

  test('are redriven at a pace, into another queue, and stopped on the way', async ({ page }) => {
    const [queue, target] = [named('slow'), named('target')]
    await api.bury(queue, 'billing', Array.from({ length: 40 }, (_, n) => `failed ${n}`))
    await load(page, url, ['dead-letters'], { queue })
    await page.getByRole('button', { name: 'Redrive all…' }).click()
    const pace = dialog(page).getByLabel('Messages per second')
    const button = dialog(page).getByRole('button', { name: 'Redrive' })
    await pace.fill('0')
    await dialog(page).getByText('Enter a whole number from 1 to 10,000').waitFor()
    expect(await button.isDisabled()).toBe(true)
    await pace.fill('2')
    await dialog(page).getByLabel('Target queue').fill(target)
    await dialog(page).getByText('about 20 s').waitFor()
    await button.click()
    await toast(page, 'Started: 40 dead letters at 2 per second').waitFor()
    const job = page.getByRole('list', { name: 'Redrives' }).getByRole('listitem').filter({ hasText: queue })
    await eventually(async () => Number(await job.getByRole('progressbar').getAttribute('aria-valuenow'))).toBeGreaterThan(0)
    await job.getByRole('button', { name: 'Stop' }).click()
    await toast(page, 'the rest stay dead letters').waitFor()
    await eventually(() => text(job)).toContain('stopped')
    const left = await total(queue)
    expect(left).toBeGreaterThan(0)
    expect(await api.take(target, 40 - left)).toHaveLength(40 - left)
  })

  test('of several queues are redriven one queue at a time', async ({ page }) => {
    const word = named('group')
    const queues = [`${word}.a`, `${word}.b`]
    for (const queue of queues) await api.bury(queue, word, ['failed'])
    await load(page, url, ['dead-letters'], { consumerGroup: word })
    await said(page, '2 dead letters')
    await page.getByRole('button', { name: 'Redrive all…' }).click()
    await said(page, 'The selection spans several queues. Choose one at a time.')
    await dialog(page).getByLabel('Queue', { exact: true }).selectOption(queues[1]!)
    await dialog(page).getByText('1 dead letter', { exact: true }).waitFor()
    await dialog(page).getByRole('button', { name: 'Redrive' }).click()
    await toast(page, 'Started: 1 dead letter at 100 per second').waitFor()
    await eventually(() => total(queues[1]!)).toBe(0)
    expect(await total(queues[0]!)).toBe(1)
  })

  test('lead to their message', async ({ page }) => {
    const queue = named('lead')
    await api.bury(queue, 'billing', ['failed'])
    await load(page, url, ['dead-letters'], { queue, view: 'letters' })
    const [letter] = (await api.get(`/api/v1/dlq?queue=${queue}`)).messages
    await rows(page, 'Dead letters').first().locator('td').last().click()
    await heading(page, letter.transactionId).waitFor()
    await said(page, 'Dead-lettered')
  })
})

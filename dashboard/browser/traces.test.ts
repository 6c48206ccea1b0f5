import { Api, named } from './api.ts'
import { address, cell, describe, dialog, eventually, expect, heading, inject, load, rows, said, test, text } from './page.ts'

const { url } = inject('shared')
const api = new Api(url)

/** A message with two notes under a name. */
async function noted(name: string) {
  const [pushed] = await api.push([{ queue: named('traced'), payload: { order: 1001 } }])
  const { partition_id: partitionId, transaction_id: transactionId } = pushed!
  const note = { partitionId, transactionId, traceNames: [name], consumerGroup: 'billing' }
  await api.post('/api/v1/traces', { ...note, eventType: 'info', data: { step: 'charged' } })
  await api.post('/api/v1/traces', { ...note, eventType: 'error', data: { step: 'shipped', why: 'no stock' } })
  return pushed!
}

describe.concurrent('traces', () => {
  test('are found by their name, with the numbers that the API reports', async ({ page }) => {
    const name = named('order')
    await noted(name)
    await load(page, url, ['traces'])
    await page.getByLabel('Name', { exact: true }).fill(name)
    await eventually(() => rows(page, 'Trace names').count()).toBe(1)
    expect(await cell(rows(page, 'Trace names').first(), 'Events')).toBe('2')
    expect(await cell(rows(page, 'Trace names').first(), 'Messages')).toBe('1')
    await page.getByLabel('Name', { exact: true }).press('Enter')
    await heading(page, name).waitFor()
    expect(address(page).path).toEqual(['traces', name])
  })

  test('show their notes, the newest first, and lead to the message', async ({ page }) => {
    const name = named('order')
    const pushed = await noted(name)
    await load(page, url, ['traces', name])
    await eventually(() => rows(page, 'Notes').count()).toBe(2)
    expect(await cell(rows(page, 'Notes').first(), 'Event')).toBe('error')
    expect(await cell(rows(page, 'Notes').first(), 'Group')).toBe('billing')
    await rows(page, 'Notes').first().locator('td').first().click()
    await dialog(page).getByRole('heading', { name: 'Note: error' }).waitFor()
    expect(await text(dialog(page).locator('pre[aria-label="Note"]'))).toContain('"why": "no stock"')
    expect(await text(dialog(page).locator('pre[aria-label="Payload"]'))).toContain('"order": 1001')
    await dialog(page).getByRole('link', { name: pushed.transaction_id }).click()
    await heading(page, pushed.transaction_id).waitFor()
    expect(await page.getByRole('dialog').count()).toBe(0)
  })

  test('an unused name has none', async ({ page }) => {
    await load(page, url, ['traces', named('nothing')])
    await said(page, 'No notes under this name')
    await page.getByRole('link', { name: 'All names' }).first().click()
    await heading(page, 'Traces').waitFor()
  })
})

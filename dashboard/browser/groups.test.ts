import { Api, named } from './api.ts'
import { address, cell, describe, dialog, eventually, expect, heading, inject, load, rows, said, stat, test, text, toast, type Page } from './page.ts'

const { url } = inject('shared')
const api = new Api(url)

async function detail(page: Page, group: string, queue: string): Promise<void> {
  await load(page, url, ['groups', group], { queue })
  await heading(page, group).waitFor()
}

/** Selects a target, and waits for the preview. */
async function forecast(page: Page, target: RegExp, words: string): Promise<void> {
  await page.getByRole('button', { name: 'Move…' }).click()
  await dialog(page).getByRole('radio', { name: target }).check()
  await dialog(page).getByText(words).waitFor()
}

describe.concurrent('the list of groups', () => {
  test('has a row for each group and queue, with the numbers that the API reports', async ({ page }) => {
    const [queue, other] = [named('list'), named('list')]
    await api.pushMany(queue, 8)
    await api.pushMany(other, 1)
    await api.consume(queue, 3, 'billing')
    await api.consume(other, 1, 'billing')
    await api.pop(queue)
    await load(page, url, ['groups'], { q: queue })
    const reported = await api.get(`/api/v1/consumer-groups?queue=${queue}`)
    expect(reported.map(({ name, totalLag }: { name: string; totalLag: number }) => [name, totalLag]).sort()).toEqual([
      ['__QUEUE_MODE__', 8],
      ['billing', 5],
    ])
    await eventually(() => cell(rows(page, 'Consumer groups', 'billing'), 'Unread')).toBe('5')
    expect(await cell(rows(page, 'Consumer groups', 'Queue mode'), 'Unread')).toBe('8')
    expect(await cell(rows(page, 'Consumer groups', 'billing'), 'Partitions read')).toBe('1')
    await rows(page, 'Consumer groups', 'billing').locator('td').last().click()
    await heading(page, 'billing').waitFor()
    expect(address(page)).toMatchObject({ path: ['groups', 'billing'] })
    expect(address(page).query.get('queue')).toBe(queue)
  })

  test('is searched by group and by queue', async ({ page }) => {
    const [queue, group] = [named('find'), named('team')]
    await api.pushMany(queue, 1)
    await api.pop(queue, { group })
    await load(page, url, ['groups'])
    const box = page.getByRole('searchbox', { name: 'Search by group or queue' })
    for (const word of [queue, group]) {
      await box.fill(word)
      await eventually(() => rows(page, 'Consumer groups').count()).toBe(1)
    }
    await box.fill(`${group} no`)
    await said(page, 'No group matches')
    await page.getByRole('button', { name: 'Show all groups' }).click()
    await rows(page, 'Consumer groups').first().waitFor()
  })
})

describe.concurrent('a group', () => {
  test('shows positions, leases and their holders', async ({ page }) => {
    const queue = named('stand')
    await api.pushMany(queue, 4, 'a')
    await api.pushMany(queue, 2, 'b')
    await api.consume(queue, 6, 'billing')
    await api.pushMany(queue, 3, 'a')
    const [held] = await api.take(queue, 3, 'billing')
    await detail(page, 'billing', queue)
    await eventually(() => text(stat(page, 'Unread'))).toBe('3')
    expect(await text(stat(page, 'Partitions behind'))).toBe('1')
    expect(await text(stat(page, 'Partitions read'))).toBe('2')
    const of = (name: string) => rows(page, 'Partitions').filter({ has: page.getByRole('link', { name, exact: true }) })
    const [a, b] = [of('a'), of('b')]
    await eventually(() => cell(a, 'Unread')).toBe('3')
    expect(await cell(a, 'Held by')).toBe('127.0.0.1')
    const lease = held!.leaseId.split('.')[0]
    expect(await a.locator('[title^="Popped from 127.0.0.1"]').getAttribute('title')).toContain(`lease ${lease}`)
    expect(await cell(a, 'Held since')).toMatch(/just now|s ago/)
    expect(await cell(a, 'Ends')).toMatch(/^in/)
    expect(await cell(b, 'Held by')).toBe('free')
    await page.getByLabel('Only leased partitions').check()
    await eventually(() => rows(page, 'Partitions').count()).toBe(1)
  })

  test('is moved to the beginning, with as many messages as previewed', async ({ page }) => {
    const queue = named('beginning')
    await api.push(Array.from({ length: 9 }, (_, n) => ({ queue, partition: `p${n % 2}`, payload: n })))
    await api.consume(queue, 9, 'billing')
    await detail(page, 'billing', queue)
    const asked = page.waitForRequest('**/seek')
    await forecast(page, /the beginning/, '9 messages will be delivered again.')
    expect((await asked).postDataJSON()).toMatchObject({ dryRun: true })
    expect(await api.pop(queue, { group: 'billing' })).toEqual([])
    await dialog(page).getByRole('button', { name: 'Move group' }).click()
    await toast(page, 'Moved in 2 partitions').waitFor()
    await eventually(() => text(stat(page, 'Unread'))).toBe('9')
    expect((await api.consume(queue, 9, 'billing')).sort()).toEqual([0, 1, 2, 3, 4, 5, 6, 7, 8])
    expect(await api.pop(queue, { group: 'billing' })).toEqual([])
  })

  test('is sent to a time: only what came after it', async ({ page }) => {
    const queue = named('time')
    await api.pushMany(queue, 4)
    await api.consume(queue, 4, 'billing')
    await detail(page, 'billing', queue)
    // All messages were pushed within the last hour, and none is pushed after tomorrow.
    await forecast(page, /after a time/, '4 messages will be delivered again.')
    const tomorrow = new Date(Date.now() + 86_400_000).toISOString().slice(0, 19)
    await dialog(page).getByLabel('Time', { exact: true }).fill(tomorrow)
    await dialog(page).getByText('No message is replayed or skipped.').waitFor()
    await dialog(page).getByRole('button', { name: '24 h ago' }).click()
    await dialog(page).getByText('4 messages will be delivered again.').waitFor()
    await dialog(page).getByRole('button', { name: 'Move group' }).click()
    await toast(page, 'Moved in 1 partition').waitFor()
    expect(await api.consume(queue, 4, 'billing')).toHaveLength(4)
  })

  test('is sent to the end: what it has not read it never will', async ({ page }) => {
    const queue = named('end')
    await api.pushMany(queue, 5)
    await api.consume(queue, 1, 'billing')
    await detail(page, 'billing', queue)
    await forecast(page, /the end/, '4 messages will be skipped unread.')
    await dialog(page).getByRole('button', { name: 'Move group' }).click()
    await toast(page, 'Moved in 1 partition').waitFor()
    await eventually(() => text(stat(page, 'Unread'))).toBe('0')
    await api.push([{ queue, payload: 'next' }])
    expect(await api.consume(queue, 1, 'billing')).toEqual(['next'])
  })

  test('stays where it is when one thinks better of it', async ({ page }) => {
    const queue = named('stay')
    await api.pushMany(queue, 3)
    await api.consume(queue, 3, 'billing')
    await detail(page, 'billing', queue)
    await forecast(page, /the beginning/, '3 messages will be delivered again.')
    await dialog(page).getByRole('button', { name: 'Cancel' }).click()
    await dialog(page).waitFor({ state: 'hidden' })
    expect(await api.pop(queue, { group: 'billing' })).toEqual([])
  })

  test('skips one partition', async ({ page }) => {
    const queue = named('skip')
    await api.pushMany(queue, 3, 'stuck')
    await api.pushMany(queue, 2, 'fine')
    await api.ack(await api.take(queue, 5, 'billing'), 'billing', 'retry')
    await detail(page, 'billing', queue)
    await page.getByRole('button', { name: 'Move in partition stuck' }).click()
    await dialog(page).getByRole('radio', { name: /the end/ }).check()
    await dialog(page).getByText('3 messages will be skipped unread.').waitFor()
    await dialog(page).getByRole('button', { name: 'Move group' }).click()
    await toast(page, 'Moved').waitFor()
    await eventually(() => text(stat(page, 'Unread'))).toBe('2')
    expect((await api.take(queue, 2, 'billing')).map(({ partition }) => partition)).toEqual(['fine', 'fine'])
  })

  test('that reads several queues lists them, and is deleted everywhere when its name was typed', async ({ page }) => {
    const [one, two, group] = [named('one'), named('two'), named('team')]
    await api.pushMany(one, 1)
    await api.pushMany(two, 4)
    await api.consume(one, 1, group)
    await api.consume(two, 1, group)
    await load(page, url, ['groups', group])
    await eventually(() => rows(page, `Queues that ${group} reads`).count()).toBe(2)
    await eventually(() => text(stat(page, 'Unread'))).toBe('3')
    await rows(page, `Queues that ${group} reads`, one).locator('td').last().click()
    await eventually(() => text(stat(page, 'Unread'))).toBe('0')
    await page.getByRole('button', { name: 'Delete in all queues…' }).click()
    const button = dialog(page).getByRole('button', { name: 'Delete group' })
    expect(await button.isDisabled()).toBe(true)
    await dialog(page).getByRole('textbox').fill(group)
    await button.click()
    await toast(page, 'Deleted in 2 partitions').waitFor()
    await heading(page, 'Consumer groups').waitFor()
    for (const queue of [one, two]) expect(await api.get(`/api/v1/consumer-groups?queue=${queue}`)).toEqual([])
    await load(page, url, ['groups', group])
    await said(page, 'This group reads no queue')
  })

  test('is deleted in one queue', async ({ page }) => {
    const queue = named('forget')
    await api.pushMany(queue, 2)
    await api.consume(queue, 2, 'billing')
    await api.consume(queue, 2, 'audit')
    const group = named('only')
    await api.consume(queue, 2, group)
    await detail(page, group, queue)
    await page.getByRole('button', { name: 'Delete…' }).click()
    await dialog(page).getByRole('textbox').fill(group)
    await dialog(page).getByRole('button', { name: 'Delete group' }).click()
    await toast(page, 'Deleted in 1 partition').waitFor()
    await heading(page, 'Consumer groups').waitFor()
    const left = await api.get(`/api/v1/consumer-groups?queue=${queue}`)
    expect(left.map(({ name }: { name: string }) => name).sort()).toEqual(['audit', 'billing'])
    // The group starts over.
    expect(await api.consume(queue, 2, group)).toHaveLength(2)
  })
})

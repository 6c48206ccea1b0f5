import { Api, named, type Pushed } from './api.ts'
import { address, cell, describe, dialog, eventually, expect, go, heading, inject, load, noticed, rows, said, test, text, toast, type Page } from './page.ts'

const { url } = inject('shared')
const api = new Api(url)

/** As a JavaScript number it would lose digits. */
const EXACT = '{"id":12345678901234567890,"price":1.0}'

function payload(page: Page) {
  return page.locator('pre[aria-label="Payload as text"]')
}

/** A group's state of the message. */
function standing(page: Page, group: string) {
  return page.locator('table.plain tbody tr').filter({ hasText: group })
}

/** A line under "Facts". */
function fact(page: Page, name: string) {
  return page.locator('dl.facts > dt', { hasText: new RegExp(`^${name}$`) }).locator('xpath=following-sibling::dd[1]')
}

async function detail(page: Page, { partition_id, transaction_id }: Pushed): Promise<void> {
  await load(page, url, ['messages', partition_id, transaction_id])
  await heading(page, transaction_id).waitFor()
  await payload(page).waitFor()
}

describe.concurrent('the push form', () => {
  test('pushes a message, which is seen, read and done with', async ({ page }) => {
    const queue = named('form')
    await load(page, url, ['push'], { queue, partition: 'customer-42' })
    await page.getByLabel('Payload (JSON)').fill(EXACT)
    const asked = page.waitForRequest('**/api/v1/push')
    await page.getByRole('button', { name: 'Push', exact: true }).click()
    expect((await asked).postData()).toContain(EXACT)
    await toast(page, 'Stored as').waitFor()
    await page.getByRole('region', { name: 'Pushed from here' }).getByRole('link').click()
    await payload(page).waitFor()
    expect(await text(payload(page))).toBe('{\n  "id": 12345678901234567890,\n  "price": 1.0\n}')
    await page.getByRole('tab', { name: 'Raw' }).click()
    expect(await text(payload(page))).toBe(EXACT)
    expect(await text(fact(page, 'Status'))).toBe('pending')
    await said(page, 'No group has read this partition yet.')

    const [message] = await api.pop(queue, { group: 'billing', waitMs: 5_000 })
    await noticed(page, () => text(standing(page, 'billing'))).toContain('processing')
    await noticed(page, () => text(fact(page, 'Status'))).toBe('processing')
    await api.ack([message!], 'billing')
    await noticed(page, () => text(standing(page, 'billing'))).toContain('completed')
    await noticed(page, () => text(fact(page, 'Status'))).toBe('completed')
    expect(await api.pop(queue, { group: 'billing' })).toEqual([])
  })

  test('says where JSON is wrong, and does not push it', async ({ page }) => {
    await load(page, url, ['push'], { queue: named('wrong') })
    const field = page.getByLabel('Payload (JSON)')
    await field.fill('{\n  "a": 1,\n}')
    await said(page, 'Line 3, column 1')
    expect(await field.getAttribute('aria-invalid')).toBe('true')
    expect(await page.getByRole('button', { name: 'Push', exact: true }).isDisabled()).toBe(true)
    await field.fill('{"a":1}')
    await page.getByRole('button', { name: 'Format JSON' }).click()
    expect(await field.inputValue()).toBe('{\n  "a": 1\n}')
    expect(await page.getByRole('button', { name: 'Push', exact: true }).isDisabled()).toBe(false)
  })

  test('pushes with Ctrl and Enter, and tells a duplicate', async ({ page }) => {
    const queue = named('keys')
    await load(page, url, ['push'])
    await page.getByLabel('Queue').fill(queue)
    const list = page.getByRole('region', { name: 'Pushed from here' })
    for (const badge of ['queued', 'duplicate']) {
      await page.getByLabel('Transaction id').fill('order-1')
      await page.getByLabel('Payload (JSON)').press('Control+Enter')
      await eventually(() => text(list.getByRole('listitem').first())).toContain(badge)
      expect(await page.getByLabel('Transaction id').inputValue()).toBe('')
    }
    await toast(page, 'Duplicate: a message with this transaction id is already stored').waitFor()
    expect(await api.take(queue, 1)).toHaveLength(1)
    expect(await api.pop(queue)).toEqual([])
  })

  test('keeps what was typed while one looks elsewhere', async ({ page }) => {
    await load(page, url, ['push'])
    await page.getByLabel('Payload (JSON)').fill('{"half":"wri')
    await go(page, ['queues'])
    await heading(page, 'Queues').waitFor()
    await go(page, ['push'])
    expect(await page.getByLabel('Payload (JSON)').inputValue()).toBe('{"half":"wri')
  })

  test('sends what is needed to follow a message', async ({ page }) => {
    const queue = named('traced')
    const traceId = '6f1c7d54-3a5b-4f0e-9d55-0b6a4c1e2f3a'
    await load(page, url, ['push'], { queue })
    await page.getByText('Tracing and labels').click()
    await page.getByLabel('Trace id').fill(traceId)
    await page.getByRole('button', { name: 'Push', exact: true }).click()
    await toast(page, 'Stored as').waitFor()
    await api.consume(queue, 1, 'billing')
    await page.getByRole('region', { name: 'Pushed from here' }).getByRole('link').click()
    expect(await text(fact(page, 'Trace id'))).toContain(traceId)
    await noticed(page, () => text(page.getByRole('list').filter({ hasText: 'Pushed' }))).toMatch(/Pushed[^]*Delivered[^]*Completed/)
  })
})

describe.concurrent('one message', () => {
  test('tells its ids and its place', async ({ page }) => {
    const queue = named('facts')
    const [, pushed] = await api.push([
      { queue, partition: 'p', payload: 1 },
      { queue, partition: 'p', payload: 2 },
    ])
    await detail(page, pushed!)
    expect(await text(fact(page, 'Message id'))).toContain(pushed!.message_id)
    expect(await text(fact(page, 'Transaction id'))).toContain(pushed!.transaction_id)
    expect(await text(fact(page, 'Partition id'))).toContain(pushed!.partition_id)
    expect(await text(fact(page, 'Offset'))).toBe('1')
    expect(await text(fact(page, 'Queue'))).toBe(queue)
    await page.context().grantPermissions(['clipboard-read', 'clipboard-write'])
    await page.getByRole('button', { name: 'Copy message id' }).click()
    await said(page, 'Copied')
    expect(await page.evaluate(() => navigator.clipboard.readText())).toBe(pushed!.message_id)
    await said(page, 'Deliveries and acknowledgements are recorded for messages that were pushed with a')
  })

  test('is pushed again as a copy', async ({ page }) => {
    const queue = named('copy')
    const answer = await fetch(`${url}/api/v1/push`, {
      method: 'POST',
      body: `{"items":[{"queue":"${queue}","partition":"p","payload":${EXACT},"transactionId":"first"}]}`,
    })
    await detail(page, ((await answer.json()) as Pushed[])[0]!)
    await page.getByRole('link', { name: 'Push a copy' }).click()
    await said(page, 'It gets its own id.')
    await eventually(() => page.getByLabel('Queue').inputValue()).toBe(queue)
    expect(await page.getByLabel('Partition').inputValue()).toBe('p')
    expect(await page.getByLabel('Payload (JSON)').inputValue()).toContain('12345678901234567890')
    expect(await page.getByLabel('Transaction id').inputValue()).toBe('')
    await page.getByRole('button', { name: 'Push', exact: true }).click()
    await toast(page, 'Stored as').waitFor()
    const copies = await api.take(queue, 2)
    expect(copies.map(({ partition }) => partition)).toEqual(['p', 'p'])
    expect(copies[0]!.data).toEqual(copies[1]!.data)
    expect(copies[1]!.transactionId).not.toBe('first')
  })

  test('is dead-lettered by hand, and replayed', async ({ page }) => {
    const queue = named('bury')
    const [pushed] = await api.push([{ queue, payload: { total: 10 } }])
    await detail(page, pushed!)
    await page.getByRole('button', { name: 'Dead-letter' }).click()
    await dialog(page).getByLabel('Reason').fill('a poisoned order')
    await dialog(page).getByRole('button', { name: 'Dead-letter message' }).click()
    await toast(page, 'Dead-lettered for Queue mode').waitFor()
    await eventually(() => text(fact(page, 'Status'))).toBe('dead letter')
    await said(page, 'a poisoned order')
    const { messages } = await api.get(`/api/v1/dlq?queue=${queue}`)
    expect(messages).toMatchObject([{ errorMessage: 'a poisoned order', transactionId: pushed!.transaction_id }])
    expect(await api.pop(queue)).toEqual([])

    await page.getByRole('button', { name: 'Replay' }).click()
    await toast(page, 'Pushed again as').waitFor()
    await eventually(() => address(page).path[2]).not.toBe(pushed!.transaction_id)
    await heading(page, address(page).path[2]!).waitFor()
    expect((await api.get(`/api/v1/dlq?queue=${queue}`)).total).toBe(0)
    expect(await api.consume(queue, 1)).toEqual([{ total: 10 }])
  })

  test('that a group holds cannot be buried: the words are the broker’s, and the dialog stays', async ({ page }) => {
    const queue = named('held')
    const [pushed] = await api.push([{ queue, payload: 1 }])
    await api.ack(await api.take(queue, 1, 'billing'), 'billing', 'retry')
    await detail(page, pushed!)
    await page.getByRole('button', { name: 'Dead-letter' }).click()
    await eventually(() => dialog(page).getByLabel('Group').inputValue()).toBe('billing')
    await api.take(queue, 1, 'billing')
    await dialog(page).getByRole('button', { name: 'Dead-letter message' }).click()
    const path = `/api/v1/messages/${pushed!.partition_id}/${pushed!.transaction_id}/dlq`
    await toast(page, await api.refusal('POST', path, { consumerGroup: 'billing' })).waitFor()
    expect(await dialog(page).isVisible()).toBe(true)
  })

  test('is deleted and not delivered', async ({ page }) => {
    const queue = named('remove')
    const [pushed] = await api.push([{ queue, payload: 1 }])
    await api.push([{ queue, payload: 2 }])
    await detail(page, pushed!)
    await page.getByRole('button', { name: 'Delete' }).click()
    await dialog(page).getByRole('button', { name: 'Delete message' }).click()
    await toast(page, 'It will not be delivered anymore').waitFor()
    await heading(page, 'Messages').waitFor()
    expect(address(page).query.get('queue')).toBe(queue)
    await eventually(() => rows(page, 'Messages').count()).toBe(1)
    expect(await api.consume(queue, 1, 'billing')).toEqual([2])
    await go(page, ['messages', pushed!.partition_id, pushed!.transaction_id])
    await said(page, 'The message itself is gone')
    expect(await page.getByRole('alert').count()).toBe(0)
    await go(page, ['messages', pushed!.partition_id, 'never-pushed'])
    await said(page, 'Message not found')
  })

  test('shows what consumers noted about it', async ({ page }) => {
    const queue = named('noted')
    const [pushed] = await api.push([{ queue, payload: 1 }])
    const { partition_id: partitionId, transaction_id: transactionId } = pushed!
    await api.post('/api/v1/traces', { partitionId, transactionId, eventType: 'info', consumerGroup: 'billing', data: { step: 'charged' } })
    await detail(page, pushed!)
    await said(page, 'Note: info')
    expect(await text(page.locator('pre[aria-label="Note"]'))).toContain('"step": "charged"')
  })
})

describe.concurrent('the list of messages', () => {
  test('lists the newest first, and those that come', async ({ page }) => {
    const queue = named('live')
    await api.pushMany(queue, 2)
    await load(page, url, ['messages'], { queue })
    await eventually(() => rows(page, 'Messages').count()).toBe(2)
    expect(await cell(rows(page, 'Messages').first(), 'Payload')).toBe('{"n":1}')
    expect(await cell(rows(page, 'Messages').first(), 'Status')).toBe('pending')
    await api.push([{ queue, payload: { n: 'new' } }])
    await noticed(page, () => cell(rows(page, 'Messages').first(), 'Payload')).toBe('{"n":"new"}')
    await api.consume(queue, 3)
    await noticed(page, () => cell(rows(page, 'Messages').first(), 'Status')).toBe('completed')
  })

  test('is filtered, and the address remembers it', async ({ page }) => {
    const queue = named('filter')
    await api.push(['a', 'b', 'b'].map((partition, n) => ({ queue, partition, payload: { n } })))
    await api.ack((await api.take(queue, 3)).filter(({ partition }) => partition === 'a'))
    await load(page, url, ['messages'])
    await page.getByLabel('Queue').fill(queue)
    await page.getByLabel('Queue').press('Enter')
    await eventually(() => rows(page, 'Messages').count()).toBe(3)
    await page.getByLabel('Partition').fill('b')
    await page.getByLabel('Partition').press('Enter')
    await eventually(() => rows(page, 'Messages').count()).toBe(2)
    await page.reload()
    await eventually(() => rows(page, 'Messages').count()).toBe(2)
    expect(await page.getByLabel('Partition').inputValue()).toBe('b')
    await page.getByLabel('Find in loaded messages').fill('"n":2')
    await eventually(() => rows(page, 'Messages').count()).toBe(1)
    await page.getByLabel('Find in loaded messages').fill('')
    await page.getByLabel('Status').selectOption('completed')
    await said(page, 'No message matches')
    await page.getByRole('button', { name: 'Clear the filter' }).click()
    await eventually(() => address(page).query.toString()).toBe('')
    await page.getByLabel('Queue').fill(queue)
    await page.getByLabel('Queue').press('Enter')
    await page.getByLabel('Status').selectOption('completed')
    await eventually(() => rows(page, 'Messages').count()).toBe(1)
    expect(await cell(rows(page, 'Messages').first(), 'Partition')).toBe('a')
  })

  test('is limited to a time, in the viewer’s zone and in UTC in the address', async ({ page }) => {
    const queue = named('when')
    await api.pushMany(queue, 1)
    await load(page, url, ['messages'], { queue })
    await eventually(() => rows(page, 'Messages').count()).toBe(1)
    await page.getByLabel('Pushed').selectOption({ label: 'From … to …' })
    await page.getByLabel('From').fill('2020-01-02T03:04:05')
    await page.getByLabel('To').fill('2020-07-02T03:04:05')
    await said(page, 'No message matches')
    // Berlin is one hour ahead in winter and two in summer.
    expect(address(page).query.get('from')).toBe('2020-01-02T02:04:05.000Z')
    expect(address(page).query.get('to')).toBe('2020-07-02T01:04:05.000Z')
    await page.getByLabel('To').fill('')
    await page.getByLabel('To').press('Tab')
    await eventually(() => rows(page, 'Messages').count()).toBe(1)
  })

  test('stands still while one reads further', async ({ page }) => {
    const queue = named('far')
    await api.pushMany(queue, 250)
    await load(page, url, ['messages'], { queue })
    await said(page, '100 messages, and there are more')
    const box = page.getByRole('region', { name: 'Messages' })
    const end = () => box.evaluate((element) => element.scrollTo(0, element.scrollHeight))
    await end()
    await said(page, 'Paused while you read on.')
    await eventually(async () => {
      await end()
      return page.getByText('{"n":0}').count()
    }).toBe(1)
    await said(page, '250 messages')
    await api.push([{ queue, payload: 'new' }])
    await page.getByRole('button', { name: 'Back to the newest' }).click()
    await said(page, 'Live')
    await box.evaluate((element) => element.scrollTo(0, 0))
    await eventually(() => cell(rows(page, 'Messages').first(), 'Payload')).toBe('"new"')
  })

  test('offers a way on when nothing matches', async ({ page }) => {
    await load(page, url, ['messages'], { queue: named('nobody') })
    await said(page, 'No message matches')
    await page.getByRole('button', { name: 'Search all times' }).click()
    expect(address(page).query.get('when')).toBe('all')
    await said(page, 'No message matches')
    expect(await page.getByRole('button', { name: 'Search all times' }).count()).toBe(0)
  })

  test('opens a message with any id', async ({ page }) => {
    const queue = named('ids')
    const transactionId = `${named('a')}/b?c#d %2F ü`
    await api.push([{ queue, payload: 1, transactionId }])
    await load(page, url, ['messages'], { queue })
    await rows(page, 'Messages').first().locator('td').first().click()
    await heading(page, transactionId).waitFor()
    await payload(page).waitFor()
  })

  test('opens a message of which one knows the ids', async ({ page }) => {
    const queue = named('known')
    const [pushed] = await api.push([{ queue, partition: 'p', transactionId: 'order 7' }])
    await load(page, url, ['messages'], { queue })
    await page.getByRole('button', { name: 'Open by id' }).click()
    await dialog(page).getByLabel('Transaction id').fill('order 7')
    await dialog(page).getByLabel('Partition').fill('nowhere')
    await dialog(page).getByRole('button', { name: 'Open' }).click()
    await dialog(page).getByText('Partition not found.').waitFor()
    await dialog(page).getByLabel('Partition').fill('p')
    await dialog(page).getByRole('button', { name: 'Open' }).click()
    await heading(page, 'order 7').waitFor()
    expect(address(page).path).toEqual(['messages', pushed!.partition_id, 'order 7'])
  })
})

import { Api, named } from './api.ts'
import { broker, database, travel } from './brokers.ts'
import { address, agrees, describe, eventually, expect, heading, inject, load, noticed, rows, stat, test, text } from './page.ts'

const { url } = inject('shared')
const api = new Api(url)

const exact = (n: number) => new Intl.NumberFormat('en').format(n)

describe.concurrent('the overview', () => {
  test('shows the numbers that the API reports', async ({ page }) => {
    const queue = named('overview')
    await api.pushMany(queue, 20)
    await api.bury(queue, 'billing', ['failed'])
    await load(page, url)
    await heading(page, 'Overview').waitFor()
    const overview = () => api.get('/api/v1/resources/overview')
    await agrees(
      page,
      () => text(page.locator('h1 + p')),
      async () => {
        const { queues, partitions, messages } = await overview()
        return `${exact(queues)} queues, ${exact(partitions)} partitions, ${exact(messages.total)} messages stored`
      },
    )
    const title = (label: string) => stat(page, label).getAttribute('title').then(String)
    await agrees(page, () => title('Backlog'), async () => exact((await overview()).messages.pending))
    await agrees(page, () => title('Dead letters'), async () => exact((await overview()).messages.deadLetter))
  })

  test('says how it is in the words of the doctor', async ({ page }) => {
    await load(page, url)
    const { findings } = await api.get('/api/v1/system/doctor')
    const health = page.getByRole('region', { name: 'Health' })
    await eventually(() => text(health)).toMatch(/Healthy|problem|warning/)
    for (const { message } of findings) expect(await text(health)).toContain(message)
    await eventually(() => text(page.locator('header .health'))).toBe('Healthy')
  })

  test('follows what producers and consumers do', async ({ page }) => {
    const queue = named('traffic')
    await load(page, url)
    await eventually(() => text(stat(page, 'Pushed'))).toMatch(/\/s$/)
    await api.pushMany(queue, 60)
    await api.consume(queue, 60)
    for (const label of ['Pushed', 'Popped', 'Acknowledged']) {
      await eventually(async () => Number.parseFloat(await text(stat(page, label)))).toBeGreaterThan(0)
    }
    const lane = page.getByRole('region', { name: 'Lanes' }).last().getByRole('row').filter({ hasText: 'Push' })
    await eventually(() => text(lane)).toMatch(/ms|µs/)
  })

  test('draws the time that was chosen', async ({ page }) => {
    await load(page, url)
    await eventually(() => page.locator('figure canvas').count()).toBe(4)
    const ranges = page.getByRole('group', { name: 'Time range' })
    const pressed = (name: string) => ranges.getByRole('button', { name, exact: true }).getAttribute('aria-pressed')
    expect(await pressed('1 h')).toBe('true')
    await ranges.getByRole('button', { name: 'Live' }).click()
    expect(await pressed('Live')).toBe('true')
    expect(address(page).query.get('range')).toBe('live')
    await page.reload()
    await eventually(() => pressed('Live')).toBe('true')
  })

  test('lists groups that have not read for ten seconds', async ({ page }) => {
    // A separate broker, because only the partitions furthest behind are listed.
    const place = await database()
    const server = await broker(place)
    const own = new Api(server.url)
    await travel(place, '1 hour')
    await own.pushMany('orders', 2)
    await own.consume('orders', 1, 'sleepy')
    await travel(place, '0 seconds')
    await load(page, server.url)
    const behind = rows(page, 'Partitions furthest behind', 'sleepy')
    await noticed(page, () => behind.count()).toBe(1)
    await behind.getByRole('link', { name: 'orders' }).click()
    await heading(page, 'orders').waitFor()
    await page.close()
    await server.stop()
  })
})

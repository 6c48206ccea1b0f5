import { createHmac } from 'node:crypto'
import { Api, named } from './api.ts'
import { command, type Broker } from './broker.ts'
import { broker, database, way } from './brokers.ts'
import { LAPTOP, PHONE, address, afterAll, beforeAll, context, describe, eventually, expect, go, heading, load, noticed, picture, rows, said, settled, test, text, toast, violations, type Page } from './page.ts'

const SECRET = 'a-secret-that-only-this-test-knows-about'

let server: Broker
let admin: Api

beforeAll(async () => {
  // Broker and test share a clock, so a token expires when it says.
  server = await broker(await database(), { JWT_ENABLED: 'true', JWT_SECRET: SECRET, JWT_CLOCK_SKEW: '0' })
  admin = new Api(server.url, token({ role: 'admin' }))
})
afterAll(() => server?.stop())

/** A token as an identity provider would sign it. */
function token(claims: object, secret = SECRET): string {
  const coded = (part: object) => Buffer.from(JSON.stringify(part)).toString('base64url')
  const body = [
    coded({ alg: 'HS256', typ: 'JWT' }),
    coded({ sub: 'ada', exp: Math.floor(Date.now() / 1000) + 3600, ...claims }),
  ].join('.')
  return `${body}.${createHmac('sha256', secret).update(body).digest('base64url')}`
}

const keyOf = (...args: string[]) => command(server.settings, 'key', 'create', ...args)

async function login(page: Page, credential: string, path?: string[], query?: Record<string, string>): Promise<void> {
  await load(page, server.url, path, query)
  await page.getByLabel('Token or API key').fill(credential)
  await page.getByRole('button', { name: 'Log in' }).click()
  await page.getByRole('navigation', { name: 'Pages' }).waitFor()
}

/** Requests that the broker refuses while these pages are open. */
function refusals(page: Page): string[] {
  const refused: string[] = []
  page.on('response', (response) => {
    if ([401, 403].includes(response.status())) refused.push(`${response.status()} ${response.url()}`)
  })
  return refused
}

describe.concurrent('the login', () => {
  test('comes first, and refuses in the words of the broker', async ({ page }) => {
    await load(page, server.url, ['queues'])
    const field = page.getByLabel('Token or API key')
    const wrong = [
      'nonsense',
      'qk_0000000000000000_nobody',
      token({ role: 'admin' }, 'another secret, and long enough for that'),
      token({ role: 'admin', exp: 1_000_000_000 }),
      token({ role: 'none of these' }),
    ]
    for (const credential of wrong) {
      const words = await new Api(server.url, credential).refusal('GET', '/api/v1/whoami')
      await field.fill(credential)
      await page.getByRole('button', { name: 'Log in' }).click()
      await page.getByText(words, { exact: true }).waitFor()
      expect(await field.getAttribute('aria-invalid')).toBe('true')
    }
    await field.fill(token({ role: 'admin' }))
    await page.getByRole('button', { name: 'Log in' }).click()
    await heading(page, 'Queues').waitFor()
  })

  test('accepts a token, and shows the user', async ({ page }) => {
    await login(page, `Bearer ${token({ role: 'admin', sub: 'grace' })}`)
    await heading(page, 'Overview').waitFor()
    await said(page, 'grace')
    await said(page, 'admin')
    expect(page.url()).not.toContain('eyJ')
    await page.reload()
    await heading(page, 'Overview').waitFor()
  })

  test('takes an API key', async ({ page }) => {
    const key = await keyOf('--name', 'billing', '--role', 'read-write')
    await login(page, key)
    await said(page, 'billing')
    await said(page, 'read-write')
  })

  test('is kept in this tab only, unless one wants more', async ({ page }) => {
    const kept = (where: Page) => where.evaluate(() => [sessionStorage, localStorage].map((store) => 'queen.credential' in store))
    await login(page, token({ role: 'admin' }))
    expect(await kept(page)).toEqual([true, false])
    const second = await page.context().newPage()
    await load(second, server.url)
    await second.getByLabel('Token or API key').fill(token({ role: 'admin' }))
    await second.getByLabel('Keep me logged in on this device').check()
    await second.getByRole('button', { name: 'Log in' }).click()
    await heading(second, 'Overview').waitFor()
    expect(await kept(second)).toEqual([false, true])
    const third = await page.context().newPage()
    await load(third, server.url)
    await heading(third, 'Overview').waitFor()
  })

  test('says so while the broker cannot check a key, and lets one try again', async ({ page }) => {
    const road = await way(await database())
    const lonely = await broker(road.database, { QUEEN_AUTH_ENABLED: 'true' })
    const key = await command(lonely.settings, 'key', 'create', '--name', 'ops', '--role', 'admin')
    road.cut()
    await load(page, lonely.url)
    await page.getByLabel('Token or API key').fill(key)
    await page.getByRole('button', { name: 'Log in' }).click()
    const alert = page.getByRole('alert')
    await alert.waitFor()
    expect(await text(alert)).toContain(await new Api(lonely.url, key).refusal('GET', '/api/v1/whoami'))
    road.mend()
    await eventually(async () => (await new Api(lonely.url, key).ask('GET', '/api/v1/whoami')).status).toBe(200)
    await alert.getByRole('button', { name: 'Try again' }).click()
    await page.getByRole('button', { name: 'Log in' }).click()
    await heading(page, 'Overview').waitFor()
    await page.close()
    await lonely.stop()
    await road.close()
  })

  for (const look of [
    { theme: 'light', size: LAPTOP },
    { theme: 'dark', size: PHONE },
  ] as const) {
    test(`has nothing that axe complains about, ${look.theme}`, async () => {
      const own = await context(look)
      const page = await own.newPage()
      await load(page, server.url)
      await page.getByLabel('Token or API key').fill('nonsense')
      await page.getByRole('button', { name: 'Log in' }).click()
      await page.locator('[aria-invalid=true]').waitFor()
      await picture(page, `login-${look.theme}`)
      expect(await violations(page)).toEqual([])
      await own.close()
    })
  }

  test('ends with the logout', async ({ page }) => {
    await login(page, token({ role: 'admin' }), ['queues'])
    await heading(page, 'Queues').waitFor()
    await page.getByRole('button', { name: 'Log out' }).click()
    await page.getByLabel('Token or API key').waitFor()
    expect(await page.getByRole('navigation').count()).toBe(0)
    await page.reload()
    await page.getByLabel('Token or API key').waitFor()
  })

  test('comes back when a token has ended, with the reason', async ({ page }) => {
    const exp = Math.floor(Date.now() / 1000) + 6
    await login(page, token({ role: 'admin', exp }), ['queues'])
    await heading(page, 'Queues').waitFor()
    await noticed(page, () => page.getByLabel('Token or API key').count()).toBe(1)
    await said(page, await new Api(server.url, token({ role: 'admin', exp: 1 })).refusal('GET', '/api/v1/whoami'))
  })

  test('comes back when a key was revoked, with the reason', async ({ page }) => {
    const key = await keyOf('--name', 'leaked', '--role', 'admin')
    await login(page, key, ['queues'])
    await heading(page, 'Queues').waitFor()
    await command(server.settings, 'key', 'revoke', key.split('_')[1]!)
    await noticed(page, () => page.getByLabel('Token or API key').count()).toBe(1)
    await said(page, await new Api(server.url, key).refusal('GET', '/api/v1/whoami'))
  })
})

const ADDRESSES: [path: string[], query?: Record<string, string>][] = [
  [['']],
  [['queues']],
  [['messages']],
  [['push']],
  [['groups']],
  [['dead-letters']],
  [['dead-letters'], { view: 'letters' }],
  [['dead-letters'], { view: 'redrives' }],
  [['operations']],
  [['operations'], { view: 'spool' }],
  [['traces']],
  [['system']],
  [['system', 'database']],
  [['system', 'doctor']],
  [['settings']],
]

/** Opens every page until all of its requests are done. */
async function visitAll(page: Page, more: [path: string[], query?: Record<string, string>][] = []): Promise<void> {
  for (const [path, query] of [...ADDRESSES, ...more]) {
    await go(page, path, query)
    await page.locator('main h1').waitFor()
    await settled(page)
    expect(await page.getByRole('alert').count(), `${path.join('/')}: ${await page.locator('main').innerText()}`).toBe(0)
  }
}

describe.concurrent('rights', () => {
  test('of read-only: everything is seen, nothing can be changed, nothing is asked that is refused', async ({ page }) => {
    const queue = named('look')
    const [pushed] = await admin.push([{ queue, payload: 1 }])
    await admin.bury(queue, 'billing', ['failed'])
    await login(page, token({ role: 'read-only' }))
    const refused = refusals(page)
    await visitAll(page, [
      [['queues', queue]],
      [['queues', queue], { tab: 'partitions' }],
      [['queues', queue], { tab: 'groups' }],
      [['queues', queue], { tab: 'options' }],
      [['groups', 'billing'], { queue }],
      [['messages', pushed!.partition_id, pushed!.transaction_id]],
    ])
    expect(refused).toEqual([])
    expect(await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Settings' }).count()).toBe(0)

    await go(page, ['settings'])
    await said(page, "Only admins can see a broker's settings.")
    await go(page, ['queues'])
    await heading(page, 'Queues').waitFor()
    expect(await page.getByRole('button', { name: 'Create a queue' }).count()).toBe(0)
    await go(page, ['queues', queue], { tab: 'options' })
    await said(page, 'Your role does not allow changing this queue.')
    expect(await page.getByRole('form', { name: `Options of ${queue}` }).locator('input:not(:disabled)').count()).toBe(0)
    expect(await page.getByRole('button', { name: 'Save changes' }).count()).toBe(0)
    expect(await page.getByRole('link', { name: 'Danger zone' }).count()).toBe(0)
    expect(await page.getByRole('link', { name: 'Push a message' }).count()).toBe(0)
    await go(page, ['groups', 'billing'], { queue })
    await rows(page, 'Partitions').first().waitFor()
    for (const name of ['Move…', 'Delete…', /^Move in partition/]) expect(await page.locator('main').getByRole('button', { name }).count()).toBe(0)
    await go(page, ['messages', pushed!.partition_id, pushed!.transaction_id])
    await page.locator('pre[aria-label="Payload as text"]').waitFor()
    for (const name of ['Delete', 'Dead-letter', 'Replay']) expect(await page.getByRole('button', { name }).count()).toBe(0)
    expect(await page.getByRole('link', { name: 'Push a copy' }).count()).toBe(0)
    await go(page, ['dead-letters'], { queue })
    await said(page, '1 dead letter')
    for (const name of ['Redrive all…', 'Purge all…']) expect(await page.getByRole('button', { name }).isDisabled()).toBe(true)
    await go(page, ['operations'], { view: 'spool' })
    await said(page, 'These switches require admin rights on all queues.')
    await go(page, ['push'], { queue })
    await said(page, `You do not have push rights on ${queue}.`)
    expect(await page.getByRole('button', { name: 'Push', exact: true }).isDisabled()).toBe(true)
  })

  test('of read-write: what an admin may alone is not offered', async ({ page }) => {
    const queue = named('work')
    await admin.bury(queue, 'billing', ['failed'])
    await admin.pushMany(queue, 1)
    await login(page, token({ role: 'read-write' }))
    const refused = refusals(page)
    await visitAll(page, [[['queues', queue]], [['groups', 'billing'], { queue }]])
    expect(refused).toEqual([])
    await go(page, ['queues', queue])
    await heading(page, queue).waitFor()
    expect(await page.getByRole('link', { name: 'Danger zone' }).count()).toBe(0)
    await page.getByRole('link', { name: 'Push a message' }).waitFor()
    await go(page, ['groups', 'billing'], { queue })
    await page.getByRole('button', { name: 'Move…' }).waitFor()
    expect(await page.getByRole('button', { name: 'Delete…' }).count()).toBe(0)
    await go(page, ['dead-letters'], { queue })
    await said(page, '1 dead letter')
    expect(await page.getByRole('button', { name: 'Redrive all…' }).isDisabled()).toBe(false)
    expect(await page.getByRole('button', { name: /^Purge failed/ }).isDisabled()).toBe(true)
  })

  test('of some queues: these are seen, others are not there', async ({ page }) => {
    const word = named('team')
    const [mine, theirs] = [`${word}.mine`, named('theirs')]
    const [pushed] = await admin.push([{ queue: mine, payload: 1 }, { queue: theirs, payload: 2 }])
    await admin.bury(mine, 'billing', ['failed'])
    const grants = [{ queues: [`${word}.*`], rights: ['push', 'pop'] }]
    await login(page, token({ role: 'read-write', queen: grants }))
    await said(page, 'read-write, some queues')
    const refused = refusals(page)
    const asked: string[] = []
    page.on('request', (request) => asked.push(new URL(request.url()).pathname))
    await visitAll(page, [
      [['queues', mine]],
      [['queues', mine], { tab: 'partitions' }],
      [['queues', mine], { tab: 'options' }],
      [['messages'], { queue: mine }],
      [['dead-letters'], { queue: mine }],
      [['operations'], { queue: mine }],
      [['messages', pushed!.partition_id, pushed!.transaction_id]],
    ])
    expect(refused).toEqual([])

    await go(page, [''])
    await eventually(async () => (await rows(page, 'Your queues').locator('a').allInnerTexts())).toEqual([mine])
    await go(page, ['queues'])
    await eventually(async () => (await rows(page, 'Queues').locator('a').allInnerTexts())).toEqual([mine])
    asked.length = 0
    await go(page, ['messages'])
    await said(page, 'Choose a queue')
    expect(asked).not.toContain('/api/v1/messages')
    await page.getByLabel('Queue').fill(mine)
    await page.getByLabel('Queue').press('Enter')
    await eventually(() => rows(page, 'Messages').count()).toBeGreaterThan(0)
    await go(page, ['push'], { queue: theirs })
    await said(page, `You do not have push rights on ${theirs}.`)
    expect(await page.getByRole('button', { name: 'Push', exact: true }).isDisabled()).toBe(true)
    await page.getByLabel('Queue').fill(mine)
    await page.getByRole('button', { name: 'Push', exact: true }).click()
    await toast(page, 'Stored as').waitFor()
    await go(page, ['queues', mine], { tab: 'options' })
    await said(page, 'Your role does not allow changing this queue.')
    await go(page, ['groups'])
    await said(page, 'Open a queue to see who reads it')
    await go(page, ['queues', theirs])
    await page.getByRole('alert').waitFor()
    expect(await text(page.getByRole('alert').first())).toContain(
      await new Api(server.url, token({ role: 'read-write', queen: grants })).refusal('GET', `/api/v1/status/queues/${theirs}`),
    )
    expect(address(page).path).toEqual(['queues', theirs])
  })
})

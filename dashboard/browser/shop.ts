// A shop with some hours of history, for screenshots and tests that need a bit of everything: orders arrive, billing and shipping
// keep up, e-mails are behind, and some payments are dead letters.

import { Api, type Pushed } from './api.ts'
import type { Broker } from './broker.ts'
import { broker, database, sql, travel } from './brokers.ts'

export interface Shop {
  server: Broker
  api: Api
  /** One of its messages, traced from its push. */
  order: Pushed
  /** Orders and acknowledgements continue until it is called. */
  open(): () => Promise<void>
  /** Fills the history up to the last complete minute. */
  remember(): Promise<void>
  close(): Promise<void>
}

const CUSTOMERS = ['amsterdam', 'berlin', 'lisbon', 'madrid', 'milan', 'oslo', 'paris', 'prague', 'rome', 'vienna', 'warsaw', 'zurich']
const ORDER = '0b9f7c3e-5d0a-4c57-9e4e-6f1d3c2b1a00'

const partition = (n: number) => CUSTOMERS[n % CUSTOMERS.length]!

function order(n: number) {
  const total = 10 + ((n * 37) % 400) + 0.95
  return { order: 1000 + n, customer: partition(n), total, currency: 'EUR', items: [{ sku: `A-${100 + (n % 40)}`, quantity: 1 + (n % 3) }] }
}

export async function shop(): Promise<Shop> {
  const place = await database()
  const server = await broker(place, { QUEEN_DOCTOR_SECONDS: '2' })
  const api = new Api(server.url)
  const push = (queue: string, from: number, count: number, payload: (n: number) => unknown = order) =>
    api.push(Array.from({ length: count }, (_, at) => ({ queue, partition: partition(from + at), payload: payload(from + at) })))

  await travel(place, '3 hours')
  for (const [queue, options] of Object.entries({
    'shop.orders': { leaseTime: 120, retentionEnabled: true, completedRetentionSeconds: 604_800 },
    'shop.billing': { leaseTime: 60, retryLimit: 5 },
    'shop.shipping': { leaseTime: 300 },
    'shop.emails': { delayedProcessing: 0, retryLimit: 1, maxWaitTimeSeconds: 86_400 },
    'shop.search-index': { windowBuffer: 0 },
    'warehouse.stock': { dedupWindowSeconds: 7200 },
    'warehouse.returns': {},
  })) {
    await api.post('/api/v1/configure', { queue, options })
  }
  await push('shop.orders', 0, 400)
  await api.consume('shop.orders', 400, 'billing')
  await api.consume('shop.orders', 400, 'shipping')
  await push('shop.billing', 0, 320)
  await push('warehouse.stock', 0, 150)
  await api.consume('warehouse.stock', 150, 'inventory')

  await travel(place, '95 minutes')
  await push('shop.shipping', 0, 260)
  await api.consume('shop.shipping', 230, 'couriers')
  await given(api, 'shop.billing', 'payments', [
    ...several(26, (n) => `card "${4000 + n * 37}" was declined by the bank`),
    ...several(11, (n) => `no such customer ${7000 + n * 13}`),
    ...several(7, (n) => `timeout after ${3000 + n * 211} ms while calling https://bank.example/charge`),
    ...several(3, () => 'currency "XBT" is not supported'),
    null,
  ])

  await travel(place, '22 minutes')
  await push('shop.emails', 0, 540, (n) => ({ to: `customer-${n}@shop.example`, template: n % 2 === 0 ? 'order-confirmed' : 'parcel-sent', order: 1000 + n }))
  await api.consume('shop.emails', 120, 'mailer')
  await given(api, 'shop.emails', 'mailer-vip', [
    ...several(9, (n) => `550 mailbox customer-${n * 17}@shop.example unavailable`),
    ...several(4, (n) => `template "newsletter-${n}" is missing a field`),
  ])
  await push('warehouse.returns', 0, 14, (n) => ({ order: 900 + n, reason: 'too small' }))

  await travel(place, '4 minutes')
  await push('shop.orders', 400, 220)
  await api.consume('shop.orders', 220, 'billing')
  await api.consume('shop.orders', 180, 'shipping')
  await push('shop.search-index', 0, 90)
  await api.consume('shop.search-index', 90, 'indexer')

  await travel(place, '40 seconds')
  const [followed] = await api.push([
    { queue: 'shop.orders', partition: 'vienna', payload: order(1042), transactionId: 'order-2042', traceId: ORDER },
  ])
  await follow(api, followed!)
  await travel(place, '0 seconds')
  // Currently leased.
  await api.pop('shop.emails', { group: 'mailer', batch: 40, partitions: 3, leaseSeconds: 600 })
  await api.pop('shop.shipping', { group: 'couriers', batch: 10, partitions: 2, leaseSeconds: 300 })
  await push('shop.orders', 620, 30)
  await api.pop('shop.orders', { group: 'shipping', batch: 12, partitions: 4, leaseSeconds: 120 })
  await api.post('/api/v1/dlq/redrive', { queue: 'shop.emails', error: 'template', perSecond: 100 })

  return {
    server,
    api,
    order: followed!,
    open: () => trade(api),
    remember: () => remember(place),
    close: () => server.stop(),
  }
}

function several(count: number, text: (n: number) => string): string[] {
  return Array.from({ length: count }, (_, n) => text(n))
}

/** Dead letters of a group that reads nothing else. */
async function given(api: Api, queue: string, group: string, errors: (string | null)[]): Promise<void> {
  await api.post(`/api/v1/consumer-groups/${group}/queues/${queue}/seek`, { toEnd: true, create: true })
  await api.bury(queue, group, errors)
}

/** The events of one order, noted by its consumers. */
async function follow(api: Api, pushed: Pushed): Promise<void> {
  const { partition_id: partitionId, transaction_id: transactionId } = pushed
  const note = (consumerGroup: string, eventType: string, data: object) =>
    api.post('/api/v1/traces', { partitionId, transactionId, consumerGroup, eventType, data, traceNames: [transactionId, 'checkout'] })
  await note('billing', 'info', { step: 'charged', amount: 44.95 })
  await note('shipping', 'info', { step: 'picked', shelf: 'C-12' })
  await note('shipping', 'error', { step: 'label', why: 'printer out of paper' })
  await note('shipping', 'info', { step: 'label', attempt: 2 })
}

function trade(api: Api): () => Promise<void> {
  let going = true
  let n = 2000
  const run = async () => {
    while (going) {
      n += 12
      await api.push(Array.from({ length: 12 }, (_, at) => ({ queue: 'shop.orders', partition: partition(n + at), payload: order(n + at) })))
      const taken = await api.pop('shop.orders', { group: 'billing', batch: 40, partitions: 12 })
      if (taken.length > 0) await api.ack(taken, 'billing')
      await new Promise((resolve) => setTimeout(resolve, 400))
    }
  }
  const ended = run()
  return async () => {
    going = false
    await ended
  }
}

/** The last hour as a broker would have recorded it: a shop before lunch, with a bad quarter of an hour. */
async function remember(place: string): Promise<void> {
  await sql(
    place,
    `create function pg_temp.steady(value double precision) returns jsonb language sql
       return jsonb_build_object('avg', value, 'min', value, 'max', value, 'last', value);
     with minutes as (
       select date_trunc('minute', now()) - make_interval(mins => m) as minute, m,
              1500 + 420 * sin(m / 9.0) + 160 * sin(m / 2.3) as pushed,
              case when m between 24 and 36 then 6.0 else 1.0 end as trouble
       from generate_series(1, 65) m),
     own as (select * from queen.brokers order by started_at desc limit 1),
     brokers as (
       insert into queen.broker_minutes as b
         (minute, broker, push_requests, push_messages, pop_requests, pop_messages, pop_empty, ack_requests, ack_success,
          ack_failed, dead_letters, lag_us, lag_count, lag_us_max, samples, free_slots, free_slots_min, waiting, waiting_max,
          db_connections, flights, port, hostname, worker_id, metrics)
       select t.minute, o.id, t.pushed / 12, t.pushed, t.pushed / 9, t.pushed * 1.02, 40, t.pushed / 9, t.pushed * 1.01,
              case when t.trouble > 1 then 9 else (t.m % 7 = 0)::int end, case when t.trouble > 1 then 3 else 0 end,
              (t.pushed * 21000 * t.trouble)::bigint, t.pushed, (180000 * t.trouble * (1 + (t.m % 5) / 4.0))::bigint,
              60, 60 * (18 - 1.4 * t.trouble), 9, 60 * 0.3 * (t.trouble - 1), 4, 20, t.pushed / 6, o.port, o.hostname, o.worker_id,
              jsonb_build_object(
                'cpu.user_us', pg_temp.steady(900 * t.trouble + 60 * sin(t.m / 3.0)),
                'cpu.system_us', pg_temp.steady(300),
                'memory.rss_bytes', pg_temp.steady(96000000 + 400000 * (65 - t.m)),
                'database.pool_active', pg_temp.steady(1.4 * t.trouble),
                'database.pool_idle', pg_temp.steady(18))
       from minutes t cross join own o
       on conflict (minute, broker) do update
       set push_messages = excluded.push_messages, pop_messages = excluded.pop_messages, ack_success = excluded.ack_success,
           lag_us = excluded.lag_us, lag_count = excluded.lag_count, lag_us_max = excluded.lag_us_max,
           ack_failed = excluded.ack_failed, dead_letters = excluded.dead_letters)
     insert into queen.queue_minutes as q
       (minute, broker, queue_name, push_requests, push_messages, pop_requests, pop_messages, pop_empty, ack_requests,
        ack_success, ack_failed, lag_us, lag_count, lag_us_max, parked)
     select t.minute, o.id, w.name, t.pushed * w.share / 10, t.pushed * w.share, t.pushed * w.share / 8, t.pushed * w.share, 3,
            t.pushed * w.share / 8, t.pushed * w.share, (t.m % 9 = 0)::int, (t.pushed * w.share * 21000 * t.trouble * w.lag)::bigint,
            t.pushed * w.share, (180000 * t.trouble * w.lag)::bigint, 4
     from minutes t cross join own o
     cross join (values ('shop.orders', 0.42, 1.0), ('shop.billing', 0.2, 2.0), ('shop.shipping', 0.14, 3.0),
                        ('shop.emails', 0.12, 40.0), ('shop.search-index', 0.07, 1.0), ('warehouse.stock', 0.04, 1.5),
                        ('warehouse.returns', 0.01, 1.0)) w (name, share, lag)
     on conflict (minute, queue_name, broker) do update
     set push_messages = excluded.push_messages, pop_messages = excluded.pop_messages, ack_success = excluded.ack_success,
         lag_us = excluded.lag_us, lag_count = excluded.lag_count, lag_us_max = excluded.lag_us_max`,
  )
}


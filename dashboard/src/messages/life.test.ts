import { expect, it } from 'vitest'
import { buriable, deliveries, failures, groupState, moments, type LifeGroup, type MessageLife, type Trace } from './life'

const group = (more: Partial<LifeGroup> = {}): LifeGroup => ({
  consumerGroup: 'billing',
  delivered: false,
  consumed: false,
  leasedUntil: null,
  attempts: 0,
  deadLetter: null,
  ...more,
})

const life = (more: Partial<MessageLife> = {}): MessageLife => ({
  push: {
    id: 'i',
    transactionId: 't',
    partitionId: 'p',
    queue: 'orders',
    partition: 'Default',
    offset: 17,
    createdAt: '2026-11-15T11:00:00Z',
    producerSub: null,
    traceId: null,
    traceparent: null,
    tracestate: null,
    segment: null,
  },
  groups: [],
  events: [],
  ...more,
})

const event = (at: string, word: string, more: object = {}) => ({
  at,
  event: word,
  consumerGroup: 'billing',
  attempt: null,
  error: null,
  transaction: null,
  message: null,
  ...more,
})

it('everything stands in order of time', () => {
  const note: Trace = {
    id: 'n',
    event_type: 'info',
    data: { step: 'charged' },
    consumer_group: 'billing',
    worker_id: null,
    created_at: '2026-11-15T11:00:02Z',
    trace_names: [],
  }
  const told = moments(
    life({
      events: [
        event('2026-11-15T11:00:01Z', 'delivered', { attempt: 1 }),
        event('2026-11-15T11:00:03Z', 'failed', { attempt: 1, error: 'timeout' }),
        event('2026-11-15T11:00:04Z', 'delivered', { attempt: 2 }),
      ],
    }),
    [note],
  )
  expect(told.map(({ title }) => title)).toEqual([
    'Pushed',
    'Delivered',
    'Note: info',
    'Failed, will be delivered again',
    'Delivered (attempt 2)',
  ])
  expect(told[2]?.data).toEqual({ step: 'charged' })
  expect(told[3]?.text).toBe('timeout')
})

it('a dead letter is shown once, recorded or not', () => {
  const buried = group({ deadLetter: { error: 'no such customer', attempts: 4, failedAt: '2026-11-15T11:00:09Z' } })
  expect(moments(life({ groups: [buried] }), []).map(({ text }) => text)).toEqual([undefined, 'no such customer'])
  const events = [event('2026-11-15T11:00:09Z', 'dead_letter', { error: 'no such customer' })]
  expect(moments(life({ groups: [buried], events }), [])).toHaveLength(2)
})

it('a message that has left the log has no push to tell of', () => {
  const gone = life()
  gone.push.createdAt = null
  expect(moments(gone, [])).toEqual([])
})

it('the state of a group is the worst that is true', () => {
  const deadLetter = { error: null, attempts: 1, failedAt: '2026-11-15T11:00:09Z' }
  expect(groupState(group({ deadLetter, consumed: true })).word).toBe('dead letter')
  expect(groupState(group({ leasedUntil: '2026-11-15T11:05:00Z', attempts: 1 })).word).toBe('processing')
  expect(groupState(group({ consumed: true })).word).toBe('completed')
  expect(groupState(group({ attempts: 2 })).word).toBe('failed, waits')
  expect(groupState(group()).word).toBe('waiting')
})

it('deliveries are counted from what is recorded and from what must have been', () => {
  expect(deliveries(life(), group())).toBe(0)
  expect(deliveries(life(), group({ leasedUntil: '2026-11-15T11:05:00Z', attempts: 2 }))).toBe(3)
  expect(deliveries(life(), group({ consumed: true }))).toBe(1)
  const deadLetter = { error: null, attempts: 3, failedAt: '' }
  expect(deliveries(life(), group({ deadLetter, consumed: true }))).toBe(4)
  expect(failures(life(), group({ deadLetter, consumed: true }))).toBe(4)
  const events = ['1', '2', '3'].map((second) => event(`2026-11-15T11:00:0${second}Z`, 'delivered'))
  expect(deliveries(life({ events }), group({ consumed: true }))).toBe(3)
})

it('only a group that waits for the message can be spared it', () => {
  const groups = [
    group({ consumerGroup: 'done', consumed: true }),
    group({ consumerGroup: 'holds', leasedUntil: '2026-11-15T11:05:00Z' }),
    group({ consumerGroup: 'waits' }),
  ]
  expect(buriable(life({ groups }))).toEqual(['waits'])
  expect(buriable(life())).toEqual(['__QUEUE_MODE__'])
  expect(buriable(undefined)).toEqual([])
})

it('a failure that was recorded stays one after the message was completed', () => {
  const events = [event('2026-11-15T11:00:01Z', 'failed'), event('2026-11-15T11:00:02Z', 'failed', { consumerGroup: 'other' })]
  expect(failures(life({ events }), group({ consumed: true }))).toBe(1)
  expect(deliveries(life({ events }), group({ consumed: true }))).toBe(2)
  expect(failures(life(), group({ attempts: 2 }))).toBe(2)
})

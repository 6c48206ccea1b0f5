import { describe, expect, it } from 'vitest'
import type { Group } from './calls'
import { asShow, chosen, groupLabel, holder, holding, mostBehind } from './names'

const group = (name: string, queueName: string, state: string): Group => ({
  name,
  topics: [queueName],
  queueName,
  members: 1,
  partitionsWithLag: 0,
  totalLag: 0,
  maxTimeLag: 0,
  state,
  subscriptionMode: 'all',
  subscriptionTimestamp: null,
  subscriptionCreatedAt: null,
})

const GROUPS = [
  group('billing', 'orders', 'Stable'),
  group('billing', 'mail', 'Lagging'),
  group('__QUEUE_MODE__', 'Orders.eu', 'Dead'),
]

describe('chosen', () => {
  const found = (search: string, show: Parameters<typeof chosen>[2] = 'all') =>
    chosen(GROUPS, search, show).map((it) => it.queueName)

  it('finds a part of the name of the group or of the queue', () => {
    expect(found('BILL')).toEqual(['orders', 'mail'])
    expect(found('orders')).toEqual(['orders', 'Orders.eu'])
  })

  it('finds queue mode under the name it is shown with', () => {
    expect(found('queue mode')).toEqual(['Orders.eu'])
    expect(groupLabel('__QUEUE_MODE__')).toBe('Queue mode')
  })

  it('narrows to those that are behind, or never read', () => {
    expect(found('', 'behind')).toEqual(['mail'])
    expect(found('', 'never')).toEqual(['Orders.eu'])
    expect(asShow('else')).toBe('all')
  })
})

it('tells which is furthest behind, if there is one', () => {
  const lag = (name: string, totalLag: number) => ({ ...group(name, 'orders', 'Stable'), totalLag })
  expect(mostBehind([lag('a', 1), lag('b', 3), lag('c', 3)])?.name).toBe('b')
  expect(mostBehind([])).toBeUndefined()
})

describe('holder', () => {
  it('is a name, or else an address, and unknown at another broker', () => {
    const named = { workerId: 'w', heldBy: { name: 'billing', address: '10.0.0.7' } }
    const nameless = { workerId: 'w', heldBy: { name: null, address: '10.0.0.7' } }
    const elsewhere = { workerId: 'w', heldBy: null }
    expect([named, nameless, elsewhere].map(holder)).toEqual(['billing', '10.0.0.7', 'unknown'])
    expect(holding(named)).toBe('Popped by billing from 10.0.0.7; lease w')
    expect(holding(nameless)).toBe('Popped from 10.0.0.7; lease w')
    expect(holding(elsewhere)).toContain('another broker')
  })
})

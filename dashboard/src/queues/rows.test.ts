import { describe, expect, it } from 'vitest'
import type { Schema } from '../api/client'
import { asShow, chosen, longestWait, queueRows } from './rows'

function queue(name: string, pending = 0, processing = 0): Schema<'Queue'> {
  return {
    id: name,
    name,
    namespace: '',
    task: '',
    createdAt: '2026-01-01T00:00:00Z',
    partitions: 1,
    messages: { total: 10, pending, processing },
    segments: 0,
    retainedBytes: 0,
  }
}

function group(name: string, queueName: string, totalLag: number, maxTimeLag: number): Schema<'ConsumerGroup'> {
  return {
    name,
    topics: [queueName],
    queueName,
    members: 1,
    partitionsWithLag: 1,
    totalLag,
    maxTimeLag,
    state: 'Stable',
    subscriptionMode: 'all',
    subscriptionTimestamp: null,
    subscriptionCreatedAt: null,
  }
}

const busy = (name: string, lagSeconds: number | null): Schema<'BusyPartition'> => ({
  queue: name,
  partition: 'p',
  id: 'p',
  pending: 1,
  processing: 0,
  lagSeconds,
})

describe('queueRows', () => {
  it('tells how long the slowest group lets wait', () => {
    const groups = [group('a', 'orders', 1, 5), group('b', 'orders', 2, 50), group('c', 'orders', 0, 500)]
    const [row] = queueRows([queue('orders', 1, 2)], groups, [busy('orders', 9000)], undefined)
    expect(row).toMatchObject({ backlog: 3, groups: 3, waiting: 50 })
  })

  it('uses the partitions if there are no groups', () => {
    const [row] = queueRows([queue('orders', 1)], [], [busy('orders', 7), busy('orders', 9), busy('mail', 99)], undefined)
    expect(row).toMatchObject({ groups: 0, waiting: 9 })
  })

  it('shows no wait where nothing is left to read', () => {
    const [row] = queueRows([queue('orders')], [group('a', 'orders', 1, 5)], undefined, undefined)
    expect(row?.waiting).toBeNull()
  })

  it('shows nothing for what was not measured yet', () => {
    const [row] = queueRows([{ ...queue('orders', 5), partitions: 0 }], [group('a', 'orders', 5, 0)], undefined, undefined)
    expect(row).toMatchObject({ partitions: null, waiting: null })
    const [none] = queueRows([{ ...queue('new'), partitions: 0, messages: { total: 0, pending: 0, processing: 0 } }], [], undefined, undefined)
    expect(none?.partitions).toBe(0)
  })

  it('does not claim that there are no groups without access to them', () => {
    const [row] = queueRows([queue('orders', 1)], undefined, undefined, undefined)
    expect(row).toMatchObject({ groups: null, waiting: null, pushes: null, lagSeconds: null })
  })
})

describe('chosen', () => {
  const rows = queueRows(
    [queue('Orders', 1), queue('mail', 2), queue('done')],
    [group('a', 'Orders', 1, 301)],
    undefined,
    undefined,
  )
  const names = (search: string, show: Parameters<typeof chosen>[2]) => chosen(rows, search, show).map((row) => row.name)

  it('finds a part of the name in any case', () => {
    expect(names(' ORD ', 'all')).toEqual(['Orders'])
    expect(names('', 'all')).toEqual(['Orders', 'mail', 'done'])
  })

  it('narrows to where it hurts', () => {
    expect(names('', 'backlog')).toEqual(['Orders', 'mail'])
    expect(names('', 'waiting')).toEqual(['Orders'])
    expect(names('', 'unread')).toEqual(['mail'])
  })

  it('takes what an address says, and nothing else', () => {
    expect([asShow('unread'), asShow('nonsense'), asShow(null)]).toEqual(['unread', 'all', 'all'])
  })
})

describe('longestWait', () => {
  it('is that of the slowest group, or of the partitions without groups', () => {
    expect(longestWait([group('a', 'orders', 1, 5), group('b', 'orders', 0, 50)], [busy('orders', 99)])).toBe(5)
    expect(longestWait([], [busy('orders', 7), busy('orders', null), busy('orders', 9)])).toBe(9)
    expect(longestWait([], undefined)).toBeNull()
  })
})

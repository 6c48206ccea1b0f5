import { describe as group, expect, it } from 'vitest'
import { asked, describe, isFiltered, readFilter, shapeQuery } from './filter'
import { progress, readPace, type Redrive } from './redrive'

const now = new Date('2026-11-15T12:00:00Z')
const read = (query: string) => readFilter(new URLSearchParams(query), now)

group('the filter', () => {
  it('is what the address says', () => {
    expect(read('')).toEqual({})
    expect(read('queue=orders&consumerGroup=billing&error=time&partition=&when=1h&x=1')).toEqual({
      queue: 'orders',
      consumerGroup: 'billing',
      error: 'time',
      from: '2026-11-15T11:00:00.000Z',
    })
  })

  it('letters without a text have a shape', () => {
    expect(read('untold=true')).toEqual({ shape: '' })
    expect(describe(read('untold=true'))).toEqual(['no error text'])
    expect(shapeQuery('')).toEqual({ shape: '', untold: true })
    expect(shapeQuery(undefined)).toEqual({ shape: undefined, untold: false })
    expect(asked('/api/v1/dlq', { shape: '' })).toBe('/api/v1/dlq?shape=')
    expect(asked('/api/v1/dlq', { queue: 'a b', shape: '' }, { limit: 1 })).toBe('/api/v1/dlq?queue=a+b&limit=1&shape=')
    expect(asked('/api/v1/dlq', { shape: 'no #' })).toBe('/api/v1/dlq?shape=no+%23')
    expect(read('shape=no+such+customer+%23').shape).toBe('no such customer #')
  })

  it('knows whether there is one', () => {
    expect(isFiltered(new URLSearchParams('view=letters'))).toBe(false)
    expect(isFiltered(new URLSearchParams('untold=true'))).toBe(true)
  })
})

group('a redrive', () => {
  const redrive = (more: Partial<Redrive>): Redrive => ({
    id: 'r',
    queue: 'orders',
    targetQueue: null,
    partition: null,
    consumerGroup: null,
    from: null,
    to: '',
    errorFilter: null,
    shape: null,
    perSecond: 50,
    status: 'running',
    total: 1000,
    done: 0,
    failed: 0,
    rate: 0,
    createdAt: '',
    startedAt: null,
    finishedAt: null,
    lastError: null,
    ...more,
  })

  it('takes as long as its pace, or as it really has', () => {
    expect(progress(redrive({}))).toEqual({ share: 0, left: 1000, eta: 20 })
    expect(progress(redrive({ done: 490, failed: 10, rate: 25 }))).toEqual({ share: 0.5, left: 500, eta: 20 })
  })

  it('has an end', () => {
    expect(progress(redrive({ status: 'completed', total: 0 }))).toEqual({ share: 1, left: 0, eta: null })
    expect(progress(redrive({ status: 'cancelled', done: 250 })).share).toBe(0.25)
    expect(progress(redrive({ done: 2000 })).share).toBe(1)
  })

  it('has a pace the server takes', () => {
    expect(readPace('100')).toBe(100)
    expect(readPace(10_000)).toBe(10_000)
    for (const wrong of ['0', '', '1.5', '10001', 'x', null, undefined, -1]) expect(readPace(wrong)).toBeNull()
  })
})

import { describe, expect, it } from 'vitest'
import { bounds, chosen, fromLocal, toLocal } from './when'

const now = new Date('2026-11-15T12:00:00Z')
const ask = (query: string, standard = '1h', everything?: string) =>
  bounds(new URLSearchParams(query), standard, now, everything)

describe('bounds', () => {
  it('counts back from now', () => {
    expect(ask('when=15m')).toEqual({ from: '2026-11-15T11:45:00.000Z' })
    expect(ask('')).toEqual({ from: '2026-11-15T11:00:00.000Z' })
    expect(ask('when=nonsense')).toEqual({ from: '2026-11-15T11:00:00.000Z' })
  })

  it('has a word for no limit at all', () => {
    expect(ask('when=all')).toEqual({})
    expect(ask('when=all', '1h', '1970-01-01T00:00:00Z')).toEqual({ from: '1970-01-01T00:00:00Z' })
  })

  it('takes times as they are, and drops what is none', () => {
    expect(ask('from=2026-11-01T00:00:00Z&when=15m')).toEqual({ from: '2026-11-01T00:00:00Z' })
    expect(ask('to=2026-11-01T00:00:00Z', 'all', '1970-01-01T00:00:00Z')).toEqual({
      from: '1970-01-01T00:00:00Z',
      to: '2026-11-01T00:00:00Z',
    })
    expect(ask('from=yesterday')).toEqual({ from: '2026-11-15T11:00:00.000Z' })
  })
})

it('the choice is what the address says', () => {
  expect(chosen(new URLSearchParams('when=24h'), '1h')).toBe('24h')
  expect(chosen(new URLSearchParams(''), '1h')).toBe('1h')
  expect(chosen(new URLSearchParams('when=x'), 'all')).toBe('all')
  expect(chosen(new URLSearchParams('to=2026-11-01T00:00:00Z'), '1h')).toBe('custom')
})

it('a time goes through a field of the viewer and comes back', () => {
  const iso = '2026-11-15T11:04:39.000Z'
  expect(fromLocal(toLocal(iso))).toBe(iso)
  expect(toLocal(null)).toBe('')
  expect(toLocal('x')).toBe('')
  expect(fromLocal('')).toBeUndefined()
})

import { describe, expect, it } from 'vitest'
import { ago, bytes, count, duration, exact, exactTime, percent, rate } from './format'

describe('count', () => {
  it.each([
    [0, '0'],
    [7, '7'],
    [0.04, '0.04'],
    [0.004, '< 0.01'],
    [1.26, '1.3'],
    [99.96, '100'],
    [999, '999'],
    [999.7, '1,000'],
    [1000, '1,000'],
    [1965, '1,965'],
    [-12_345, '-12,345'],
    [99_999, '99,999'],
    [99_999.4, '99,999'],
    [99_999.6, '100k'],
    [100_000, '100k'],
    [123_456, '123.5k'],
    [999_499, '999.5k'],
    [999_600, '999.6k'],
    [999_960, '1M'],
    [1_250_000, '1.3M'],
    [3e9, '3G'],
  ])('%d is %s', (n, text) => expect(count(n)).toBe(text))

  it.each([null, undefined, Number.NaN, Number.POSITIVE_INFINITY])('%s is a dash', (n) => {
    for (const form of [count, exact, rate, bytes, duration, percent]) expect(form(n)).toBe('–')
  })
})

it('exact has all digits', () => expect(exact(12_345_678)).toBe('12,345,678'))
it('rate is by second', () => expect(rate(1234)).toBe('1,234/s'))

describe('bytes', () => {
  it.each([
    [0, '0 B'],
    [1023, '1,023 B'],
    [1024, '1 KiB'],
    [1536, '1.5 KiB'],
    [150 * 1024, '150 KiB'],
    [1024 ** 3 * 2.25, '2.3 GiB'],
    [1024 ** 2 - 1, '1 MiB'],
  ])('%d is %s', (n, text) => expect(bytes(n)).toBe(text))
})

describe('duration', () => {
  it.each([
    [0, '0 s'],
    [0.000_25, '250 µs'],
    [0.0042, '4.2 ms'],
    [0.12, '120 ms'],
    [0.9996, '1 s'],
    [3.21, '3.2 s'],
    [42.4, '42 s'],
    [59.7, '1 min'],
    [180, '3 min'],
    [200, '3 min 20 s'],
    [1000, '16 min'],
    [3599.9, '1 h'],
    [7500, '2 h 5 min'],
    [90_000, '1 d 1 h'],
    [86_400 * 40, '40 d'],
    [-30, '-30 s'],
  ])('%d is %s', (n, text) => expect(duration(n)).toBe(text))
})

describe('percent', () => {
  it.each([
    [0, '0 %'],
    [0.000_01, '< 0.01 %'],
    [0.0042, '0.42 %'],
    [0.042, '4.2 %'],
    [0.5, '50 %'],
    [0.9997, '> 99.9 %'],
    [0.996, '99.6 %'],
    [1, '100 %'],
    [1.5, '150 %'],
  ])('%d is %s', (n, text) => expect(percent(n)).toBe(text))
})

describe('ago', () => {
  const now = Date.parse('2026-01-01T12:00:00Z')
  it.each([
    [1, 'just now'],
    [-2, 'just now'],
    [42, '42 s ago'],
    [200, '3 min ago'],
    [3 * 3600, '3 h ago'],
    [86_400 * 3, '3 d ago'],
    [-300, 'in 5 min'],
  ])('%d seconds before is %s', (seconds, text) => {
    expect(ago(now - seconds * 1000, now)).toBe(text)
    expect(ago(new Date(now - seconds * 1000).toISOString(), now)).toBe(text)
  })

  it('has no idea of what is no time', () => {
    expect(ago(null, now)).toBe('–')
    expect(ago('yesterday', now)).toBe('–')
    expect(exactTime('yesterday')).toBe('–')
  })
})

it('the exact time names its zone', () => {
  expect(exactTime('2026-01-02T03:04:05.678Z')).toMatch(/2026.*05\.678.*(UTC|GMT|[A-Z]{2,5})/)
})

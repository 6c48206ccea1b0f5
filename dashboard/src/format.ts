// Formats numbers and times for people. Unknown values are a dash.

export type Instant = string | number | Date

export const NOTHING = '–'

const EXACT = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })
/** From here on, single digits do not matter and would take too much room. */
const EXACT_BELOW = 100_000
const STEPS: [number, string][] = [
  [1e12, 'T'],
  [1e9, 'G'],
  [1e6, 'M'],
  [1e3, 'k'],
]

type Maybe = number | null | undefined

function known(n: Maybe): n is number {
  return typeof n === 'number' && Number.isFinite(n)
}

/** All digits up to 99,999, then 123.5k, 1.2M. Below a hundred, one decimal if there is one. */
export function count(n: Maybe): string {
  if (!known(n)) return NOTHING
  const size = Math.abs(n)
  if (Math.round(size) < EXACT_BELOW) return short(n)
  // What would round to 1000 moves to the next unit.
  const [step, unit] = STEPS.find(([step]) => size >= step * 0.99995)!
  return `${Number((n / step).toFixed(1))}${unit}`
}

function short(n: number): string {
  const size = Math.abs(n)
  if (size >= 99.95 || Number.isInteger(n)) return EXACT.format(Math.round(n))
  // A small value must not look like zero.
  if (size < 0.01) return n < 0 ? '> -0.01' : '< 0.01'
  if (size < 0.095) return String(Number(n.toFixed(2)))
  return String(Number(n.toFixed(1)))
}

export function exact(n: Maybe): string {
  return known(n) ? EXACT.format(n) : NOTHING
}

export function rate(n: Maybe): string {
  return known(n) ? `${count(n)}/s` : NOTHING
}

export function bytes(n: Maybe): string {
  if (!known(n)) return NOTHING
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB']
  let size = n
  let unit = 0
  while (Math.abs(size) >= 1023.5 && unit < units.length - 1) {
    size /= 1024
    unit += 1
  }
  const text = Math.abs(size) >= 99.95 || unit === 0 ? EXACT.format(Math.round(size)) : String(Number(size.toFixed(1)))
  return `${text} ${units[unit]}`
}

const SPANS: [number, string][] = [
  [86_400, 'd'],
  [3_600, 'h'],
  [60, 'min'],
  [1, 's'],
]

/** At most the two largest units: 120 ms, 3.2 s, 3 min, 2 h 5 min, 4 d 3 h. */
export function duration(seconds: Maybe): string {
  if (!known(seconds)) return NOTHING
  const size = Math.abs(seconds)
  const sign = seconds < 0 ? '-' : ''
  if (size === 0) return '0 s'
  if (size < 0.001) return `${sign}${Number((size * 1e6).toPrecision(2))} µs`
  if (size < 0.9995) return `${sign}${size < 0.01 ? Number((size * 1000).toFixed(1)) : Math.round(size * 1000)} ms`
  if (size < 9.95) return `${sign}${Number(size.toFixed(1))} s`
  let whole = Math.round(size)
  // Seconds do not matter beyond an hour.
  if (whole >= 3_600) whole = Math.round(whole / 60) * 60
  const at = SPANS.findIndex(([span]) => whole >= span)
  const [span, unit] = SPANS[at]!
  const first = Math.floor(whole / span)
  const next = SPANS[at + 1]
  const rest = next === undefined || first >= 10 ? 0 : Math.floor((whole % span) / next[0])
  return rest === 0 ? `${sign}${first} ${unit}` : `${sign}${first} ${unit} ${rest} ${next![1]}`
}

/** 0.5 is 50 %. */
export function percent(x: Maybe): string {
  if (!known(x)) return NOTHING
  const size = Math.abs(x * 100)
  if (size === 0) return '0 %'
  if (size < 0.01) return '< 0.01 %'
  // 99.97 % must not look like 100 %.
  const digits = size < 1 ? 2 : size < 10 || (size > 99 && size < 100) ? 1 : 0
  const text = (x * 100).toFixed(digits)
  return size < 100 && Number(text) >= 100 ? '> 99.9 %' : `${Number(text)} %`
}

export function millis(at: Instant): number {
  return at instanceof Date ? at.getTime() : typeof at === 'number' ? at : Date.parse(at)
}

/** `just now`, `3 min ago`, `in 5 min`. A number is milliseconds since 1970. */
export function ago(at: Instant | null | undefined, now: number = Date.now()): string {
  if (at === null || at === undefined) return NOTHING
  const seconds = (now - millis(at)) / 1000
  if (Number.isNaN(seconds)) return NOTHING
  const size = Math.abs(seconds)
  if (size < 5) return 'just now'
  const [span, unit] = SPANS.find(([span]) => Math.round(size) >= span)!
  const text = `${Math.floor(Math.round(size) / span)} ${unit}`
  return seconds < 0 ? `in ${text}` : `${text} ago`
}

/** With milliseconds, in the viewer's time zone, which is named. */
export function exactTime(at: Instant | null | undefined): string {
  if (at === null || at === undefined) return NOTHING
  const date = new Date(millis(at))
  if (Number.isNaN(date.getTime())) return NOTHING
  return EXACT_TIME.format(date)
}

const EXACT_TIME = new Intl.DateTimeFormat('en-GB', {
  year: 'numeric',
  month: 'short',
  day: 'numeric',
  hour: '2-digit',
  minute: '2-digit',
  second: '2-digit',
  fractionalSecondDigits: 3,
  timeZoneName: 'short',
})

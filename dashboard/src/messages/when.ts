// Time ranges of lists. In an address they are a word ("24h"), or `from` and `to` in UTC, so that a link means the same in
// every time zone.

export interface Span {
  id: string
  label: string
  seconds: number | null
}

export const SPANS: readonly Span[] = [
  { id: '15m', label: 'Last 15 minutes', seconds: 900 },
  { id: '1h', label: 'Last hour', seconds: 3600 },
  { id: '24h', label: 'Last 24 hours', seconds: 86_400 },
  { id: '7d', label: 'Last 7 days', seconds: 604_800 },
  { id: 'all', label: 'Any time', seconds: null },
]

export const CUSTOM = 'custom'

export interface Bounds {
  from?: string
  to?: string
}

/** The API parameters for an address. `everything` is the API's value for no limit. */
export function bounds(query: URLSearchParams, standard: string, now: Date, everything?: string): Bounds {
  const from = valid(query.get('from'))
  const to = valid(query.get('to'))
  if (from !== undefined || to !== undefined) {
    return strip({ from: from ?? everything, to })
  }
  const when = query.get('when')
  const span = SPANS.find(({ id }) => id === when) ?? SPANS.find(({ id }) => id === standard)
  if (span?.seconds == null) return strip({ from: everything })
  return { from: new Date(now.getTime() - span.seconds * 1000).toISOString() }
}

/** The selected choice for an address. */
export function chosen(query: URLSearchParams, standard: string): string {
  if (query.has('from') || query.has('to')) return CUSTOM
  const when = query.get('when')
  return SPANS.some(({ id }) => id === when) ? (when as string) : standard
}

/** A value for `<input type="datetime-local">`: in the viewer's zone, with seconds. */
export function toLocal(iso: string | null | undefined): string {
  const time = iso == null ? NaN : Date.parse(iso)
  if (Number.isNaN(time)) return ''
  const zone = new Date(time).getTimezoneOffset() * 60_000
  return new Date(time - zone).toISOString().slice(0, 19)
}

export function fromLocal(text: string): string | undefined {
  const time = text === '' ? NaN : new Date(text).getTime()
  return Number.isNaN(time) ? undefined : new Date(time).toISOString()
}

function valid(text: string | null): string | undefined {
  return text !== null && !Number.isNaN(Date.parse(text)) ? text : undefined
}

function strip(bounds: { from: string | undefined; to?: string | undefined }): Bounds {
  const out: Bounds = {}
  if (bounds.from !== undefined) out.from = bounds.from
  if (bounds.to !== undefined) out.to = bounds.to
  return out
}

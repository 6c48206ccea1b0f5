// The dead letter filter: one description for listing, counting, redriving and purging, so that an action applies to exactly
// what is shown.

import { withQuery, type Query } from '../api/client'
import { groupLabel } from '../groups/names'
import { bounds } from '../messages/when'

export interface Filter {
  queue?: string
  partition?: string
  consumerGroup?: string
  error?: string
  /** '' is a valid shape: letters without an error text. */
  shape?: string
  from?: string
  to?: string
}

export const FILTER_KEYS = ['queue', 'partition', 'consumerGroup', 'error'] as const

export const STANDARD_SPAN = 'all'

export function readFilter(query: URLSearchParams, now: Date): Filter {
  const filter: Filter = { ...bounds(query, STANDARD_SPAN, now) }
  for (const key of FILTER_KEYS) {
    const value = query.get(key)
    if (value !== null && value !== '') filter[key] = value
  }
  const shape = query.get('shape')
  if (shape !== null && shape !== '') filter.shape = shape
  if (query.get(UNTOLD) === 'true') filter.shape = ''
  return filter
}

/** An address omits empty values, so letters without a text have a special word there. */
const UNTOLD = 'untold'

/** The query value for a shape; `undefined` removes it. */
export function shapeQuery(shape: string | undefined): { shape: string | undefined; untold: boolean } {
  return { shape, [UNTOLD]: shape === '' }
}

export function isFiltered(query: URLSearchParams): boolean {
  return ['shape', UNTOLD, 'from', 'to', 'when', ...FILTER_KEYS].some((key) => query.has(key))
}

/** An API path with the filter as its query. */
export function asked(path: string, filter: Filter, more: Query = {}): string {
  const { shape, ...rest } = filter
  const address = withQuery(path, { ...rest, shape, ...more })
  if (shape !== '') return address
  return `${address}${address.includes('?') ? '&' : '?'}shape=`
}

/** In words, for confirmation dialogs. */
export function describe(filter: Filter): string[] {
  const parts: string[] = []
  if (filter.partition !== undefined) parts.push(`partition ${filter.partition}`)
  if (filter.consumerGroup !== undefined) parts.push(`group ${groupLabel(filter.consumerGroup)}`)
  if (filter.shape !== undefined) parts.push(filter.shape === '' ? 'no error text' : `error like “${filter.shape}”`)
  if (filter.error !== undefined) parts.push(`error containing “${filter.error}”`)
  if (filter.from !== undefined) parts.push(`failed since ${new Date(filter.from).toLocaleString()}`)
  if (filter.to !== undefined) parts.push(`failed until ${new Date(filter.to).toLocaleString()}`)
  return parts
}

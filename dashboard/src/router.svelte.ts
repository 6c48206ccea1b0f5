// The current address: `#/queues/orders?x=1`. In the hash, so that the server has one page and any proxy path works.

import { address, encodePath, parse, type QueryValues } from './address'

export type { QueryValues } from './address'

class Route {
  /** Decoded segments; `['']` is the first page, `['queues', '']` the unnamed queue. */
  path = $state.raw<string[]>([''])
  query = $state.raw(new URLSearchParams())

  read(): void {
    const { path, query } = parse(location.hash)
    this.path = path
    this.query = query
  }
}

export const route = new Route()

if (typeof window !== 'undefined') {
  route.read()
  window.addEventListener('hashchange', () => route.read())
}

/** An address for a link: href('queues', name), href('messages', { queue: name }). */
export function href(...segments: (string | number | QueryValues)[]): string {
  const last = segments.at(-1)
  const query = typeof last === 'object' ? last : {}
  const names = segments.filter((segment) => typeof segment !== 'object')
  return `#${address(encodePath(names), query)}`
}

/** `path`: segments, or a path as in an address (`/queues`). */
export function go(path: string | (string | number)[], query: QueryValues = {}): void {
  location.hash = address(typeof path === 'string' ? path : encodePath(path), query)
}

/** Changes some query values and keeps the rest, without a history entry. */
export function setQuery(values: QueryValues): void {
  const query: QueryValues = { ...Object.fromEntries(route.query), ...values }
  history.replaceState(history.state, '', `#${address(encodePath(route.path), query)}`)
  route.read()
}

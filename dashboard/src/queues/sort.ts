// The sort order in an address: `backlog`, or `-backlog` for descending.

import type { Sort } from '../components/table'

export function readSort(text: string | null, standard: Sort): Sort {
  if (text === null || text === '' || text === '-') return standard
  return text.startsWith('-') ? { key: text.slice(1), down: true } : { key: text, down: false }
}

/** Undefined for the default order, which is omitted. */
export function sortText(sort: Sort, standard: Sort): string | undefined {
  if (sort.key === standard.key && sort.down === standard.down) return undefined
  return `${sort.down ? '-' : ''}${sort.key}`
}

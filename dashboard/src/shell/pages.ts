// Entries of the navigation, and the rights they need.

import { href } from '../router.svelte'
import type { Right } from '../rights'

export interface Entry {
  /** First segment of the address. */
  id: string
  label: string
  /** The right, on all queues, that the page needs; `some`: on any queue. */
  needs: Right | 'some'
}

/** In groups, separated by a gap. */
export const ENTRIES: Entry[][] = [
  [{ id: '', label: 'Overview', needs: 'some' }],
  [
    { id: 'queues', label: 'Queues', needs: 'some' },
    { id: 'messages', label: 'Messages', needs: 'some' },
    { id: 'push', label: 'Push', needs: 'some' },
    { id: 'groups', label: 'Consumer groups', needs: 'read' },
    { id: 'dead-letters', label: 'Dead letters', needs: 'some' },
  ],
  [
    { id: 'operations', label: 'Operations', needs: 'read' },
    { id: 'traces', label: 'Traces', needs: 'read' },
  ],
  [
    { id: 'system', label: 'System', needs: 'read' },
    { id: 'settings', label: 'Settings', needs: 'admin' },
  ],
]

/** In the bottom bar of a phone; the rest is one tap away. */
export const FIRST = ['', 'queues', 'messages', 'dead-letters']

export function link(entry: Entry): string {
  return entry.id === '' ? '#/' : href(entry.id)
}

// What the navigation lists, and for whom.

import { href } from '../router.svelte'
import type { Right } from '../rights'

export interface Entry {
  /** The first segment of its address. */
  id: string
  label: string
  /** Which right, over all queues, it makes sense with; `some`: over any of them. */
  needs: Right | 'some'
}

/** In groups, with a little space between them. */
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

/** Always within reach of a thumb; the others are behind one more press. */
export const FIRST = ['', 'queues', 'messages', 'dead-letters']

export function link(entry: Entry): string {
  return entry.id === '' ? '#/' : href(entry.id)
}

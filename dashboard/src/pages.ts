// The pages: the address of each, how the navigation shows it, and to whom. A page is loaded when it is first
// opened. It handles the addresses below its own (`#/queues/orders`) itself.

import type { Component } from 'svelte'
import type { Right } from './rights'
import { href } from './router.svelte'

export type Load = () => Promise<{ default: Component }>

export interface Page {
  /** The first segment of its address. */
  id: string
  label: string
  /** The right that the page requires on all queues; `some`: any right on any queue. */
  needs: Right | 'some'
  load: Load
}

/** In groups, with some space between them. */
export const PAGES: Page[][] = [
  [{ id: '', label: 'Overview', needs: 'some', load: () => import('./pages/Overview.svelte') }],
  [
    { id: 'queues', label: 'Queues', needs: 'some', load: () => import('./pages/Queues.svelte') },
    { id: 'messages', label: 'Messages', needs: 'some', load: () => import('./pages/Messages.svelte') },
    { id: 'push', label: 'Push', needs: 'some', load: () => import('./pages/Push.svelte') },
    { id: 'groups', label: 'Consumer groups', needs: 'read', load: () => import('./pages/Groups.svelte') },
    { id: 'dead-letters', label: 'Dead letters', needs: 'some', load: () => import('./pages/DeadLetters.svelte') },
  ],
  [
    { id: 'operations', label: 'Operations', needs: 'read', load: () => import('./pages/Operations.svelte') },
    { id: 'traces', label: 'Traces', needs: 'read', load: () => import('./pages/Traces.svelte') },
  ],
  [
    { id: 'system', label: 'System', needs: 'read', load: () => import('./pages/System.svelte') },
    { id: 'settings', label: 'Settings', needs: 'admin', load: () => import('./pages/Settings.svelte') },
  ],
]

/** Always visible on a phone. Other pages need one more tap. */
export const FIRST = ['', 'queues', 'messages', 'dead-letters']

export const login: Load = () => import('./pages/Login.svelte')

const missing: Load = () => import('./pages/Missing.svelte')

/** `name`: the first segment of the address. */
export function pageOf(name = ''): Load {
  if (name === 'login') return login
  return PAGES.flat().find((page) => page.id === name)?.load ?? missing
}

export function link(page: Page): string {
  return page.id === '' ? '#/' : href(page.id)
}

// Which page an address shows. Each is fetched when it is first opened; what lies below it (`#/queues/orders`) it shows itself.

import type { Component } from 'svelte'

export type Load = () => Promise<{ default: Component }>

const PAGES = new Map<string, Load>([
  ['', () => import('./pages/Overview.svelte')],
  ['queues', () => import('./pages/Queues.svelte')],
  ['messages', () => import('./pages/Messages.svelte')],
  ['push', () => import('./pages/Push.svelte')],
  ['groups', () => import('./pages/Groups.svelte')],
  ['dead-letters', () => import('./pages/DeadLetters.svelte')],
  ['operations', () => import('./pages/Operations.svelte')],
  ['traces', () => import('./pages/Traces.svelte')],
  ['system', () => import('./pages/System.svelte')],
  ['settings', () => import('./pages/Settings.svelte')],
])

export const login: Load = () => import('./pages/Login.svelte')

const missing: Load = () => import('./pages/Missing.svelte')

/** `name`: the first segment of the address. */
export function pageOf(name: string | undefined): Load {
  return name === 'login' ? login : (PAGES.get(name ?? '') ?? missing)
}

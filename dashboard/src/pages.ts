// Maps addresses to pages. Each page is loaded when first opened, and handles the addresses below it (`#/queues/orders`).

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

/** `name`: first segment of the address. */
export function pageOf(name: string | undefined): Load {
  return name === 'login' ? login : (PAGES.get(name ?? '') ?? missing)
}

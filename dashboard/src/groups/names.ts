// Display names of groups.

import type { Group, GroupPartition } from './calls'

const QUEUE_MODE = '__QUEUE_MODE__'

/** Consumers without a group share one cursor, called queue mode. */
export function isQueueMode(group: string): boolean {
  return group === QUEUE_MODE
}

export function groupLabel(group: string): string {
  return isQueueMode(group) ? 'Queue mode' : group
}

export function tone(state: string): 'good' | 'warn' | 'bad' {
  return state === 'Lagging' ? 'bad' : state === 'Dead' ? 'warn' : 'good'
}

/** The broker's words, except for one that would mislead. */
export function stateWords(state: string): string {
  return state === 'Dead' ? 'Never read' : state
}

export function stateMeaning(state: string): string {
  if (state === 'Dead') return 'Registered, but has never read anything here'
  return state === 'Lagging' ? 'A message has been unread for more than five minutes' : 'No message has been unread for more than five minutes'
}

type Leased = Pick<GroupPartition, 'workerId' | 'heldBy'>

/** Short text on who holds a lease. */
export function holder({ heldBy }: Leased): string {
  return heldBy?.name ?? heldBy?.address ?? 'unknown'
}

export function holding({ workerId, heldBy }: Leased): string {
  const lease = `lease ${workerId}`
  if (!heldBy) return `Popped through another broker, or before this one started; ${lease}`
  return heldBy.name === null ? `Popped from ${heldBy.address}; ${lease}` : `Popped by ${heldBy.name} from ${heldBy.address}; ${lease}`
}

export type Show = 'all' | 'behind' | 'never'

export function asShow(text: string | null): Show {
  return text === 'behind' || text === 'never' ? text : 'all'
}

export function chosen(groups: Group[], search: string, show: Show): Group[] {
  const part = search.trim().toLowerCase()
  return groups.filter(
    (group) =>
      (show === 'all' || group.state === (show === 'behind' ? 'Lagging' : 'Dead')) &&
      (groupLabel(group.name).toLowerCase().includes(part) || group.queueName.toLowerCase().includes(part)),
  )
}

export function mostBehind(groups: Group[]): Group | undefined {
  return groups.reduce<Group | undefined>(
    (most, group) => (most === undefined || group.totalLag > most.totalLag ? group : most),
    undefined,
  )
}

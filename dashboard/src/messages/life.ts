// The life of a message as a list of what happened, in order of time: from the log and the cursors, from what brokers recorded,
// and from what consumers noted.

import type { Schema } from '../api/client'
import { groupLabel } from '../groups/names'
import type { Tone } from './status'

export type MessageLife = Schema<'MessageLife'>
export type LifeGroup = Schema<'LifeGroup'>
export type LifeMessage = Schema<'LifeMessage'>
export type Trace = Schema<'Trace'>

export interface Moment {
  at: string
  title: string
  tone: Tone
  /** Who, as far as it is somebody. */
  group?: string
  /** What they said. */
  text?: string
  /** The other message of a parent or child. */
  message?: LifeMessage
  /** What a consumer wrote down. */
  data?: unknown
}

const EVENTS: Record<string, [title: string, tone: Tone]> = {
  delivered: ['Delivered', 'accent'],
  completed: ['Completed', 'good'],
  failed: ['Failed, will be delivered again', 'warn'],
  retry: ['Handed back, will be delivered again', 'plain'],
  dead_letter: ['Given up: a dead letter', 'bad'],
  dropped: ['Given up and dropped', 'bad'],
  child: ['Led to another message', 'plain'],
  parent: ['Came from another message', 'plain'],
}

export function moments(life: MessageLife, notes: Trace[]): Moment[] {
  const all: Moment[] = []
  if (life.push.createdAt !== null) {
    all.push({
      at: life.push.createdAt,
      title: 'Pushed',
      tone: 'plain',
      ...(life.push.producerSub === null ? {} : { text: `by ${life.push.producerSub}` }),
    })
  }
  for (const event of life.events) {
    const [title, tone]: [string, Tone] = EVENTS[event.event] ?? [event.event, 'plain']
    const moment: Moment = { at: event.at, title, tone }
    if (event.attempt !== null && event.attempt > 1) moment.title += ` (attempt ${event.attempt})`
    if (event.consumerGroup !== null) moment.group = groupLabel(event.consumerGroup)
    if (event.error !== null) moment.text = event.error
    if (event.message != null) moment.message = event.message
    all.push(moment)
  }
  const recorded = new Set(life.events.filter(({ event }) => event === 'dead_letter').map((event) => event.consumerGroup))
  for (const group of life.groups) {
    if (group.deadLetter == null || recorded.has(group.consumerGroup)) continue
    all.push({
      at: group.deadLetter.failedAt,
      title: 'Given up: a dead letter',
      tone: 'bad',
      group: groupLabel(group.consumerGroup),
      ...(group.deadLetter.error === null ? {} : { text: group.deadLetter.error }),
    })
  }
  for (const note of notes) {
    all.push({
      at: note.created_at,
      title: `Note: ${note.event_type}`,
      tone: note.event_type === 'error' ? 'bad' : 'plain',
      ...(note.consumer_group === null ? {} : { group: groupLabel(note.consumer_group) }),
      data: note.data,
    })
  }
  // Stable, so that what has the same time stays in the order it was recorded in.
  return all.sort((a, b) => Date.parse(a.at) - Date.parse(b.at))
}

export function groupState(group: LifeGroup): { word: string; tone: Tone } {
  if (group.deadLetter != null) return { word: 'dead letter', tone: 'bad' }
  if (group.leasedUntil !== null) return { word: 'processing', tone: 'accent' }
  if (group.consumed) return { word: 'completed', tone: 'good' }
  if (group.attempts > 0) return { word: 'failed, waits', tone: 'warn' }
  return { word: 'waiting', tone: 'plain' }
}

/** Failures that the broker still knows of. It counts those that were followed by a retry, and a dead letter has failed once more. */
function known(group: LifeGroup): number {
  return group.deadLetter == null ? group.attempts : group.deadLetter.attempts + 1
}

/** How often it has failed. A cursor forgets that once it has passed the message, what was recorded does not. */
export function failures(life: MessageLife, group: LifeGroup): number {
  const recorded = life.events.filter(
    (event) => event.event === 'failed' && event.consumerGroup === group.consumerGroup,
  ).length
  return Math.max(recorded, known(group))
}

/** How often a group has had it, as far as anybody knows. */
export function deliveries(life: MessageLife, group: LifeGroup): number {
  const recorded = life.events.filter(
    (event) => event.event === 'delivered' && event.consumerGroup === group.consumerGroup,
  ).length
  const atLeast = failures(life, group) + (group.leasedUntil !== null || (group.consumed && group.deadLetter == null) ? 1 : 0)
  return Math.max(recorded, atLeast, group.delivered ? 1 : 0)
}

const QUEUE_MODE = '__QUEUE_MODE__'

/** Groups that may still be given the message, and so may be spared it: neither done with it nor holding it. */
export function buriable(life: MessageLife | undefined): string[] {
  if (life === undefined || life.push.createdAt === null) return []
  const names = life.groups
    .filter((group) => group.deadLetter == null && !group.consumed && group.leasedUntil === null)
    .map(({ consumerGroup }) => consumerGroup)
  // Whoever reads without a group may come yet, as long as nobody reads at all.
  if (life.groups.length === 0) names.push(QUEUE_MODE)
  return names
}

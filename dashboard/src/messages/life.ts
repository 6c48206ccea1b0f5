// The history of a message as a list of events, in order of time: from the log and the cursors, from what brokers recorded,
// and from notes of consumers.

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
  /** The group or person, if known. */
  group?: string
  /** The event's text. */
  text?: string
  /** The other message of a parent or child event. */
  message?: LifeMessage
  /** A consumer's note. */
  data?: unknown
}

const EVENTS: Record<string, [title: string, tone: Tone]> = {
  delivered: ['Delivered', 'accent'],
  completed: ['Completed', 'good'],
  failed: ['Failed, will be delivered again', 'warn'],
  retry: ['Returned, will be delivered again', 'plain'],
  dead_letter: ['Dead-lettered', 'bad'],
  dropped: ['Gave up and dropped', 'bad'],
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
      title: 'Dead-lettered',
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
  // A stable sort: events of the same time stay in recorded order.
  return all.sort((a, b) => Date.parse(a.at) - Date.parse(b.at))
}

export function groupState(group: LifeGroup): { word: string; tone: Tone } {
  if (group.deadLetter != null) return { word: 'dead letter', tone: 'bad' }
  if (group.leasedUntil !== null) return { word: 'processing', tone: 'accent' }
  if (group.consumed) return { word: 'completed', tone: 'good' }
  if (group.attempts > 0) return { word: 'failed, waits', tone: 'warn' }
  return { word: 'waiting', tone: 'plain' }
}

/** Failures that the broker still knows. It counts failures followed by a retry; a dead letter has failed once more. */
function known(group: LifeGroup): number {
  return group.deadLetter == null ? group.attempts : group.deadLetter.attempts + 1
}

/** Number of failures. A cursor forgets it after passing the message; recorded events do not. */
export function failures(life: MessageLife, group: LifeGroup): number {
  const recorded = life.events.filter(
    (event) => event.event === 'failed' && event.consumerGroup === group.consumerGroup,
  ).length
  return Math.max(recorded, known(group))
}

/** Number of deliveries to a group, as far as known. */
export function deliveries(life: MessageLife, group: LifeGroup): number {
  const recorded = life.events.filter(
    (event) => event.event === 'delivered' && event.consumerGroup === group.consumerGroup,
  ).length
  const atLeast = failures(life, group) + (group.leasedUntil !== null || (group.consumed && group.deadLetter == null) ? 1 : 0)
  return Math.max(recorded, atLeast, group.delivered ? 1 : 0)
}

const QUEUE_MODE = '__QUEUE_MODE__'

/** Groups that may still receive the message: those that have neither finished nor leased it. */
export function buriable(life: MessageLife | undefined): string[] {
  if (life === undefined || life.push.createdAt === null) return []
  const names = life.groups
    .filter((group) => group.deadLetter == null && !group.consumed && group.leasedUntil === null)
    .map(({ consumerGroup }) => consumerGroup)
  // While no group reads the partition, a consumer without a group may still come.
  if (life.groups.length === 0) names.push(QUEUE_MODE)
  return names
}

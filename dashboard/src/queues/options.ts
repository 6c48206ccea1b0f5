// The options of a queue as a form: what each is, what was typed, and what of it has to be sent. The merge rule of the
// broker: what is absent stays, null goes back to the default.

import { duration, exact } from '../format'

export type Value = number | boolean | string
export type Options = Record<string, Value | null | undefined>

export interface Option {
  name: string
  label: string
  kind: 'seconds' | 'milliseconds' | 'number' | 'flag' | 'text'
  /** Absent: it has none, as labels are made from the name of the queue. */
  standard?: Value
  help: string
  negative?: boolean
}

export interface Section {
  title: string
  note?: string
  /** Folded away: of interest to few. */
  folded?: boolean
  options: Option[]
}

export const SECTIONS: Section[] = [
  {
    title: 'Delivery',
    options: [
      { name: 'leaseTime', label: 'Lease time', kind: 'seconds', standard: 300, help: 'How long a consumer may keep what it got, if it does not say itself. 0 means 60.' },
      { name: 'retryLimit', label: 'Retry limit', kind: 'number', standard: 3, help: 'How often a batch that failed is delivered again before it is given up.' },
      { name: 'delayedProcessing', label: 'Delivery delay', kind: 'seconds', standard: 0, help: 'A message is delivered once it is this old.' },
      { name: 'windowBuffer', label: 'Batch window', kind: 'seconds', standard: 0, help: 'A partition is held back until it has a full batch of at least two, or its oldest waiting message is this old.' },
      { name: 'priority', label: 'Priority', kind: 'number', standard: 0, negative: true, help: 'Which queue a pop by label asks first: the highest.' },
    ],
  },
  {
    title: 'Dead letters',
    note: 'What was given up is dropped only if both are off.',
    options: [
      { name: 'deadLetterQueue', label: 'Keep dead letters', kind: 'flag', standard: true, help: 'Keep what was given up.' },
      { name: 'dlqAfterMaxRetries', label: 'Keep after the last retry', kind: 'flag', standard: true, help: 'Keep what failed as often as the retry limit allows.' },
    ],
  },
  {
    title: 'Retention',
    options: [
      { name: 'retentionEnabled', label: 'Remove old messages', kind: 'flag', standard: false, help: 'Without it the next two have no effect, and messages are kept for ever.' },
      { name: 'retentionSeconds', label: 'Keep at most', kind: 'seconds', standard: 0, help: 'Messages older than this go, read or not. 0 keeps them.' },
      { name: 'completedRetentionSeconds', label: 'Keep when read', kind: 'seconds', standard: 0, help: 'Messages older than this go once every group has passed them. 0 keeps them.' },
      { name: 'maxWaitTimeSeconds', label: 'Give up unread', kind: 'seconds', standard: 0, help: 'Messages still unread at this age go, also without the switch above. 0 keeps them.' },
    ],
  },
  {
    title: 'Storing',
    options: [
      { name: 'dedupWindowSeconds', label: 'Deduplication window', kind: 'seconds', standard: 3600, help: 'How long a transaction id is remembered. 0 turns deduplication off.' },
      { name: 'encryptionEnabled', label: 'Encrypt payloads', kind: 'flag', standard: false, help: 'Payloads pushed from now on are stored encrypted, if the broker has a key.' },
    ],
  },
  {
    title: 'Labels',
    options: [
      { name: 'namespace', label: 'Namespace', kind: 'text', help: 'For consumers that pop by label.' },
      { name: 'task', label: 'Task', kind: 'text', help: 'For consumers that pop by label.' },
    ],
  },
  {
    title: 'Without effect',
    note: 'Kept for clients that read them back.',
    folded: true,
    options: [
      { name: 'retryDelay', label: 'Retry delay', kind: 'milliseconds', standard: 1000, help: 'What failed is available again at once.' },
      { name: 'ttl', label: 'Time to live', kind: 'seconds', standard: 3600, help: 'Retention does this.' },
      { name: 'maxSize', label: 'Size limit', kind: 'number', standard: 0, help: 'Queues are not limited.' },
      { name: 'minPopWaitTime', label: 'Least pop wait', kind: 'milliseconds', standard: 0, help: 'Pops wait as they are told.' },
    ],
  },
]

export const OPTIONS: Option[] = SECTIONS.flatMap((section) => section.options)

/** What was typed or ticked, by name; `null`: back to the default. What is not there was not touched. */
export type Draft = Record<string, string | boolean | null>

export interface Change {
  option: Option
  from: Value | null
  /** Null: back to the default. */
  to: Value | null
}

export interface Review {
  changes: Change[]
  errors: Record<string, string>
}

const LARGEST = 2_147_483_647
const NAME_MAX = 255

/** What a draft changes of the options in force, and what of it cannot be. */
export function review(inForce: Options, draft: Draft): Review {
  const changes: Change[] = []
  const errors: Record<string, string> = {}
  for (const option of OPTIONS) {
    const typed = draft[option.name]
    if (typed === undefined) continue
    const from = inForce[option.name] ?? option.standard ?? null
    if (typed === null) {
      if (from !== option.standard) changes.push({ option, from, to: null })
      continue
    }
    const read = parse(option, typed)
    if (read.error !== undefined) errors[option.name] = read.error
    else if (read.value !== from) changes.push({ option, from, to: read.value })
  }
  return { changes, errors }
}

function parse(option: Option, typed: string | boolean): { value: Value; error?: undefined } | { error: string } {
  if (typeof typed === 'boolean') return { value: typed }
  const text = typed.trim()
  if (option.kind === 'text') {
    return [...typed].length > NAME_MAX ? { error: `At most ${NAME_MAX} characters.` } : { value: typed }
  }
  if (!/^[+-]?\d+$/.test(text)) return { error: 'A whole number, please.' }
  const value = Number(text)
  if (value < 0 && !option.negative) return { error: '0 or more, please.' }
  if (Math.abs(value) > LARGEST) return { error: `At most ${exact(LARGEST)}.` }
  return { value }
}

/** What is sent: the changed ones and nothing else. */
export function body(changes: Change[]): Record<string, Value | null> {
  return Object.fromEntries(changes.map((change) => [change.option.name, change.to]))
}

/** What stands in a field: what was typed, else what is in force. */
export function shown(option: Option, inForce: Options, draft: Draft): string | boolean {
  const typed = draft[option.name]
  if (typed !== undefined && typed !== null) return typed
  const value = (typed === null ? undefined : inForce[option.name]) ?? option.standard ?? ''
  return typeof value === 'boolean' ? value : String(value)
}

export function isStandard(option: Option, inForce: Options, draft: Draft): boolean {
  return option.standard === undefined || shown(option, inForce, draft) === standardText(option)
}

function standardText(option: Option): string | boolean {
  return typeof option.standard === 'boolean' ? option.standard : String(option.standard)
}

export function words(option: Option, value: Value | null): string {
  if (value === null) return option.standard === undefined ? 'none' : `default: ${words(option, option.standard)}`
  if (typeof value === 'boolean') return value ? 'on' : 'off'
  if (value === '') return 'none'
  if (typeof value === 'string') return value
  if (option.kind === 'milliseconds') return `${exact(value)} ms`
  if (option.kind !== 'seconds') return exact(value)
  return value < 60 ? `${value} s` : `${exact(value)} s (${duration(value)})`
}

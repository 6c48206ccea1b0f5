// The options of a queue as a form: what each is, what was typed, and what of it has to be sent. The fields are those of
// the table in protocol/src/options.rs. The merge rule of the broker: what is absent stays, null goes back to the default.

import { duration, exact } from '../format'
import table from './options.json'

export type Value = number | boolean | string
export type Options = Record<string, Value | null | undefined>

export interface Option {
  name: string
  label: string
  section: string
  unit: 'seconds' | 'milliseconds' | 'count' | 'flag' | 'text'
  /** Absent: it has none, as labels are made from the name of the queue. */
  default?: Value
  min?: number
  max?: number
  meaning: string
}

export interface Section {
  title: string
  note?: string
  /** Folded away: of interest to few. */
  folded?: boolean
  options: Option[]
}

const NO_EFFECT = 'No effect'

/** Options that are text. They are not in the broker's table. */
const LABELS: Option[] = [
  { name: 'namespace', label: 'Namespace', section: 'Labels', unit: 'text', meaning: 'For consumers that pop by label.' },
  { name: 'task', label: 'Task', section: 'Labels', unit: 'text', meaning: 'For consumers that pop by label.' },
]

const TABLE = (table as Option[]).map((option) => ({ ...option, meaning: labelled(option.meaning) }))

export const OPTIONS: Option[] = [
  ...TABLE.filter((option) => option.section !== NO_EFFECT),
  ...LABELS,
  ...TABLE.filter((option) => option.section === NO_EFFECT),
]

export const SECTIONS: Section[] = [...new Set(OPTIONS.map((option) => option.section))].map((title) => ({
  title,
  note: title === NO_EFFECT ? 'Stored and returned, for clients that read them back.' : undefined,
  folded: title === NO_EFFECT,
  options: OPTIONS.filter((option) => option.section === title),
}))

/** A text with the labels of the options that it names. */
function labelled(meaning: string): string {
  return meaning.replace(/`([^`]+)`/g, (_, name) => {
    const named = table.find((option) => option.name === name)
    return named ? `“${named.label}”` : name
  })
}

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

const NAME_MAX = 255

/** What a draft changes of the options in force, and what of it cannot be. */
export function review(inForce: Options, draft: Draft): Review {
  const changes: Change[] = []
  const errors: Record<string, string> = {}
  for (const option of OPTIONS) {
    const typed = draft[option.name]
    if (typed === undefined) continue
    const from = inForce[option.name] ?? option.default ?? null
    if (typed === null) {
      if (from !== option.default) changes.push({ option, from, to: null })
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
  if (option.unit === 'text') {
    return [...typed].length > NAME_MAX ? { error: `At most ${NAME_MAX} characters.` } : { value: typed }
  }
  if (!/^[+-]?\d+$/.test(text)) return { error: 'A whole number, please.' }
  const value = Number(text)
  const min = option.min ?? 0
  const max = Math.min(option.max ?? Infinity, Number.MAX_SAFE_INTEGER)
  if (value < min) return { error: min === 0 ? '0 or more, please.' : `At least ${exact(min)}.` }
  if (value > max) return { error: `At most ${exact(max)}.` }
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
  const value = (typed === null ? undefined : inForce[option.name]) ?? option.default ?? ''
  return typeof value === 'boolean' ? value : String(value)
}

export function isDefault(option: Option, inForce: Options, draft: Draft): boolean {
  return option.default === undefined || shown(option, inForce, draft) === defaultText(option)
}

function defaultText(option: Option): string | boolean {
  return typeof option.default === 'boolean' ? option.default : String(option.default)
}

export function words(option: Option, value: Value | null): string {
  if (value === null) return option.default === undefined ? 'none' : `default: ${words(option, option.default)}`
  if (typeof value === 'boolean') return value ? 'on' : 'off'
  if (value === '') return 'none'
  if (typeof value === 'string') return value
  if (option.unit === 'milliseconds') return `${exact(value)} ms`
  if (option.unit !== 'seconds') return exact(value)
  return value < 60 ? `${value} s` : `${exact(value)} s (${duration(value)})`
}

// The options of a queue as a form: their descriptions, what was typed, and what has to be sent. The
// fields come from the table in protocol/src/options.rs. The broker merges options: absent ones stay, null
// returns one to its default.

import { duration, exact } from '../format'
import table from './options.json'

export type Value = number | boolean | string
export type Options = Record<string, Value | null | undefined>

export interface Option {
  name: string
  label: string
  section: string
  unit: 'seconds' | 'milliseconds' | 'count' | 'flag' | 'text'
  /** Absent for labels, which are derived from the name of the queue. */
  default?: Value
  min?: number
  max?: number
  meaning: string
}

export interface Section {
  title: string
  note?: string
  /** Collapsed, because few users need it. */
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

/** The text, with options named by their labels. */
function labelled(meaning: string): string {
  return meaning.replace(/`([^`]+)`/g, (_, name) => {
    const named = table.find((option) => option.name === name)
    return named ? `“${named.label}”` : name
  })
}

/**
 * What was typed or ticked, by name of the option; `null` returns it to its default.
 * Untouched options are absent.
 */
export type Draft = Record<string, string | boolean | null>

export interface Change {
  option: Option
  from: Value | null
  /** Null: return to the default. */
  to: Value | null
}

export interface Review {
  changes: Change[]
  errors: Record<string, string>
}

const NAME_MAX = 255

/** What a draft changes in the options in force, and which of its values are invalid. */
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

/** The body of the request: only the changed options. */
export function body(changes: Change[]): Record<string, Value | null> {
  return Object.fromEntries(changes.map((change) => [change.option.name, change.to]))
}

/** The value that a field shows: what was typed, otherwise what is in force. */
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

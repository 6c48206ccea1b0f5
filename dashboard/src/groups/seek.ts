// Where a group can be sent, as the broker wants to be told, and what that would do in words.

import { exact } from '../format'

export type Target = 'beginning' | 'time' | 'end'

export interface Forecast {
  dryRun?: boolean
  partitionsUpdated?: number
  messagesReplayed?: number
  messagesSkipped?: number
}

export type SeekBody = { toEnd: true } | { timestamp: string }

const BEGINNING = '1970-01-01T00:00:00Z'

/** `local`: as a field for date and time has it, in the viewer's zone. Undefined: there is no such time yet. */
export function seekBody(target: Target, local: string): SeekBody | undefined {
  if (target === 'end') return { toEnd: true }
  if (target === 'beginning') return { timestamp: BEGINNING }
  const at = new Date(local)
  return local === '' || Number.isNaN(at.getTime()) ? undefined : { timestamp: at.toISOString() }
}

/** A time as a field for date and time wants it. */
export function localTime(at: Date): string {
  const two = (part: number) => String(part).padStart(2, '0')
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`
  return `${date}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`
}

/** What a preview says. */
export function forecastWords(forecast: Forecast): string {
  const replayed = forecast.messagesReplayed ?? 0
  const skipped = forecast.messagesSkipped ?? 0
  const parts = []
  if (replayed > 0) parts.push(`${messages(replayed)} will be delivered again`)
  if (skipped > 0) parts.push(`${messages(skipped)} will be skipped unread`)
  return parts.length === 0 ? 'Nothing is replayed and nothing skipped.' : `${parts.join(', ')}.`
}

export function messages(count: number): string {
  return count === 1 ? '1 message' : `${exact(count)} messages`
}

export function partitions(count: number): string {
  return count === 1 ? '1 partition' : `${exact(count)} partitions`
}

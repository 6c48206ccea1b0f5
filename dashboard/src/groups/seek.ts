// Targets of a seek, as the API expects them, and the preview in words.

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

/** `local`: value of a date and time field, in the viewer's zone. Undefined: not a valid time yet. */
export function seekBody(target: Target, local: string): SeekBody | undefined {
  if (target === 'end') return { toEnd: true }
  if (target === 'beginning') return { timestamp: BEGINNING }
  const at = new Date(local)
  return local === '' || Number.isNaN(at.getTime()) ? undefined : { timestamp: at.toISOString() }
}

/** A time as a value for a date and time field. */
export function localTime(at: Date): string {
  const two = (part: number) => String(part).padStart(2, '0')
  const date = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`
  return `${date}T${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`
}

/** The preview in words. */
export function forecastWords(forecast: Forecast): string {
  const replayed = forecast.messagesReplayed ?? 0
  const skipped = forecast.messagesSkipped ?? 0
  const parts = []
  if (replayed > 0) parts.push(`${messages(replayed)} will be delivered again`)
  if (skipped > 0) parts.push(`${messages(skipped)} will be skipped unread`)
  return parts.length === 0 ? 'No message is replayed or skipped.' : `${parts.join(', ')}.`
}

export function messages(count: number): string {
  return count === 1 ? '1 message' : `${exact(count)} messages`
}

export function partitions(count: number): string {
  return count === 1 ? '1 partition' : `${exact(count)} partitions`
}

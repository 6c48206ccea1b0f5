// Progress of a redrive.

import type { Schema } from '../api/client'
import type { Filter } from './filter'

export type Redrive = Schema<'Redrive'> & { shape?: string | null }

export interface Progress {
  /** 0 to 1. */
  share: number
  left: number
  /** Seconds; null if unknown. */
  eta: number | null
}

export function progress(redrive: Redrive): Progress {
  const worked = redrive.done + redrive.failed
  if (redrive.status !== 'running') {
    return { share: redrive.total === 0 ? 1 : Math.min(1, worked / redrive.total), left: 0, eta: null }
  }
  const left = Math.max(0, redrive.total - worked)
  const pace = redrive.rate > 0 ? redrive.rate : redrive.perSecond
  return {
    share: redrive.total === 0 ? 0 : Math.min(1, worked / redrive.total),
    left,
    eta: pace > 0 ? Math.ceil(left / pace) : null,
  }
}

export const PACE_MAX = 10_000
export const PACE_DEFAULT = 100

/** Parses a typed rate; null if invalid. */
export function readPace(text: string | number | null | undefined): number | null {
  const pace = typeof text === 'number' ? text : Number((text ?? '').trim() || NaN)
  return Number.isInteger(pace) && pace >= 1 && pace <= PACE_MAX ? pace : null
}

/** The redrive's filter, in the form that `describe` accepts. */
export function filterOf(redrive: Redrive): Filter {
  const filter: Filter = {}
  if (redrive.partition !== null) filter.partition = redrive.partition
  if (redrive.consumerGroup !== null) filter.consumerGroup = redrive.consumerGroup
  if (redrive.errorFilter !== null) filter.error = redrive.errorFilter
  if (redrive.shape != null) filter.shape = redrive.shape
  if (redrive.from !== null) filter.from = redrive.from
  return filter
}

// Runs the action of a button and shows its outcome as a toast.

import { ApiError } from './api/client'

export interface Toast {
  id: number
  tone: 'good' | 'bad'
  title: string
  text: string
}

const STAYS_MS = 6_000
/** Failures stay long enough to be read. */
const FAILURE_STAYS_MS = 20_000
const SHOWN_MAX = 4

class Toasts {
  list = $state.raw<Toast[]>([])
  private last = 0

  show(tone: Toast['tone'], title: string, text: string): void {
    this.last += 1
    const id = this.last
    this.list = [...this.list, { id, tone, title, text }].slice(-SHOWN_MAX)
    setTimeout(() => this.close(id), tone === 'good' ? STAYS_MS : FAILURE_STAYS_MS)
  }

  close(id: number): void {
    this.list = this.list.filter((toast) => toast.id !== id)
  }
}

export const toasts = new Toasts()

/** `label` names the action ("Delete queue orders"); `done` describes its result. `undefined` after a failure. */
export async function act<T>(
  label: string,
  run: () => Promise<T>,
  done?: (result: T) => string,
): Promise<T | undefined> {
  try {
    const result = await run()
    toasts.show('good', label, done?.(result) ?? 'Done')
    return result
  } catch (error) {
    toasts.show('bad', `${label}: failed`, words(error))
    return undefined
  }
}

/** An error's message for people; the broker's own if there is one. */
export function words(error: unknown): string {
  if (error instanceof ApiError) {
    const again = error.retryAfterSeconds
    return again === undefined ? error.message : `${error.message} (try again in ${again} s)`
  }
  return error instanceof Error ? error.message : String(error)
}

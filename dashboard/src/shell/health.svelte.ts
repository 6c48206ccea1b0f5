// The broker's health, shared by all pages and refreshed while the page is visible.

import { ApiError, get, type Schema } from '../api/client'

type Report = Schema<'Health'>

class Health {
  report = $state.raw<Report | null>(null)
  /** `unknown` before the first response. */
  state = $state<'unknown' | 'healthy' | 'no-database' | 'unreachable'>('unknown')

  words = $derived(
    { unknown: 'Loading', healthy: 'Healthy', 'no-database': 'Database unavailable', unreachable: 'Broker unreachable' }[this.state],
  )
  tone = $derived(this.state === 'healthy' ? 'good' : this.state === 'unknown' ? '' : 'bad')
  detail = $derived(this.report === null ? '' : `${this.report.server}, version ${this.report.version}`)

  async ask(signal: AbortSignal): Promise<void> {
    try {
      this.report = await get<Report>('/health', undefined, signal)
      this.state = 'healthy'
    } catch (error) {
      if (signal.aborted) throw error
      // It returns 503 while the database is unreachable.
      this.state = error instanceof ApiError && error.status === 503 ? 'no-database' : 'unreachable'
    }
  }
}

export const health = new Health()

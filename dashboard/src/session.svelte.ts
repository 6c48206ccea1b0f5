// Who is logged in and what they may do. The broker decides; this only spares people buttons that would be refused.

import { ApiError, get, onUnauthorized, present } from './api/client'
import { allowed, type Right, type Whoami } from './rights'

export type { Right, Whoami } from './rights'

const STORED = 'queen.credential'

class Session {
  /** The broker has been asked. */
  ready = $state(false)
  /** `null`: somebody has to log in first. */
  who = $state.raw<Whoami | null>(null)
  /** Why the broker could not be asked, or let nobody in, in its own words. */
  error = $state.raw<ApiError | null>(null)

  constructor() {
    onUnauthorized((error) => {
      this.who = null
      this.error = error
    })
  }

  /**
   * `read` look, `push`, `pop`, `change` what a read-write role may change (configure, seek, redrive, delete one message, …),
   * `admin` what only an admin may (clear, delete, purge, cancel, maintenance, …). Without a queue: in all of them.
   */
  may(right: Right, queue?: string): boolean {
    return this.who !== null && allowed(this.who, right, queue)
  }

  /** Asks the broker with what was kept, or with nothing. */
  async start(): Promise<void> {
    present(kept())
    await this.ask()
  }

  /** Throws the broker's refusal. `remember`: also after this browser was closed. */
  async login(token: string, remember = false): Promise<void> {
    present(token)
    await this.ask()
    if (this.who === null) throw this.error ?? new ApiError(401, 'unauthorized', 'not let in')
    keep(token, remember)
  }

  logout(): void {
    keep(null, false)
    present(null)
    this.error = null
    this.who = null
  }

  private async ask(): Promise<void> {
    try {
      this.who = await get<Whoami>('/api/v1/whoami')
      this.error = null
    } catch (error) {
      if (!(error instanceof ApiError)) throw error
      // During an upgrade another broker behind the same address may be one that does not know the question.
      this.who = error.status === 404 ? UNKNOWN : null
      this.error = error.status === 404 ? null : error
    } finally {
      this.ready = true
    }
  }
}

const UNKNOWN: Whoami = { authentication: false, name: null, kind: 'none', role: 'admin', grants: null }

/** Storage can be switched off; then a reload asks again. */
function kept(): string | null {
  try {
    return sessionStorage.getItem(STORED) ?? localStorage.getItem(STORED)
  } catch {
    return null
  }
}

function keep(token: string | null, remember: boolean): void {
  try {
    sessionStorage.removeItem(STORED)
    localStorage.removeItem(STORED)
    if (token !== null) (remember ? localStorage : sessionStorage).setItem(STORED, token)
  } catch {
    // As above.
  }
}

export const session = new Session()

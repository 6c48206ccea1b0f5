// The current user and rights. The broker enforces them; here they only hide buttons that would be refused.

import { ApiError, get, onUnauthorized, present } from './api/client'
import { allowed, type Right, type Whoami } from './rights'

export type { Right, Whoami } from './rights'

const STORED = 'queen.credential'

class Session {
  /** The broker has responded. */
  ready = $state(false)
  /** `null`: login required. */
  who = $state.raw<Whoami | null>(null)
  /** Why the broker could not be reached, or refused access, in its own words. */
  error = $state.raw<ApiError | null>(null)

  constructor() {
    onUnauthorized((error) => {
      this.who = null
      this.error = error
    })
  }

  /**
   * `read`: view; `push`; `pop`; `change`: actions of a read-write role (configure, seek, redrive, delete one message, …);
   * `admin`: actions of an admin (clear, delete, purge, cancel, maintenance, …). Without a queue: on all queues.
   */
  may(right: Right, queue?: string): boolean {
    return this.who !== null && allowed(this.who, right, queue)
  }

  /** Asks the broker, with the stored credential or without one. */
  async start(): Promise<void> {
    present(kept())
    await this.ask()
  }

  /** Throws the broker's refusal. `remember`: also after the browser was closed. */
  async login(token: string, remember = false): Promise<void> {
    present(token)
    await this.ask()
    if (this.who === null) throw this.error ?? new ApiError(401, 'unauthorized', 'access denied')
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
      // During an upgrade, an older broker behind the same address may not support this request.
      this.who = error.status === 404 ? UNKNOWN : null
      this.error = error.status === 404 ? null : error
    } finally {
      this.ready = true
    }
  }
}

const UNKNOWN: Whoami = { authentication: false, name: null, kind: 'none', role: 'admin', grants: null }

/** Storage can be disabled; then a reload requires a new login. */
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
    // See above.
  }
}

export const session = new Session()

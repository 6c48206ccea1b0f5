// A list that is loaded page by page. It stays live while only the first page is loaded; moving rows would disturb reading
// further down.

import { untrack } from 'svelte'
import { poll } from '../poll.svelte'
import { gently } from '../queues/gentle'

/** A replaced request still completes; its response is dropped. */
const NEVER = new AbortController().signal

export interface PagesOptions<T> {
  /** Rows from `offset` on. A response shorter than `size` is the last page. */
  load: (offset: number, limit: number) => Promise<T[]>
  key: (row: T) => string
  size: number
  /** For tests. */
  now?: () => number
}

export class Pages<T> {
  rows = $state.raw<T[]>([])
  error = $state.raw<unknown>(undefined)
  /** There is no response to the current query yet. */
  loading = $state(true)
  /** Further pages were loaded: the list no longer updates. */
  deep = $state(false)
  complete = $state(false)
  /** Number of the current query. A new query starts at the top; responses to earlier ones are dropped. */
  question = $state(0)

  readonly #options: PagesOptions<T>
  /** Rows requested so far: rows that arrive meanwhile shift others to later pages, but none is skipped. */
  #asked = 0
  #busy = false
  readonly #first: (question: string) => Promise<T[]>

  constructor(options: PagesOptions<T>) {
    this.#options = options
    const first = gently(() => options.load(0, options.size), options.now)
    this.#first = (question) => first(NEVER, question)
  }

  /** Starts over after a new query, or to show the newest. */
  async restart(): Promise<void> {
    this.question += 1
    this.#busy = false
    this.loading = true
    this.deep = false
    await this.refresh()
  }

  /** Reloads the first page; no effect once further pages were loaded. */
  async refresh(): Promise<void> {
    if (this.deep || this.#busy) return
    await this.#read(0, this.#first(String(this.question)), (rows) => rows)
  }

  async more(): Promise<void> {
    if (this.complete || this.#busy || this.loading) return
    this.deep = true
    const offset = this.#asked
    await this.#read(offset, this.#options.load(offset, this.#options.size), (rows) => {
      const known = new Set(this.rows.map(this.#options.key))
      return [...this.rows, ...rows.filter((row) => !known.has(this.#options.key(row)))]
    })
  }

  /** Retries what failed. */
  async again(): Promise<void> {
    await (this.deep ? this.more() : this.refresh())
  }

  async #read(offset: number, asked: Promise<T[]>, join: (rows: T[]) => T[]): Promise<void> {
    const question = this.question
    this.#busy = true
    try {
      const rows = await asked
      if (question !== this.question) return
      this.rows = join(rows)
      this.#asked = offset + rows.length
      this.complete = rows.length < this.#options.size
      this.error = undefined
    } catch (error) {
      if (question !== this.question) return
      // The shown rows would belong to another query.
      if (this.loading) this.rows = []
      this.error = error
    } finally {
      if (question === this.question) {
        this.#busy = false
        this.loading = false
      }
    }
  }
}

/** Keeps a list up to date while its component is mounted, and restarts it when the query changes. */
export function live<T>(list: Pages<T>, question: () => unknown, everyMs: number): void {
  $effect(() => {
    question()
    untrack(() => void list.restart())
  })
  poll(async () => {
    await untrack(() => list.refresh())
    // Failures reduce the polling rate.
    if (list.error !== undefined) throw list.error
  }, everyMs)
}

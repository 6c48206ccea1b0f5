// A list that is read page by page, and stays live as long as only its first page is shown: rows that move while somebody
// reads further down help nobody.

import { untrack } from 'svelte'
import { poll } from '../poll.svelte'
import { gently } from '../queues/gentle'

/** A question that was replaced is answered all the same, and the answer dropped. */
const NEVER = new AbortController().signal

export interface PagesOptions<T> {
  /** Rows from `offset` on. An answer shorter than `size` is the last. */
  load: (offset: number, limit: number) => Promise<T[]>
  key: (row: T) => string
  size: number
  /** For tests. */
  now?: () => number
}

export class Pages<T> {
  rows = $state.raw<T[]>([])
  error = $state.raw<unknown>(undefined)
  /** Nothing has been answered yet to what is asked now. */
  loading = $state(true)
  /** Further pages were read: the list stands still. */
  deep = $state(false)
  complete = $state(false)
  /** Which question is asked: each begins at the top. An answer to an earlier one is dropped. */
  question = $state(0)

  readonly #options: PagesOptions<T>
  /** Rows asked for so far: rows that arrive meanwhile are met again on later pages, and never skipped. */
  #asked = 0
  #busy = false
  readonly #first: (question: string) => Promise<T[]>

  constructor(options: PagesOptions<T>) {
    this.#options = options
    const first = gently(() => options.load(0, options.size), options.now)
    this.#first = (question) => first(NEVER, question)
  }

  /** The question has changed, or the reader wants the newest. */
  async restart(): Promise<void> {
    this.question += 1
    this.#busy = false
    this.loading = true
    this.deep = false
    await this.refresh()
  }

  /** The first page again; nothing while the list stands still. */
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

  /** After a failure, what failed. */
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
      // What is shown would be an answer to another question.
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

/** Keeps a list up to date while its component is there, and starts it anew when the question changes. */
export function live<T>(list: Pages<T>, question: () => unknown, everyMs: number): void {
  $effect(() => {
    question()
    untrack(() => void list.restart())
  })
  poll(async () => {
    await untrack(() => list.refresh())
    // So that it is asked less often while it fails.
    if (list.error !== undefined) throw list.error
  }, everyMs)
}

// Asks again and again, gently: never twice at a time, not while nobody looks, and less often while it fails.

import { untrack } from 'svelte'

export interface Poll<T> {
  /** The last answer; it stays when a later question fails. */
  readonly data: T | undefined
  /** Why the last question failed; gone with the next answer. */
  readonly error: unknown
  /** There was no answer yet since the question changed. */
  readonly loading: boolean
  refresh(): Promise<void>
}

const DELAY_MAX_MS = 30_000

/**
 * To be called while a component is set up. What `load` reads of the state before it first waits is its question: when that
 * changes, it is asked anew at once. The old answer stays until the new one is there (use {#key} where it must not).
 */
export function poll<T>(load: (signal: AbortSignal) => Promise<T>, everyMs: number): Poll<T> {
  let data = $state.raw<T | undefined>()
  let error = $state.raw<unknown>()
  let loading = $state(true)

  let timer: ReturnType<typeof setTimeout> | undefined
  let running: { abort: AbortController; ended: Promise<void> } | undefined
  let failures = 0
  let askedAt = 0
  let mounted = false

  function delay(): number {
    return Math.min(everyMs * 2 ** Math.min(failures, 8), Math.max(DELAY_MAX_MS, everyMs))
  }

  function plan(): void {
    clearTimeout(timer)
    if (mounted && !document.hidden) timer = setTimeout(ask, Math.max(0, askedAt + delay() - Date.now()))
  }

  function ask(): Promise<void> {
    clearTimeout(timer)
    running?.abort.abort()
    const abort = new AbortController()
    askedAt = Date.now()
    let question: Promise<T>
    try {
      question = load(abort.signal)
    } catch (thrown) {
      question = Promise.reject(thrown)
    }
    const ended = question.then(
      (answer) => {
        if (abort.signal.aborted) return
        data = answer
        error = undefined
        failures = 0
        settled(abort)
      },
      (thrown: unknown) => {
        if (abort.signal.aborted) return
        error = thrown
        failures += 1
        settled(abort)
      },
    )
    running = { abort, ended }
    return ended
  }

  function settled(abort: AbortController): void {
    loading = false
    if (running?.abort === abort) running = undefined
    plan()
  }

  $effect(() => {
    mounted = true
    untrack(() => {
      loading = true
      failures = 0
    })
    void ask()
    return () => {
      mounted = false
      clearTimeout(timer)
      running?.abort.abort()
      running = undefined
    }
  })

  $effect(() => {
    const looked = () => {
      if (document.hidden) clearTimeout(timer)
      else if (running === undefined) plan()
    }
    document.addEventListener('visibilitychange', looked)
    return () => document.removeEventListener('visibilitychange', looked)
  })

  return {
    get data() {
      return data
    },
    get error() {
      return error
    },
    get loading() {
      return loading
    },
    refresh: () => untrack(ask),
  }
}

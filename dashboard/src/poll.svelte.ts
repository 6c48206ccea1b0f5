// Polls gently: one request at a time, paused while the page is hidden, and less often after failures.

import { untrack } from 'svelte'

export interface Poll<T> {
  /** The latest response; kept when a later request fails. */
  readonly data: T | undefined
  /** The latest request's error; cleared by the next response. */
  readonly error: unknown
  /** There is no response to the current query yet. */
  readonly loading: boolean
  refresh(): Promise<void>
}

const DELAY_MAX_MS = 30_000

/**
 * Call this during component setup. The state that `load` reads synchronously is its query: when it changes, a request is sent
 * at once. The old response stays until the new one arrives (use {#key} where it must not).
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

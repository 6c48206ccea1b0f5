// Polls expensive responses less often: the pause is a hundred times the duration of the last request, so that an open page
// costs a broker at most a hundredth of a core. The faster of the last two requests counts, because one that was slow for
// another reason must not stop the page.

const SHARE = 100
const PAUSE_MAX_MS = 60_000
/** After the first response, which is usually the slowest. */
const FIRST_PAUSE_MAX_MS = 5_000

/** Returns the cached response until the pause is over, unless the query changed. */
export function gently<T>(
  load: (signal: AbortSignal) => Promise<T>,
  now: () => number = () => performance.now(),
): (signal: AbortSignal, question?: string) => Promise<T> {
  let last: { answer: T; question: string; tookMs: number; until: number } | undefined
  return async (signal, question = '') => {
    const asked = now()
    if (last !== undefined && last.question === question && asked < last.until) return last.answer
    const answer = await load(signal)
    const tookMs = now() - asked
    const pauseMs =
      last?.question === question
        ? Math.min(Math.min(tookMs, last.tookMs) * SHARE, PAUSE_MAX_MS)
        : Math.min(tookMs * SHARE, FIRST_PAUSE_MAX_MS)
    last = { answer, question, tookMs, until: now() + pauseMs }
    return answer
  }
}

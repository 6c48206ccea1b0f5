// Large answers are asked for less often: between two of them lies a hundred times what the last one took, so that a page
// that is left open costs a broker no more than a hundredth of one of its cores. The faster one of two answers counts: one that
// was late for other reasons must not stop a page.

const SHARE = 100
const PAUSE_MAX_MS = 60_000
/** After the first answer, which is the slowest as a rule. */
const FIRST_PAUSE_MAX_MS = 5_000

/** Answers from memory while it is too early to ask again, unless the question is another one. */
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

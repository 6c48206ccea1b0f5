// Large answers are asked for less often: between two of them lies a hundred times what the last one took, so that a page
// that is left open costs a broker no more than a hundredth of one of its cores.

const SHARE = 100
const PAUSE_MAX_MS = 60_000

/** Answers from memory while it is too early to ask again, unless the question is another one. */
export function gently<T>(
  load: (signal: AbortSignal) => Promise<T>,
  now: () => number = () => performance.now(),
): (signal: AbortSignal, question?: string) => Promise<T> {
  let last: { answer: T; question: string; until: number } | undefined
  return async (signal, question = '') => {
    const asked = now()
    if (last !== undefined && last.question === question && asked < last.until) return last.answer
    const answer = await load(signal)
    const took = now() - asked
    last = { answer, question, until: now() + Math.min(took * SHARE, PAUSE_MAX_MS) }
    return answer
  }
}

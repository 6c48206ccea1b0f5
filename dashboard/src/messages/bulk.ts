// Runs the same request for many items, a few at a time to limit the load on the broker.

const PARALLEL = 4

export interface Outcome<T> {
  done: number
  failed: { item: T; error: unknown }[]
}

export async function each<T>(
  items: readonly T[],
  ask: (item: T) => Promise<unknown>,
  progress: (finished: number) => void = () => {},
): Promise<Outcome<T>> {
  const outcome: Outcome<T> = { done: 0, failed: [] }
  let next = 0
  const work = async () => {
    while (next < items.length) {
      const item = items[next++]!
      try {
        await ask(item)
        outcome.done += 1
      } catch (error) {
        outcome.failed.push({ item, error })
      }
      progress(outcome.done + outcome.failed.length)
    }
  }
  await Promise.all(Array.from({ length: PARALLEL }, work))
  return outcome
}

/** Throws the server's message if everything failed; otherwise returns both counts. */
export function told<T>(outcome: Outcome<T>, verb: string): string {
  const [first] = outcome.failed
  if (first !== undefined && outcome.done === 0) throw first.error
  if (first === undefined) return `${outcome.done} ${verb}`
  const why = first.error instanceof Error ? first.error.message : String(first.error)
  return `${outcome.done} ${verb}, ${outcome.failed.length} not: ${why}`
}

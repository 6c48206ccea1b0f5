// Waiting for something to become so. Not `expect.poll`, which has to know its test and does not while several run at once.

import { expect, vi } from 'vitest'

/** A page asks for large answers less often: up to a minute later, where the broker is slow. */
export const PATIENCE_MS = 65_000

const MATCHERS = ['toBe', 'toEqual', 'toMatchObject', 'toMatch', 'toContain', 'toBeGreaterThan', 'toBeDefined'] as const
type Later = Record<(typeof MATCHERS)[number], (wanted?: unknown) => Promise<void>>

/** `await eventually(() => text(place)).toBe('3')` asks until it is so, and fails with what it was last. */
export function eventually(ask: () => unknown, patienceMs = PATIENCE_MS): Later & { not: Later } {
  const later = (negated: boolean) =>
    Object.fromEntries(
      MATCHERS.map((matcher) => [
        matcher,
        (wanted: unknown) =>
          vi.waitFor(
            async () => {
              const assertion = negated ? expect(await ask()).not : expect(await ask())
              const matches = assertion[matcher] as (wanted: unknown) => void
              matches.call(assertion, wanted)
            },
            { timeout: patienceMs, interval: 100 },
          ),
      ]),
    ) as Later
  return { ...later(false), not: later(true) }
}

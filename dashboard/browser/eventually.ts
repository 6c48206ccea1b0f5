// Waits for conditions. Not `expect.poll`, which does not support several tests running at once.

import { expect, vi } from 'vitest'

/** Pages poll large responses less often: up to a minute later, if the broker is slow. */
export const PATIENCE_MS = 65_000

const MATCHERS = ['toBe', 'toEqual', 'toMatchObject', 'toMatch', 'toContain', 'toBeGreaterThan', 'toBeDefined'] as const
type Later = Record<(typeof MATCHERS)[number], (wanted?: unknown) => Promise<void>>

/** `await eventually(() => text(place)).toBe('3')` polls until it is true, and fails with the last value. */
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

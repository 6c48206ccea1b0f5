/** Helpers shared by several tests. */

import assert from 'node:assert/strict';

import { QueenError } from 'queen-client';
import type { ErrorKind } from 'queen-client';

/** Retries without pauses. */
export const QUICK = { retryDelay: 1, maxRetryDelay: 5 };

/** For `assert.rejects`: a QueenError of this kind, with these fields. */
export function failing(kind: ErrorKind, more: Partial<QueenError> = {}, text?: RegExp) {
  return (error: unknown) => {
    assert.ok(error instanceof QueenError, String(error));
    assert.equal(error.kind, kind, error.message);
    for (const [name, value] of Object.entries(more)) {
      assert.equal(error[name as keyof QueenError], value, name);
    }
    if (text) {
      assert.match(error.message, text);
    }
    return true;
  };
}

/** Polls until the condition is true; the test's time limit applies. */
export async function until(condition: () => boolean): Promise<void> {
  while (!condition()) {
    await new Promise((resolve) => setTimeout(resolve, 2));
  }
}

/** A promise that can be resolved from outside. */
export function gate() {
  let open = () => {};
  const opened = new Promise<void>((resolve) => (open = resolve));
  return { open, opened };
}

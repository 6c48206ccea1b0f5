/** Retry policy. Pure: time and randomness are arguments. */

import type { QueenError } from './errors.js';

export interface RetryRules {
  /** Maximum of the first backoff in milliseconds; it doubles. */
  readonly retryDelay: number;
  readonly maxRetryDelay: number;
  readonly retryOn429: boolean;
  readonly honorRetryAfter: boolean;
}

export function isRetryable(error: QueenError, rules: RetryRules): boolean {
  switch (error.kind) {
    case 'rate_limited':
      return rules.retryOn429;
    case 'unavailable':
    case 'server':
    case 'network':
    case 'timeout':
      return true;
    default:
      return false;
  }
}

/** Full jitter: anything from nothing to the backoff, so that clients do not come back together. */
export function backoff(failures: number, rules: RetryRules, random: number): number {
  // 2 ** 30 first delays exceed any maximum.
  const longest = rules.retryDelay * 2 ** Math.min(failures - 1, 30);
  return Math.min(longest, rules.maxRetryDelay) * random;
}

/** Milliseconds to wait after this failure; the first has `failures` 1. */
export function retryDelay(error: QueenError, failures: number, rules: RetryRules, random: number): number {
  // Zero, or a date that has passed by our clock, would cause a busy loop.
  if (error.retryAfter && rules.honorRetryAfter) {
    return Math.min(error.retryAfter, rules.maxRetryDelay);
  }
  return backoff(failures, rules, random);
}

/** `Retry-After` in milliseconds: whole seconds or a date. Invalid values are ignored. */
export function readRetryAfter(header: string | null, now: number): number | undefined {
  const text = header?.trim() ?? '';
  if (/^\d+$/.test(text)) {
    return Number(text) * 1000;
  }
  // Every date has a letter; Date.parse would accept "-1" as one.
  const date = /[a-z]/i.test(text) ? Date.parse(text) : NaN;
  return Number.isNaN(date) ? undefined : Math.max(0, date - now);
}

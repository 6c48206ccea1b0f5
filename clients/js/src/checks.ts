/** Validates arguments before anything is sent. */

import { badUse } from './errors.js';

/** Counted like the broker does: in characters, not bytes or UTF-16 units. */
const NAME_CHARACTERS_MAX = 255;

export function checkName(what: string, name: unknown): string {
  if (typeof name !== 'string' || name === '') {
    throw badUse(`${what} must be a non-empty string`);
  }
  if (name.length > NAME_CHARACTERS_MAX && [...name].length > NAME_CHARACTERS_MAX) {
    throw badUse(`${what} is longer than ${NAME_CHARACTERS_MAX} characters`);
  }
  if (name.includes('\0')) {
    throw badUse(`${what} must not contain a NUL character`);
  }
  try {
    encodeURIComponent(name);
  } catch (cause) {
    throw badUse(`${what} contains half of a surrogate pair`, cause);
  }
  return name;
}

/** Rejects unknown options: ignoring a typo would do something else than intended. */
export function checkNoMore(rest: Record<string, never>): void {
  checkKnown(rest, []);
}

export function checkKnown(options: object, known: readonly string[]): void {
  const unknown = Object.keys(options).filter((name) => !known.includes(name));
  if (unknown.length > 0) {
    throw badUse(`unknown option: ${unknown.join(', ')}`);
  }
}

/** Milliseconds. */
export function checkTime(what: string, time: unknown): void {
  if (time !== undefined && !(typeof time === 'number' && time >= 0)) {
    throw badUse(`${what} must be a number of milliseconds, 0 or more: ${String(time)}`);
  }
}

/** Milliseconds, more than 0. */
export function checkSpan(what: string, time: unknown): void {
  checkTime(what, time);
  if (time === 0) {
    throw badUse(`${what} must be longer than 0`);
  }
}

export function checkCount(what: string, count: unknown): void {
  if (count !== undefined && !(Number.isInteger(count) && (count as number) >= 1)) {
    throw badUse(`${what} must be a whole number, 1 or more: ${String(count)}`);
  }
}

export function checkChoice(what: string, choice: unknown, choices: readonly string[]): void {
  if (choice !== undefined && !choices.includes(choice as string)) {
    throw badUse(`${what} must be one of ${choices.join(', ')}: ${String(choice)}`);
  }
}

export function checkFunction(what: string, given: unknown): void {
  if (typeof given !== 'function') {
    throw badUse(`${what} must be a function: it is ${given === null ? 'null' : typeof given}`);
  }
}

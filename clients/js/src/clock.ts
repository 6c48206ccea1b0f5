/** Time and timers. */

/** The longest delay of a timer; a longer one would fire at once. */
const TIMER_MAX = 2 ** 31 - 1;

/** A monotonic clock. */
export function now(): number {
  return performance.now();
}

export function after(milliseconds: number, action: () => void): ReturnType<typeof setTimeout> {
  return setTimeout(action, Math.min(milliseconds, TIMER_MAX));
}

/** Throws the signal's reason if it is aborted meanwhile. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const stop = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = after(milliseconds, () => {
      signal?.removeEventListener('abort', stop);
      resolve();
    });
    signal?.addEventListener('abort', stop, { once: true });
  });
}

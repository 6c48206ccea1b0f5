/** Telling the application what it asked to hear of. */

/** What a listener throws is the application's error and not that of a message: it surfaces as from any other callback. */
export function tell<A extends unknown[]>(listener: ((...told: A) => void) | undefined, ...told: A): void {
  try {
    listener?.(...told);
  } catch (thrown) {
    queueMicrotask(() => {
      throw thrown;
    });
  }
}

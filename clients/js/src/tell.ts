/** Calls listeners of the application. */

/** An exception of a listener does not affect messages: it surfaces like that of any other callback. */
export function tell<A extends unknown[]>(listener: ((...told: A) => void) | undefined, ...told: A): void {
  try {
    listener?.(...told);
  } catch (thrown) {
    queueMicrotask(() => {
      throw thrown;
    });
  }
}

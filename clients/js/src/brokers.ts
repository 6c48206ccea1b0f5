/** Chooses a broker for each request. Pure: the time is an argument. */

/** The affinity of a request. With neither field: the first broker. */
export interface Route {
  /** The URL of the broker that delivered the message. */
  readonly at?: string | undefined;
  /** Requests with the same key use the same broker. */
  readonly key?: number | undefined;
}

interface Broker {
  readonly url: string;
  /** Not used before then, unless all are down. */
  downUntil: number;
  /** How long it is avoided after a failure. */
  pause: number;
}

const PAUSE_FIRST = 1_000;
const PAUSE_MAX = 30_000;

/**
 * # Invariants
  * - A healthy broker is preferred to all that are down.
  * - With the same brokers healthy, a key always chooses the same one; losing a broker moves only its keys.
 */
export class Brokers {
  readonly #brokers: readonly Broker[];

  constructor(urls: readonly string[]) {
    this.#brokers = urls.map((url) => ({ url, downUntil: 0, pause: 0 }));
  }

  choose(route: Route, now: number): string {
    const order = this.#order(route);
    const healthy = order.find((broker) => broker.downUntil <= now);
    const due = (first: Broker, other: Broker) => (other.downUntil < first.downUntil ? other : first);
    return (healthy ?? order.reduce(due)).url;
  }

  get count(): number {
    return this.#brokers.length;
  }

  anyHealthy(now: number): boolean {
    return this.#brokers.some((broker) => broker.downUntil <= now);
  }

  down(url: string, now: number): void {
    const broker = this.#find(url);
    // Concurrent requests fail together and double the pause only once. The broker that failed last is due last, so that brokers
    // take turns while all are down.
    if (broker.downUntil <= now) {
      broker.pause = Math.min(Math.max(PAUSE_FIRST, broker.pause * 2), PAUSE_MAX);
    }
    broker.downUntil = now + broker.pause;
  }

  up(url: string): void {
    const broker = this.#find(url);
    broker.downUntil = 0;
    broker.pause = 0;
  }

  #find(url: string): Broker {
    return this.#brokers.find((broker) => broker.url === url)!;
  }

  #order(route: Route): readonly Broker[] {
    if (this.#brokers.length === 1) {
      return this.#brokers;
    }
    const { at, key } = route;
    if (at !== undefined) {
      return [...this.#brokers].sort((a, b) => Number(b.url === at) - Number(a.url === at));
    }
    if (key !== undefined) {
      const score = (broker: Broker) => mix(routeKey(broker.url) ^ key);
      return [...this.#brokers].sort((a, b) => score(b) - score(a));
    }
    return this.#brokers;
  }
}

const utf8 = new TextEncoder();

/**
  * FNV-1a over the names, separated by line breaks. All Queen clients use it, so that the producers and consumers of a
  * partition use the same broker whatever language they are written in.
 */
export function routeKey(...names: readonly (string | number)[]): number {
  let hash = 0x811c9dc5;
  for (const byte of utf8.encode(names.join('\n'))) {
    hash = Math.imul(hash ^ byte, 0x01000193);
  }
  return hash >>> 0;
}

/** The finalizer of Murmur3: FNV alone would favor brokers by the last character of their address. */
export function mix(hash: number): number {
  hash = Math.imul(hash ^ (hash >>> 16), 0x85ebca6b);
  hash = Math.imul(hash ^ (hash >>> 13), 0xc2b2ae35);
  return (hash ^ (hash >>> 16)) >>> 0;
}

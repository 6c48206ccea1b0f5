// Latencies in buckets that grow by one percent: bounded memory, and quantiles of that precision.

const GROWTH = Math.log(1.01);
/** From a microsecond to more than an hour. */
const BUCKETS = 2300;

export class Histogram {
  #counts = new Uint32Array(BUCKETS);
  #total = 0;

  add(ms) {
    const bucket = Math.floor(Math.log(Math.max(ms * 1000, 1)) / GROWTH);
    this.#counts[Math.min(bucket, BUCKETS - 1)] += 1;
    this.#total += 1;
  }

  /** In milliseconds, or null if nothing was added. */
  quantile(share) {
    if (this.#total === 0) return null;
    let left = Math.ceil(this.#total * share);
    const bucket = this.#counts.findIndex((count) => (left -= count) <= 0);
    return Math.exp((bucket + 0.5) * GROWTH) / 1000;
  }
}

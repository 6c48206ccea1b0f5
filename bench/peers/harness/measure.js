// A measured window: messages, latencies and CPU seconds between `begin` and `end`.

import { Histogram } from "./histogram.js";
import { cpuSeconds } from "./processes.js";

export class Measure {
  #state = "before";
  #messages = 0;
  #latencies = new Histogram();
  #begun;
  #ended;

  /** Only the first call has an effect. */
  begin() {
    if (this.#begun) return;
    this.#begun = { at: performance.now(), cpu: cpuSeconds() };
    this.#state = "during";
  }

  end() {
    this.#ended = { at: performance.now(), cpu: cpuSeconds() };
    this.#state = "after";
  }

  get isOver() {
    return this.#state === "after";
  }

  count(messages) {
    if (this.#state === "during") this.#messages += messages;
  }

  /** For an operation started at `from`, by `performance.now`. Operations started before the window do not count. */
  latency(from) {
    if (this.#begun && from >= this.#begun.at) this.#latencies.add(performance.now() - from);
  }

  outcome(name, violations) {
    const seconds = (this.#ended.at - this.#begun.at) / 1000;
    const used = (server) => this.#ended.cpu[server] - this.#begun.cpu[server];
    const cpu_s = Object.fromEntries(Object.keys(this.#ended.cpu).map((server) => [server, used(server)]));
    const { client, ...servers } = cpu_s;
    const server = Object.values(servers).reduce((sum, each) => sum + each, 0);
    return {
      name,
      messages: this.#messages,
      seconds,
      messages_per_s: this.#messages / seconds,
      p50_ms: this.#latencies.quantile(0.5),
      p99_ms: this.#latencies.quantile(0.99),
      cpu_s,
      server_cpu_us_per_message: this.#perMessage(server),
      client_cpu_us_per_message: this.#perMessage(client),
      violations,
    };
  }

  #perMessage(seconds) {
    return this.#messages > 0 ? (seconds / this.#messages) * 1e6 : null;
  }
}

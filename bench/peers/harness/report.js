// Formats results for people. Pure.

const COLUMNS = ["", "workload", "msg/s", "lowest", "highest", "p50 ms", "p99 ms", "server µs/msg", "client µs/msg"];

/** The median run by rate, with the rates of all and every violation of any. */
export function median(outcomes) {
  const sorted = outcomes.toSorted((a, b) => a.messages_per_s - b.messages_per_s);
  const rates = sorted.map((outcome) => outcome.messages_per_s);
  const violations = outcomes.flatMap((outcome) => outcome.violations);
  return { ...sorted[Math.floor(sorted.length / 2)], rates, violations };
}

export function table(variants) {
  const rows = variants.flatMap((variant) =>
    variant.workloads.map((workload, index) => [
      index === 0 ? variant.name : "",
      workload.name,
      whole(workload.messages_per_s),
      whole(workload.rates[0]),
      whole(workload.rates.at(-1)),
      digits(workload.p50_ms),
      digits(workload.p99_ms),
      whole(workload.server_cpu_us_per_message),
      whole(workload.client_cpu_us_per_message),
    ]),
  );
  const all = [COLUMNS, ...rows];
  const widths = COLUMNS.map((_, column) => Math.max(...all.map((row) => row[column].length)));
  const cell = (text, column) => (column < 2 ? text.padEnd(widths[column]) : text.padStart(widths[column]));
  return all.map((row) => row.map(cell).join("  ")).join("\n");
}

export function notes(variants) {
  return variants
    .flatMap(({ name, version, durability, ordering, workloads }) => [
      `${name}: ${version}\n  durability: ${durability}\n  order: ${ordering}`,
      ...workloads.flatMap((each) => each.violations.map((what) => `  VIOLATION in ${each.name}: ${what}`)),
    ])
    .join("\n");
}

function whole(value) {
  return value === null ? "-" : String(Math.round(value));
}

function digits(value) {
  return value !== null && value < 100 ? value.toPrecision(3) : whole(value);
}

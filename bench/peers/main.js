// The command line: which peers, how long, and where results go. Knows no peer's protocol.

import { readFileSync, writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { parseArgs } from "node:util";

import { cleanUp } from "./harness/processes.js";
import { median, notes, table } from "./harness/report.js";
import { WORKLOADS } from "./harness/workloads.js";

const PEERS = ["nats", "rabbitmq", "pgboss", "queen"];
const USAGE = `bench/peers/run ${PEERS.join("|")}... [options]
  --seconds S      measured time of each workload, 5
  --runs N         the median is shown, 3
  --json FILE      write everything there too
  --quick          half a second once, to see that nothing has rotted`;

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    seconds: { type: "string" },
    runs: { type: "string" },
    json: { type: "string" },
    quick: { type: "boolean", default: false },
    help: { type: "boolean", default: false },
  },
});
const options = {
  seconds: Number(values.seconds ?? (values.quick ? 0.5 : 5)),
  runs: Number(values.runs ?? (values.quick ? 1 : 3)),
};
const valid =
  positionals.length > 0 &&
  positionals.every((name) => PEERS.includes(name)) &&
  options.seconds > 0 &&
  Number.isInteger(options.runs) &&
  options.runs > 0;
if (values.help || !valid) {
  console.error(USAGE);
  process.exit(values.help ? 0 : 2);
}

for (const signal of ["SIGINT", "SIGTERM"]) {
  process.once(signal, () => cleanUp().finally(() => process.exit(130)));
}
// Errors of a consumer, which is only awaited at the end.
process.once("uncaughtException", (error) => {
  console.error(error);
  cleanUp().finally(() => process.exit(1));
});
try {
  const variants = [];
  for (const name of positionals) {
    const { peer } = await import(`./${name}.js`);
    for (const variant of await peer.variants(options)) variants.push(await measure(variant));
  }
  console.log(`\n${table(variants)}\n\n${notes(variants)}`);
  if (values.json) {
    writeFileSync(values.json, `${JSON.stringify({ machine: machine(), options, variants }, null, 2)}\n`);
  }
  const violated = variants.some((variant) => variant.workloads.some((workload) => workload.violations.length));
  process.exitCode = violated ? 1 : 0;
} catch (error) {
  console.error(error);
  process.exitCode = 1;
} finally {
  await cleanUp();
}
// A client library that keeps a timer must not keep the process alive.
process.exit();

/** All workloads in turn, then all again, so that a slow minute of the machine does not affect only one of them. */
async function measure({ name, version, durability, ordering, ordered, start }) {
  console.error(`${name}: ${version}, starting`);
  const server = await start();
  const outcomes = [];
  for (let run = 0; run < options.runs; run += 1) {
    for (const workload of WORKLOADS) {
      for (const outcome of await workload(server, `run-${run}`, { ...options, ordered })) {
        outcomes.push(outcome);
        console.error(`${name}: ${outcome.name} ${Math.round(outcome.messages_per_s)} msg/s`);
      }
    }
  }
  await server.close();
  await cleanUp();
  const names = [...new Set(outcomes.map((outcome) => outcome.name))];
  const workloads = names.map((each) => median(outcomes.filter((outcome) => outcome.name === each)));
  return { name, version, durability, ordering, workloads };
}

function machine() {
  const memory = /MemTotal:\s+(\d+)/.exec(readFileSync("/proc/meminfo", "utf8"));
  return { cores: cpus().length, cpu: cpus()[0].model, memory_kb: Number(memory?.[1]), node: process.version };
}

// pg-boss: jobs in a PostgreSQL table, claimed with SKIP LOCKED.

import { readFileSync } from "node:fs";
import { setTimeout as sleep } from "node:timers/promises";

import PgBoss from "pg-boss";

import { startPostgres } from "./harness/postgres.js";

/** As many as there are workers. */
const CONNECTIONS = 16;
const BATCH = 100;
/** `work` polls at most twice a second. A loop around `fetch` can poll more often, so it is used here. */
const EMPTY_WAIT_MS = 10;

export const peer = {
  variants: () => [
    {
      name: "pg-boss",
      version: `${version()}, PostgreSQL with fsync`,
      durability: "fsync before the confirmation of a send and of a completion",
      ordering: "none: any consumer claims about the oldest jobs",
      ordered: false,
      start: startBoss,
    },
  ],
};

async function startBoss() {
  const { port } = await startPostgres();
  const database = { host: "127.0.0.1", port, user: "postgres", database: "postgres", max: CONNECTIONS };
  const boss = new PgBoss({ ...database, schedule: false });
  boss.on("error", (error) => console.error("pg-boss:", error.message));
  await boss.start();
  return {
    pipelined: false,
    create: (queue) => boss.createQueue(queue),
    // Completed jobs stay for hours and prevent deleting their queue. Each queue has its own table.
    remove() {},
    left: (queue) => boss.getQueueSize(queue, { before: "completed" }),
    publisher: (queue) => publisher(boss, queue),
    consumer: (queue, _index, _count, handler) => consumer(boss, queue, handler),
    close: () => boss.stop({ graceful: false, wait: true }),
  };
}

function publisher(boss, name) {
  return {
    async send(_lane, messages) {
      if (messages.length > 1) await boss.insert(messages.map((data) => ({ name, data })));
      else if (!(await boss.send(name, messages[0]))) throw new Error("pg-boss did not take a job");
    },
    close() {},
  };
}

function consumer(boss, queue, handler) {
  let stopped = false;
  const work = (async () => {
    while (!stopped) {
      const jobs = await boss.fetch(queue, { batchSize: BATCH, priority: false });
      if (jobs.length === 0) {
        await sleep(EMPTY_WAIT_MS);
        continue;
      }
      handler.deliver(jobs.map((job) => job.data));
      await boss.complete(queue, jobs.map((job) => job.id));
      handler.acked(jobs.length);
    }
  })();
  return {
    stop() {
      stopped = true;
      return work;
    },
  };
}

function version() {
  const text = readFileSync(new URL("node_modules/pg-boss/package.json", import.meta.url), "utf8");
  return JSON.parse(text).version;
}

// Queen, through a plain HTTP client as any application could use.

import http from "node:http";
import { fileURLToPath } from "node:url";

import { startPostgres } from "./harness/postgres.js";
import { freePort, output, start } from "./harness/processes.js";

const BINARY = process.env.QUEEN_BIN ?? fileURLToPath(new URL("../../target/release/queen", import.meta.url));
/** Longer than any drain takes. */
const LEASE_S = 60;
const POLL_MS = 1000;

export const peer = {
  variants: () => [
    {
      name: "queen",
      version: `${output(BINARY, ["--version"])}, PostgreSQL with fsync`,
      durability: "fsync before the confirmation of a push and of an ack, shared by what commits together",
      ordering: "by partition, kept by the broker with any number of consumers; 64 partitions",
      ordered: true,
      start: startQueen,
    },
  ],
};

async function startQueen() {
  const postgres = await startPostgres();
  const port = await freePort();
  const agent = new http.Agent({ keepAlive: true, noDelay: true });
  const request = requester(agent, port);
  const env = {
    PG_HOST: "127.0.0.1",
    PG_PORT: String(postgres.port),
    PG_USER: "postgres",
    PG_PASSWORD: "postgres",
    PG_DB: "postgres",
    HOST: "127.0.0.1",
    PORT: String(port),
    LOG_LEVEL: "warn",
  };
  const ready = () => request("GET", "/health", [200]);
  await start("queen", BINARY, ["serve"], { place: postgres.place, env, ready });
  return {
    pipelined: false,
    create: (queue) => request("POST", "/api/v1/configure", [200], { queue, options: { leaseTime: LEASE_S } }),
    remove: (queue) => request("DELETE", `/api/v1/resources/queues/${queue}`, [200]),
    async left(queue) {
      const popped = await request("GET", `/api/v1/pop/queue/${queue}?batch=100&partitions=10`, [200, 204]);
      return popped?.messages?.length ?? 0;
    },
    publisher: (queue) => publisher(request, queue),
    consumer: (queue, _index, _count, handler) => consumer(request, queue, handler),
    close: () => agent.destroy(),
  };
}

function publisher(request, queue) {
  return {
    async send(lane, messages) {
      const items = messages.map((payload) => ({ queue, partition: String(lane), payload }));
      const pushed = await request("POST", "/api/v1/push", [201], { items });
      const taken = pushed.filter((item) => item.status === "queued").length;
      if (taken !== messages.length) throw new Error(`push accepted ${taken} of ${messages.length}`);
    },
    close() {},
  };
}

function consumer(request, queue, handler) {
  const path = `/api/v1/pop/queue/${queue}?batch=100&wait=true&timeout=${POLL_MS}`;
  let stopped = false;
  const work = (async () => {
    while (!stopped) {
      const popped = await request("GET", path, [200, 204]);
      const messages = popped?.messages ?? [];
      if (messages.length === 0) continue;
      handler.deliver(messages.map((message) => message.data));
      const acknowledgments = messages.map(({ transactionId, partitionId, leaseId }) => {
        return { transactionId, partitionId, leaseId, status: "completed" };
      });
      const acked = await request("POST", "/api/v1/ack/batch", [200], { acknowledgments });
      const taken = acked.filter((item) => item.success).length;
      if (taken !== messages.length) throw new Error(`ack accepted ${taken} of ${messages.length}`);
      handler.acked(taken);
    }
  })();
  return {
    stop() {
      stopped = true;
      return work;
    },
  };
}

/** Any status other than the expected one is an error. */
function requester(agent, port) {
  return (method, path, expected, body) =>
    new Promise((resolve, reject) => {
      const bytes = body && Buffer.from(JSON.stringify(body));
      const headers = bytes && { "content-type": "application/json", "content-length": bytes.length };
      const request = http.request({ agent, host: "127.0.0.1", port, method, path, headers }, (response) => {
        const chunks = [];
        response.on("data", (chunk) => chunks.push(chunk));
        response.on("error", reject);
        response.on("end", () => {
          const text = Buffer.concat(chunks).toString();
          const status = response.statusCode;
          if (!expected.includes(status)) reject(new Error(`${method} ${path} returned ${status}: ${text}`));
          else resolve(text ? JSON.parse(text) : undefined);
        });
      });
      request.on("error", reject);
      request.end(bytes);
    });
}

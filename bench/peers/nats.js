// NATS JetStream: file streams, with a subject and a consumer per lane.

import { writeFileSync } from "node:fs";
import { join } from "node:path";

import nats from "nats";

import { debian } from "./harness/install.js";
import { LANES } from "./harness/message.js";
import { account, folder, freePort, output, start } from "./harness/processes.js";
import { until } from "./harness/until.js";

const PREFETCH = 100;
/** A stream syncs messages one after the other; several streams in parallel are about twice as fast. */
const SYNCS = [
  {
    sync: "default",
    streams: 1,
    durability: "none before the confirmation: the page cache is synced every two minutes; acks are not confirmed",
  },
  {
    sync: "always",
    streams: 16,
    durability: "fsync of each message before its confirmation (sync_interval: always); acks are not confirmed",
  },
];
/** The first version with `sync_interval`. */
const SYNC_SINCE = [2, 10];

export const peer = {
  variants() {
    const binary = find();
    const version = output(binary, ["--version"]).replace(/^.*v/, "");
    const [major, minor] = version.split(".").map(Number);
    const canSync = major > SYNC_SINCE[0] || (major === SYNC_SINCE[0] && minor >= SYNC_SINCE[1]);
    if (!canSync) console.error(`nats: ${version} cannot fsync each message; set NATS_SERVER to one that can`);
    return SYNCS.filter(({ sync }) => canSync || sync === "default").map(({ sync, streams, durability }) => ({
      name: `nats sync ${sync}`,
      version,
      durability,
      ordering: `by subject, if the user gives each lane to one process; 64 subjects, streams: ${streams}`,
      ordered: true,
      start: () => startNats(binary, sync, streams),
    }));
  },
};

function find() {
  if (process.env.NATS_SERVER) return process.env.NATS_SERVER;
  debian("nats-server");
  return "nats-server";
}

async function startNats(binary, sync, count) {
  const owner = account("nats");
  const place = folder(owner);
  const port = await freePort();
  const settings = [`host: "127.0.0.1"`, `port: ${port}`, `jetstream {`, `  store_dir: "${place.data}"`];
  if (sync !== "default") settings.push(`  sync_interval: ${sync}`);
  const config = join(place.path, "nats.conf");
  writeFileSync(config, `${settings.join("\n")}\n}\n`);
  // Without a stack trace per publish the client is cheaper.
  const client = { servers: `127.0.0.1:${port}`, maxReconnectAttempts: 0, noAsyncTraces: true };
  const connect = () => nats.connect(client);
  const control = await start("nats", binary, ["-c", config], { owner, place, ready: connect });
  const { streams, consumers } = await control.jetstreamManager();
  const { streamOf, subjectOf } = names(count);
  const each = (topic, act) => Promise.all(Array.from({ length: count }, (_, lane) => act(streamOf(topic, lane))));
  const held = async (topic) => {
    const infos = await each(topic, (stream) => streams.info(stream));
    return infos.reduce((sum, { state }) => sum + state.messages, 0);
  };
  return {
    pipelined: true,
    async create(topic) {
      const [storage, retention] = [nats.StorageType.File, nats.RetentionPolicy.Workqueue];
      await each(topic, (name) => streams.add({ name, subjects: [`${name}.*`], storage, retention }));
      for (let lane = 0; lane < LANES; lane += 1) {
        const filter_subject = subjectOf(topic, lane);
        const ack_policy = nats.AckPolicy.Explicit;
        const durable_name = durableOf(lane);
        await consumers.add(streamOf(topic, lane), { durable_name, filter_subject, ack_policy });
      }
    },
    // Acks are not confirmed; the last ones may still be in transit.
    left: (topic) => until(() => held(topic), (messages) => messages === 0),
    remove: (topic) => each(topic, (stream) => streams.delete(stream)),
    publisher: async (topic) => publisher(await connect(), (lane) => subjectOf(topic, lane)),
    async consumer(topic, index, workers, handler) {
      // Every lane whose number is `index` modulo `workers`.
      const own = Array.from({ length: LANES }, (_, lane) => lane).filter((lane) => lane % workers === index);
      return consumer(await connect(), own.map((lane) => [streamOf(topic, lane), durableOf(lane)]), handler);
    },
    close: () => control.close(),
  };
}

function names(count) {
  const streamOf = (topic, lane) => `${topic}-${lane % count}`;
  return { streamOf, subjectOf: (topic, lane) => `${streamOf(topic, lane)}.${lane}` };
}

function durableOf(lane) {
  return `lane-${lane}`;
}

function publisher(connection, subjectOf) {
  const jetstream = connection.jetstream();
  return {
    async send(lane, messages) {
      const publish = (message) => jetstream.publish(subjectOf(lane), Buffer.from(JSON.stringify(message)));
      await Promise.all(messages.map(publish));
    },
    close: () => connection.close(),
  };
}

async function consumer(connection, lanes, handler) {
  const jetstream = connection.jetstream();
  const callback = (delivery) => {
    handler.deliver([delivery.json()]);
    delivery.ack();
    handler.acked(1);
  };
  const begin = async ([stream, durable]) => {
    const lane = await jetstream.consumers.get(stream, durable);
    return lane.consume({ max_messages: PREFETCH, callback });
  };
  const deliveries = await Promise.all(lanes.map(begin));
  return {
    async stop() {
      await Promise.all(deliveries.map((delivery) => delivery.close()));
      await connection.drain();
    },
  };
}

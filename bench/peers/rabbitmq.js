// RabbitMQ: a quorum queue per lane, publisher confirms, consumers with a prefetch.

import { writeFileSync } from "node:fs";
import { join } from "node:path";

import amqp from "amqplib";

import { debian } from "./harness/install.js";
import { LANES } from "./harness/message.js";
import { account, folder, freePort, output, start } from "./harness/processes.js";
import { until } from "./harness/until.js";

const PREFETCH = 100;
const QUORUM = { durable: true, arguments: { "x-queue-type": "quorum" } };
const MESSAGE = { persistent: true, mandatory: true };

export const peer = {
  variants() {
    debian("rabbitmq-server");
    return [
      {
        name: "rabbitmq quorum",
        version: `${output("dpkg-query", ["-W", "-f", "${Version}", "rabbitmq-server"])}, one node`,
        durability: "fsync of the Raft log before the confirmation, shared by many; acks are not confirmed",
        ordering: "by queue, if the user gives each lane to one process; 64 queues",
        ordered: true,
        start: startRabbit,
      },
    ];
  },
};

async function startRabbit() {
  const owner = account("rabbitmq");
  const place = folder(owner);
  const [port, names, distribution] = [await freePort(), await freePort(), await freePort()];
  // Erlang's name server, which would otherwise be started on its usual port and stay.
  const at = ["-port", String(names)];
  const ready = () => output("epmd", [...at, "-names"]);
  await start("epmd", "epmd", [...at, "-address", "127.0.0.1"], { owner, place, ready });

  const config = join(place.path, "rabbitmq.conf");
  writeFileSync(config, `listeners.tcp.default = 127.0.0.1:${port}\n`);
  const plugins = join(place.path, "enabled_plugins");
  writeFileSync(plugins, "[].\n");
  const env = {
    ERL_EPMD_PORT: String(names),
    ERL_EPMD_ADDRESS: "127.0.0.1",
    RABBITMQ_NODENAME: "queen-peers@localhost",
    RABBITMQ_DIST_PORT: String(distribution),
    RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS: "-kernel inet_dist_use_interface {127,0,0,1}",
    RABBITMQ_CONFIG_FILE: config,
    RABBITMQ_ENABLED_PLUGINS_FILE: plugins,
    RABBITMQ_MNESIA_BASE: join(place.data, "mnesia"),
    RABBITMQ_LOG_BASE: join(place.data, "log"),
    RABBITMQ_PID_FILE: join(place.data, "pid"),
    // So that the script becomes the server instead of waiting for it.
    RUNNING_UNDER_SYSTEMD: "true",
  };
  const connect = () => amqp.connect({ hostname: "127.0.0.1", port, username: "guest", password: "guest" });
  const control = await start("rabbitmq", script(), [], { owner, place, env, ready: connect });
  const channel = await control.createChannel();
  const each = (act) => Promise.all(Array.from({ length: LANES }, (_, lane) => act(lane)));
  const held = async (topic) => {
    const queues = await each((lane) => channel.checkQueue(`${topic}.${lane}`));
    return queues.reduce((sum, { messageCount }) => sum + messageCount, 0);
  };
  return {
    pipelined: true,
    create: (topic) => each((lane) => channel.assertQueue(`${topic}.${lane}`, QUORUM)),
    // What was not acknowledged returns when its channel closes, a little later.
    left: (topic) => until(() => held(topic), (messages) => messages === 0),
    remove: (topic) => each((lane) => channel.deleteQueue(`${topic}.${lane}`)),
    publisher: async (topic) => publisher(await connect(), topic),
    consumer: async (topic, index, count, handler) => consumer(await connect(), topic, index, count, handler),
    close: () => control.close(),
  };
}

/** Debian's command only hands on to this one, and would write its log elsewhere. */
function script() {
  if (process.env.RABBITMQ_SERVER) return process.env.RABBITMQ_SERVER;
  const files = output("dpkg", ["-L", "rabbitmq-server"]).split("\n");
  return files.find((file) => file.endsWith("/lib/rabbitmq/bin/rabbitmq-server"));
}

async function publisher(connection, topic) {
  const channel = await connection.createConfirmChannel();
  const publish = (lane, message) =>
    new Promise((resolve, reject) => {
      const done = (error) => (error ? reject(error) : resolve());
      channel.sendToQueue(`${topic}.${lane}`, Buffer.from(JSON.stringify(message)), MESSAGE, done);
    });
  channel.on("return", () => channel.emit("error", new Error("a message found no queue")));
  return {
    send: (lane, messages) => Promise.all(messages.map((message) => publish(lane, message))),
    close: () => connection.close(),
  };
}

/** Takes every lane whose number is `index` modulo `count`. */
async function consumer(connection, topic, index, count, handler) {
  const channel = await connection.createChannel();
  await channel.prefetch(PREFETCH);
  let last;
  let unacked = 0;
  // One acknowledgement for all that came in together.
  const acknowledge = () => {
    channel.ack(last, true);
    handler.acked(unacked);
    unacked = 0;
  };
  const receive = (delivery) => {
    handler.deliver([JSON.parse(delivery.content)]);
    last = delivery;
    if (unacked === 0) setImmediate(acknowledge);
    unacked += 1;
  };
  for (let lane = index; lane < LANES; lane += count) await channel.consume(`${topic}.${lane}`, receive);
  return {
    async stop() {
      await channel.close();
      await connection.close();
    },
  };
}

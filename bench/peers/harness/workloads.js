// The workloads for every peer. A server offers `create`, `left` and `remove` of a topic, and:
//   publisher(topic)                         { send(lane, messages), close() }, sent when the peer has confirmed
//   consumer(topic, index, count, handler)   { stop() }; it calls handler.deliver(messages), acknowledges them, then
//                                            calls handler.acked(how many)
//   pipelined                                sends many as concurrent single messages
// Each workload returns its outcomes. Every message sent is received, so that every loss shows.

import { setTimeout as sleep } from "node:timers/promises";

import { Checker } from "./checker.js";
import { Measure } from "./measure.js";
import { LANES, message, now, parts } from "./message.js";

const CONNECTIONS = 16;
const BATCH = 100;
const END_TO_END = { producers: 8, consumers: 8, batch: 10 };
const PACED_PER_S = 1000;
const WARMUP_S = 1;
/** After this long without progress, missing messages count as lost. */
const STALL_MS = 10_000;

export const WORKLOADS = [
  async (server, topic, options) => {
    const { checker, measure } = await publish(server, `${topic}-single`, options, 1);
    const { violations } = await drain(server, `${topic}-single`, options, checker);
    return [measure.outcome("publish-1", violations)];
  },
  async (server, topic, options) => {
    const { checker, measure } = await publish(server, `${topic}-many`, options, BATCH);
    const drained = await drain(server, `${topic}-many`, options, checker);
    const { violations } = drained;
    return [measure.outcome(`publish-${BATCH}`, violations), drained.measure.outcome(`consume-${BATCH}`, violations)];
  },
  async (server, topic, options) => {
    const produce = (producer, send, measure) => closedLoop(producer, send, measure, END_TO_END.batch);
    return [await endToEnd(server, `${topic}-flow`, options, "end-to-end", produce)];
  },
  async (server, topic, options) => {
    return [await endToEnd(server, `${topic}-pace`, options, `paced-${PACED_PER_S}`, openLoop)];
  },
];

async function publish(server, topic, options, batch) {
  const checker = new Checker();
  const measure = new Measure();
  await server.create(topic);
  const publishers = await Promise.all(range(CONNECTIONS, () => server.publisher(topic)));
  const [loops, each] = server.pipelined ? [batch, 1] : [1, batch];
  const work = publishers.flatMap((publisher, index) => {
    const producer = new Producer(index);
    const send = async (lane, messages) => {
      const started = performance.now();
      await publisher.send(lane, messages);
      checker.confirmed += messages.length;
      measure.count(messages.length);
      measure.latency(started);
    };
    return range(loops, () => closedLoop(producer, send, measure, each));
  });
  await Promise.all([...work, clock(measure, options)]);
  await Promise.all(publishers.map((publisher) => publisher.close()));
  return { checker, measure };
}

/** Measures from the first to the last message. */
async function drain(server, topic, options, checker) {
  const measure = new Measure();
  const consumers = await consume(server, topic, CONNECTIONS, checker, measure, () => measure.begin());
  await consumers.finish();
  measure.begin();
  measure.end();
  return { measure, violations: await closeTopic(server, topic, options, checker, consumers) };
}

async function endToEnd(server, topic, options, name, produce) {
  const checker = new Checker();
  const measure = new Measure();
  await server.create(topic);
  const delivered = (sent) => measure.latency(sent);
  const consumers = await consume(server, topic, END_TO_END.consumers, checker, measure, delivered);
  const publishers = await Promise.all(range(END_TO_END.producers, () => server.publisher(topic)));
  const work = publishers.map((publisher, index) => {
    const send = async (lane, messages) => {
      await publisher.send(lane, messages);
      checker.confirmed += messages.length;
    };
    return produce(new Producer(index), send, measure);
  });
  await Promise.all([...work, clock(measure, options)]);
  await consumers.finish();
  await Promise.all(publishers.map((publisher) => publisher.close()));
  return measure.outcome(name, await closeTopic(server, topic, options, checker, consumers));
}

/** Running consumers. `finish` returns when all confirmed messages are acknowledged, or progress has stopped. */
async function consume(server, topic, count, checker, measure, delivered) {
  let acked = 0;
  let moved = performance.now();
  const handler = {
    deliver(messages) {
      for (const each of messages) {
        const stamp = parts(each);
        checker.saw(stamp);
        delivered(stamp.sent / 1000 - performance.timeOrigin);
      }
    },
    acked(messages) {
      acked += messages;
      moved = performance.now();
      measure.count(messages);
    },
  };
  const consumers = await Promise.all(range(count, (index) => server.consumer(topic, index, count, handler)));
  return {
    async finish() {
      while (acked < checker.confirmed && performance.now() - moved < STALL_MS) await sleep(2);
    },
    async stop() {
      await Promise.all(consumers.map((consumer) => consumer.stop()));
    },
  };
}

async function closeTopic(server, topic, { ordered }, checker, consumers) {
  await consumers.stop();
  const violations = checker.violations(ordered, await server.left(topic));
  await server.remove(topic);
  return violations;
}

/** Sends the next message when the last is confirmed. */
async function closedLoop(producer, send, measure, batch) {
  while (!measure.isOver) {
    const lane = randomLane();
    await send(lane, range(batch, () => producer.next(lane)));
  }
}

/** Sends a message whenever one is due. If it has to wait, its latency starts when it was due: no peer can slow the clock. */
async function openLoop(producer, send, measure) {
  const every_us = (1e6 * END_TO_END.producers) / PACED_PER_S;
  for (let due = now() + (every_us * producer.index) / END_TO_END.producers; !measure.isOver; due += every_us) {
    const early_ms = (due - now()) / 1000;
    if (early_ms > 0) await sleep(early_ms);
    const lane = randomLane();
    // A timer is off by up to a millisecond, which is not the peer's fault.
    await send(lane, [producer.next(lane, early_ms > 0 ? now() : Math.round(due))]);
  }
}

async function clock(measure, { seconds }) {
  await sleep(1000 * Math.min(WARMUP_S, seconds));
  measure.begin();
  await sleep(1000 * seconds);
  measure.end();
}

class Producer {
  #seqs = new Array(LANES).fill(0);

  constructor(index) {
    this.index = index;
  }

  next(lane, sent) {
    this.#seqs[lane] += 1;
    return message(this.index, lane, this.#seqs[lane] - 1, sent);
  }
}

function randomLane() {
  return Math.floor(Math.random() * LANES);
}

function range(length, make) {
  return Array.from({ length }, (_, index) => make(index));
}

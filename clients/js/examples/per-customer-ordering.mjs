// Ordering per customer: one partition per customer. Each customer's events are processed in order, independently of others.
import { Queen } from 'queen-client';

const queen = new Queen(process.env.QUEEN_URL ?? 'http://localhost:6632');

/** @type {import('queen-client').Queue<{ customer: string, step: number }>} */
const steps = queen.queue('example-steps');

// A buffer combines many pushes into few requests and keeps the order of each partition.
const buffer = steps.buffer();
for (let step = 1; step <= 5; step++) {
  for (const customer of ['ada', 'grace', 'barbara']) {
    await buffer.push({ customer, step }, { partition: customer });
  }
}
await buffer.close(); // fails if messages could not be delivered

/** @type {Map<string, number>} */
const last = new Map();
const options = { batch: 10, partitions: 3, concurrency: 3, idleTimeout: 1_000 };
const consumer = steps.group('audit').consume(options, (message) => {
  const { customer, step } = message.data;
  if (step !== 1 && step !== (last.get(customer) ?? 0) + 1) {
    throw new Error(`${customer}: step ${step} out of order`);
  }
  last.set(customer, step);
});

const { handled, failed } = await consumer.done;
console.log(`${handled} in order, ${failed} out of order`);
await queen.close();

// A worker: several jobs at a time, failed ones come again.
import { Queen } from 'queen-client';

const queen = new Queen(process.env.QUEEN_URL ?? 'http://localhost:6632');

/** @type {import('queen-client').Queue<{ number: number }>} */
const jobs = queen.queue('example-jobs');

// Each job in a partition of its own: nobody waits for anybody.
const numbers = Array.from({ length: 20 }, (_, number) => number);
await jobs.push(
  numbers.map((number) => ({ number })),
  { partition: (job) => `job-${job.number}` },
);

const consumer = jobs.group('workers').consume({ concurrency: 4, idleTimeout: 1_000 }, async (message) => {
  if (message.data.number === 7 && message.retryCount === 0) {
    throw new Error('the first try of job 7 fails'); // nacked with this text, and delivered again
  }
  console.log(`job ${message.data.number} is done`);
});

const { handled, failed } = await consumer.done;
console.log(`${handled} handled, ${failed} failed`);
await queen.close();

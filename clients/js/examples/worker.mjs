// A worker: several jobs concurrently; failed ones are redelivered.
import { Queen } from 'queen-client';

const queen = new Queen(process.env.QUEEN_URL ?? 'http://localhost:6632');

/** @type {import('queen-client').Queue<{ number: number }>} */
const jobs = queen.queue('example-jobs');

// One partition per job, so that no job waits for another.
const numbers = Array.from({ length: 20 }, (_, number) => number);
await jobs.push(
  numbers.map((number) => ({ number })),
  { partition: (job) => `job-${job.number}` },
);

const consumer = jobs.group('workers').consume({ concurrency: 4, idleTimeout: 1_000 }, async (message) => {
  if (message.data.number === 7 && message.retryCount === 0) {
    throw new Error('the first attempt of job 7 fails'); // nacked with this text, and redelivered
  }
  console.log(`job ${message.data.number} is done`);
});

const { handled, failed } = await consumer.done;
console.log(`${handled} handled, ${failed} failed`);
await queen.close();

// Replay: a group is moved back to read again, for example after a bug was fixed. Other groups are not affected.
import { Queen } from 'queen-client';

const queen = new Queen(process.env.QUEEN_URL ?? 'http://localhost:6632');
await queen.admin.queues.delete('example-prices'); // left by an earlier run

/** @type {import('queen-client').Queue<number>} */
const queue = queen.queue('example-prices');
const prices = queue.partition('tea');
const totals = prices.group('totals');

await prices.push([3, 4, 5]);

async function sum() {
  let total = 0;
  await totals.consume({ batch: 10, idleTimeout: 500 }, (message) => (total += message.data)).done;
  return total;
}

console.log(`first: ${await sum()}`);
console.log(`nothing new: ${await sum()}`);
await queen.admin.groups.seek('totals', 'example-prices', 'beginning'); // or 'end', or a Date
console.log(`again: ${await sum()}`);
await queen.close();

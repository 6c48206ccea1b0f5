// Fan-out: every consumer group receives every message, at its own pace.
import { Queen } from 'queen-client';

const queen = new Queen(process.env.QUEEN_URL ?? 'http://localhost:6632');

/** @type {import('queen-client').Queue<{ user: string }>} */
const signUps = queen.queue('example-sign-ups');

await signUps.push([{ user: 'ada' }, { user: 'grace' }, { user: 'barbara' }]);

const mails = signUps.group('mails').consume({ batch: 10, idleTimeout: 1_000 }, (message) => {
  console.log(`welcome, ${message.data.user}`);
});
const statistics = signUps
  .group('statistics')
  .consume({ idleTimeout: 1_000 })
  .batches((messages) => {
    console.log(`${messages.length} more users`);
  });

const [mailed, counted] = await Promise.all([mails.done, statistics.done]);
console.log(`mails: ${mailed.handled}, statistics: ${counted.handled}`);
await queen.close();

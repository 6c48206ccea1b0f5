/** A consumer to be killed: handles two messages of its batch, prints them, and hangs in the third. */

import { Queen } from 'queen-client';

const [, , url, queue] = process.argv as unknown as [string, string, string, string];
let handled = 0;
await new Queen(url)
  .queue<number>(queue)
  .group('g')
  .consume({ batch: 10, lease: 2_000 }, async (message) => {
    if (handled === 2) {
      console.log('at work');
      await new Promise(() => {});
    }
    handled += 1;
    console.log(message.data);
  }).done;

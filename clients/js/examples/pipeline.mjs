// A pipeline: acknowledging an order and pushing its invoice are one transaction, so a crash in between repeats and loses nothing.
import { Queen } from 'queen-client';

/** @typedef {{ customer: string, total: number }} Order */
/** @typedef {Order & { due: string }} Invoice */

const queen = new Queen(process.env.QUEEN_URL ?? 'http://localhost:6632');
/** @type {import('queen-client').Queue<Order>} */
const orders = queen.queue('example-orders');
/** @type {import('queen-client').Queue<Invoice>} */
const invoices = queen.queue('example-invoices');

await orders.partition('ada').push([
  { customer: 'ada', total: 10 },
  { customer: 'ada', total: 20 },
]);
await orders.partition('grace').push({ customer: 'grace', total: 30 });

const billing = orders.group('billing').consume({ batch: 10, idleTimeout: 1_000 }, async (message) => {
  const order = message.data;
  const invoice = { ...order, due: 'in 30 days' };
  await queen.transaction().ack(message).push(invoices.partition(order.customer), invoice).commit();
});

const mailing = invoices.group('mailing').consume({ batch: 10, idleTimeout: 2_000 }, ({ data }) => {
  console.log(`${data.customer} owes ${data.total}, due ${data.due}`);
});

const [billed, mailed] = await Promise.all([billing.done, mailing.done]);
console.log(`${billed.handled} orders, ${mailed.handled} invoices`);
await queen.close();

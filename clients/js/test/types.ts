/** Compiled and never run: code that the types must accept or reject. */

import type { Consumer, Message, Queen } from 'queen-client';

interface Order {
  id: string;
}

export async function typed(queen: Queen): Promise<Consumer> {
  const orders = queen.queue<Order>('orders');
  await orders.push([{ id: 'a' }, { id: 'b' }], { transactionId: (order) => order.id, partition: (order) => order.id });
  // @ts-expect-error a payload of another type
  await orders.push(5);
  // @ts-expect-error the partition is already set
  await orders.partition('p').push({ id: 'a' }, { partition: 'q' });
  // @ts-expect-error labels have no partitions
  queen.discover({ namespace: 'n' }).partition('p');
  // @ts-expect-error groups do not push
  orders.group('g').push({ id: 'a' });
  const matrix = queen.queue<number[]>('matrix');
  await matrix.push([[1, 2], [3]]);
  await matrix.pushOne([1, 2]);
  // @ts-expect-error an array means many messages, and these are not of the type
  await matrix.push([1, 2]);
  queen.transaction().push(orders, { id: 'a' }).push(orders.partition('p'), [{ id: 'a' }, { id: 'b' }]);
  queen.transaction().push('orders', [{ id: 'a' }], { partition: (order) => order.id });
  // @ts-expect-error a payload of another type
  queen.transaction().push(orders, 5);
  // @ts-expect-error groups are not pushed to
  queen.transaction().push(orders.group('g'), { id: 'a' });
  // @ts-expect-error an unknown status
  await queen.ack([], { status: 'maybe' });

  const moved: number = await queen.admin.groups.seek('g', 'q', 'end');
  const forecast: { messagesSkipped: number } = await queen.admin.groups.seek('g', 'q', 'end', { dryRun: true });
  // @ts-expect-error an unknown option
  await queen.admin.groups.seek('g', 'q', 'end', { dryrun: moved + forecast.messagesSkipped });

  const parse = (payload: unknown): number => Number(payload);
  await using buffer = queen.queue('numbers', { parse }).buffer();
  await buffer.push(1);
  // @ts-expect-error pushes take what `parse` returns
  await buffer.push('1');

  const messages: Message<Order>[] = await orders.group('g').pop();
  const consumer = orders.group('g').consume({ batch: 2 }, ({ data }) => data.id + messages.length);
  return consumer;
}

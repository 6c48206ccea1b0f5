"""A pipeline: a stage acknowledges a message and pushes its result in one transaction, so nothing is lost or repeated."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

from queen_client import AsyncMessage, AsyncQueen

URL = os.environ.get("QUEEN_URL", "http://localhost:6632")


async def main() -> None:
    async with AsyncQueen(URL) as queen:
        run = uuid.uuid4().hex[:8]
        orders, invoices = f"orders-{run}", f"invoices-{run}"
        await queen.queue(orders).push_many([{"order": number, "total": 10 * number} for number in range(1, 6)])

        async def invoice(message: AsyncMessage[Any]) -> None:
            async with queen.transaction() as transaction:
                transaction.ack(message)
                bill = {"order": message.data["order"], "amount": message.data["total"]}
                transaction.push(invoices, bill, partition=message.partition)

        # The transaction acknowledges the message; the consumer takes that into account.
        await queen.queue(orders).group("billing").consume(invoice, batch=5, limit=5)

        async def send(message: AsyncMessage[Any]) -> None:
            print(f"invoice of order {message.data['order']}: {message.data['amount']}")

        await queen.queue(invoices).group("mail").consume(send, batch=5, limit=5)
        for name in (orders, invoices):
            await queen.admin.queues.delete(name)


asyncio.run(main())

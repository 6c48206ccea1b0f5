"""Ordering per customer: one partition per customer keeps its order, and a slow customer does not hold up others."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections import defaultdict
from dataclasses import dataclass

from queen_client import AsyncMessage, AsyncQueen

URL = os.environ.get("QUEEN_URL", "http://localhost:6632")
CUSTOMERS = ["ada", "grace", "edsger", "barbara"]
EACH = 25


@dataclass
class Event:
    customer: str
    number: int


async def main() -> None:
    async with AsyncQueen(URL) as queen:
        name = f"events-{uuid.uuid4().hex[:8]}"
        events = queen.queue(name, type=Event)

        # A buffer combines these into a few requests, and keeps the order of each partition.
        async with events.buffer() as buffer:
            for number in range(EACH):
                for customer in CUSTOMERS:
                    await buffer.push(Event(customer, number), partition=customer)

        seen: dict[str, list[int]] = defaultdict(list)

        async def handle(message: AsyncMessage[Event]) -> None:
            seen[message.data.customer].append(message.data.number)

        limit = EACH * len(CUSTOMERS)
        await events.group("ledger").consume(handle, batch=10, partitions=2, concurrency=4, limit=limit)
        for customer, numbers in sorted(seen.items()):
            assert numbers == list(range(EACH)), "never happens"
            print(f"{customer}: {len(numbers)} in order")
        await queen.admin.queues.delete(name)


asyncio.run(main())

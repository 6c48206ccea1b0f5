"""Replay: a group is moved back and reads stored messages again. Other groups are not affected."""

from __future__ import annotations

import asyncio
import os
import uuid

from queen_client import AsyncQueen

URL = os.environ.get("QUEEN_URL", "http://localhost:6632")


async def main() -> None:
    async with AsyncQueen(URL) as queen:
        name = f"payments-{uuid.uuid4().hex[:8]}"
        payments = queen.queue(name)
        await payments.push_many([{"amount": amount} for amount in (10, 20, 30)])

        async def total() -> int:
            messages = await payments.group("reports").pop(batch=100)
            if messages:
                await queen.ack(messages)
            return sum(message.data["amount"] for message in messages)

        print(f"first report: {await total()}")
        print(f"nothing new: {await total()}")
        await queen.admin.groups.seek("reports", name, "beginning")
        print(f"again: {await total()}")
        await queen.admin.queues.delete(name)


asyncio.run(main())

"""Fan-out: every consumer group reads the whole queue at its own pace."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

from queen_client import AsyncMessage, AsyncQueen

URL = os.environ.get("QUEEN_URL", "http://localhost:6632")


async def main() -> None:
    async with AsyncQueen(URL) as queen:
        name = f"signups-{uuid.uuid4().hex[:8]}"
        signups = queen.queue(name)
        await signups.push_many([{"user": "ada"}, {"user": "grace"}, {"user": "edsger"}])

        async def welcome(message: AsyncMessage[Any]) -> None:
            print(f"welcome mail to {message.data['user']}")

        async def count(messages: list[AsyncMessage[Any]]) -> None:
            print(f"{len(messages)} more users")

        await asyncio.gather(
            signups.group("mail").consume(welcome, limit=3),
            signups.group("statistics").consume_batches(count, limit=3),
        )
        await queen.admin.queues.delete(name)


asyncio.run(main())

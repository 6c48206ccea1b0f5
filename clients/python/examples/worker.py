"""A worker: processes four jobs concurrently. A failed job is retried until it becomes a dead letter."""

from __future__ import annotations

import asyncio
import os
import uuid
from typing import Any

from queen_client import AsyncMessage, AsyncQueen

URL = os.environ.get("QUEEN_URL", "http://localhost:6632")


async def resize(message: AsyncMessage[Any]) -> None:
    if message.data["image"] == "broken.png":
        raise ValueError("not an image")
    print(f"resized {message.data['image']}")


async def main() -> None:
    async with AsyncQueen(URL) as queen:
        name = f"images-{uuid.uuid4().hex[:8]}"
        await queen.admin.queues.configure(name, retry_limit=1)
        images = queen.queue(name)
        for image in ("cat.png", "dog.png", "broken.png", "bird.png"):
            await images.partition(image).push({"image": image})

        # A real worker has no idle_timeout, and stops on a signal: `await consumer.stop()`.
        summary = await images.group("resizers").consume(
            resize, concurrency=4, idle_timeout=1.0, on_error=lambda error: print(f"failed: {error}")
        )
        letters = await images.group("resizers").dead_letters().list()
        print(f"{summary.handled} handled, {letters['total']} given up: {letters['messages'][0]['errorMessage']}")
        await queen.admin.queues.delete(name)


asyncio.run(main())

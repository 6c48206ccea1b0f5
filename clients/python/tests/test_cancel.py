"""Consumers that are cancelled at every possible point: afterwards no lease is held. The broker is fake."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from made_up import delivery, http
from queen_client import AsyncMessage, AsyncQueue
from queen_client.delivery import Lease
from queen_client.pop import Source

#: More steps of the event loop than everything takes.
_STEPS = 60
_MESSAGES = 3


class Broker:
    """Delivers messages one by one, takes them back, and lets pops wait. Every response takes a few steps."""

    def __init__(self) -> None:
        self.free = [f"{partition}1" for partition in "abc"[:_MESSAGES]]
        #: By lease.
        self.leased: dict[str, str] = {}
        self._leases = 0
        #: Ended waits.
        self._ended: set[str] = set()

    async def reply(self, request: httpx.Request) -> httpx.Response:
        await self._work()
        if request.method == "DELETE":
            self._ended.add(request.url.path.rsplit("/", 1)[-1])
            return httpx.Response(200, json={"ended": True})
        if request.method == "POST":
            response = self._settle(json.loads(request.content))
        else:
            response = await self._pop(request.url.params["waitId"])
        await self._work()
        return response

    def _settle(self, body: Any) -> httpx.Response:
        results = []
        for ack in body.get("acknowledgments", [body]):
            name = self.leased.pop(ack["leaseId"], None)
            if name is not None and ack["status"] == "retry":
                self.free.append(name)
            results.append({"transactionId": ack["transactionId"], "success": name is not None, "leaseReleased": True})
        return httpx.Response(200, json=results)

    async def _pop(self, wait: str) -> httpx.Response:
        while not self.free and wait not in self._ended:
            await asyncio.sleep(0)
        if not self.free:
            return httpx.Response(204)
        self._leases += 1
        lease, name = f"lease-{self._leases}", self.free.pop(0)
        self.leased[lease] = name
        fields = {**delivery(name, Lease(lease, 300, 0)).fields, "createdAt": "2026-01-01T00:00:00Z"}
        try:
            # The response is in transit. The broker notices a cut connection, and takes the message back.
            await self._work()
        except asyncio.CancelledError:
            self.free.append(self.leased.pop(lease))
            raise
        return httpx.Response(200, json={"messages": [fields], "leaseId": lease, "leaseSeconds": 300})

    async def _work(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("stopping", [None, 0, 5, 12])
def test_wherever_a_consumer_is_cancelled_it_leaves_no_lease(stopping: int | None, together: bool) -> None:
    """All tasks at once, like a loop that ends; `stopping`: this many steps after the consumer was asked to stop."""
    for steps in range(_STEPS):
        broker = Broker()

        async def handler(message: AsyncMessage[Any]) -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        async def handler_of_batches(messages: list[AsyncMessage[Any]]) -> None:
            await handler(messages[0])

        async def cancelled_after(steps: int) -> None:
            queue = AsyncQueue[Any](http(broker.reply), Source(queue="q"), lambda value: value)
            group = queue.group("g")
            if together:
                consumer = group.start_batches(handler_of_batches, concurrency=2)
            else:
                consumer = group.start(handler, concurrency=2)
            for _ in range(steps):
                await asyncio.sleep(0)
            if stopping is not None:
                consumer.request_stop()
                for _ in range(stopping):
                    await asyncio.sleep(0)
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert broker.leased == {}, f"after {steps} steps"

        asyncio.run(cancelled_after(steps))

"""Closing a client, and ending its loop, while consumers and buffers are active."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from typing import Any

import httpx
import pytest

from conftest import Api
from made_up import acked, delivery, http, pushed
from queen_client import AsyncBuffer, AsyncMessage, AsyncQueen, AsyncQueue, Closed, Undelivered
from queen_client.buffer import Limits
from queen_client.delivery import Lease
from queen_client.pop import Source
from test_consume import PATIENCE, left, until
from test_threads import line, program


async def test_a_client_that_is_closed_stops_its_consumers(broker: str, queue: str, kind: str) -> None:
    api, other = Api(broker, kind == "sync"), Api(broker, False)
    await api.do(api.queen.queue(queue).push_many, [1, 2, 3])
    began, go_on = threading.Event(), threading.Event()
    messages: list[Any] = []

    def handler(message: Any) -> None:
        messages.append(message)
        began.set()
        go_on.wait(PATIENCE)
        # It needs the client, although that is being closed.
        message.ack()

    async def async_handler(message: Any) -> None:
        messages.append(message)
        began.set()
        await until(go_on.is_set)
        await message.ack()

    reader = api.queen.queue(queue).group("g")
    await api.do(reader.start, handler if api.sync else async_handler, batch=3, lease=300)
    await until(began.is_set)
    closing = asyncio.ensure_future(api.close())
    await until(lambda: messages[0].stopping)
    with pytest.raises(Closed):
        await api.do(reader.start, api.handler(print))
    go_on.set()
    await closing
    assert await left(other, queue, "g") == [2, 3]
    await other.close()


async def test_a_client_that_is_closed_delivers_what_its_buffers_hold(broker: str, queue: str, kind: str) -> None:
    api, other = Api(broker, kind == "sync"), Api(broker, False)
    buffer = await api.do(api.queen.queue(queue).buffer, linger=PATIENCE)
    receipt = await api.do(buffer.push, 1)
    await api.close()
    assert receipt.done()
    assert await left(other, queue, "g") == [1]
    await other.close()


async def test_what_buffers_could_not_deliver_a_close_tells_all_together() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(401) if b"bad" in request.content else pushed(request)

    queen = AsyncQueen("http://broker-0")
    queen._http = http(reply)
    made = [AsyncBuffer[Any](queen._http, "q", None, Limits(linger=30, on_error=lambda error: None)) for _ in range(3)]
    for buffer, payload in zip(made, ("bad 1", "good", "bad 2")):
        await buffer.push(payload)
    with pytest.raises(Undelivered) as caught:
        await queen.close()
    assert sorted(message.payload for message, _ in caught.value.messages) == ["bad 1", "bad 2"]
    with pytest.raises(Closed):
        await queen.queue("q").push(1)


async def test_handlers_may_push_into_a_buffer_until_they_are_done(broker: str, queue: str) -> None:
    queen = AsyncQueen(broker)
    await queen.queue(queue).push("in")
    buffer = queen.queue(f"{queue}-out").buffer(linger=PATIENCE)
    messages: list[AsyncMessage[Any]] = []

    async def handler(message: AsyncMessage[Any]) -> None:
        messages.append(message)
        await until(lambda: message.stopping)
        await buffer.push("out")

    consumer = queen.queue(queue).group("g").start(handler)
    await until(lambda: messages)
    await queen.close()
    assert (await consumer.wait()).handled == 1
    async with AsyncQueen(broker) as other:
        assert [message.data for message in await other.queue(f"{queue}-out").pop()] == ["out"]


def test_a_loop_that_ends_by_cancelling_everything_leaves_no_lease(broker: str, queue: str) -> None:
    """Like `asyncio.run` after Ctrl-C, before Python 3.11."""
    began = threading.Event()

    async def handler(message: AsyncMessage[Any]) -> None:
        began.set()
        await asyncio.sleep(PATIENCE)

    async def consume() -> None:
        async with AsyncQueen(broker) as queen:
            await queen.queue(queue).push_many([1, 2])
            await queen.queue(queue).group("g").consume(handler, batch=2, lease=300, concurrency=2)

    async def all_cancelled() -> None:
        main = asyncio.ensure_future(consume())
        await until(began.is_set)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert main.cancelled()
        async with AsyncQueen(broker) as queen:
            assert [message.data for message in await queen.queue(queue).group("g").pop(batch=5)] == [1, 2]

    asyncio.run(all_cancelled())


def test_a_pop_that_receives_what_another_worker_gives_back_at_the_end_gives_it_back_too() -> None:
    """The broker has not noticed yet that the pop is abandoned."""
    began, given_back = asyncio.Event(), asyncio.Event()
    waiting: list[str] = []
    returned: list[tuple[str, str]] = []

    async def reply(request: httpx.Request) -> httpx.Response:
        if request.method == "DELETE":
            return httpx.Response(200, json={"ended": True})
        if request.method == "POST":
            body = json.loads(request.content)
            returned.append((body["leaseId"], body["status"]))
            given_back.set()
            return acked(request)
        waiting.append("pop")
        lease = f"lease-{len(waiting)}"
        if len(waiting) > 1:
            await given_back.wait()
        fields = {**delivery("a1", Lease(lease, 300, 0)).fields, "createdAt": "2026-01-01T00:00:00Z"}
        return httpx.Response(200, json={"messages": [fields], "leaseId": lease, "leaseSeconds": 300})

    async def handler(message: AsyncMessage[Any]) -> None:
        began.set()
        await asyncio.sleep(PATIENCE)

    async def all_cancelled() -> None:
        queen = AsyncQueen("http://broker-0")
        queen._http = http(reply)
        queue = AsyncQueue[Any](queen._http, Source(queue="q"), lambda value: value)
        main = asyncio.ensure_future(queue.group("g").consume(handler, concurrency=2))
        await until(lambda: began.is_set() and len(waiting) == 2)
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert main.cancelled()
        assert returned == [("lease-1", "retry"), ("lease-2", "retry")]
        await queen.close()

    asyncio.run(all_cancelled())


async def test_when_a_close_returns_no_request_is_under_way() -> None:
    """A connection in progress would leave its socket open."""
    under_way: set[str] = set()

    async def reply(request: httpx.Request) -> httpx.Response:
        under_way.add("a push")
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            under_way.clear()
        raise AssertionError("unreachable")

    queen = AsyncQueen("http://broker-0")
    queen._http = http(reply)
    queue = AsyncQueue[Any](queen._http, Source(queue="q"), lambda value: value)
    pushing = asyncio.ensure_future(queue.push(1))
    await until(lambda: under_way)
    await queen.close()
    assert not under_way
    with pytest.raises(Closed):
        await pushing


async def test_ctrl_c_under_asyncio_run_gives_back_what_a_consumer_holds(broker: str, queue: str) -> None:
    async with AsyncQueen(broker) as queen:
        await queen.queue(queue).push_many([1, 2])
        process = program(broker, queue, """
import asyncio
import signal
from queen_client import AsyncQueen
async def handle(message):
    print("began", flush=True)
    await asyncio.sleep(1000)
async def main():
    async with AsyncQueen(broker) as queen:
        await queen.queue(queue).group("g").consume(handle, batch=5, lease=300)
asyncio.run(main())
""")
        assert await asyncio.to_thread(line, process) == "began"
        process.send_signal(signal.SIGINT)
        _, errors = await asyncio.to_thread(process.communicate, None, PATIENCE)
        assert "KeyboardInterrupt" in errors
        assert [message.data for message in await queen.queue(queue).group("g").pop(batch=5)] == [1, 2]

"""Consumers of both clients with a real broker: stops, crashes, leases."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import httpx
import pytest

from clock import Clock
from conftest import Api
from made_up import http, replies
from queen_client import AsyncMessage, AsyncQueen, AsyncQueue, Unauthorized
from queen_client.pop import Source

PATIENCE = 20.0


async def until(condition: Any) -> None:
    ends = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        await asyncio.sleep(0.01)


async def left(api: Api, queue: str, group: str) -> list[Any]:
    """The messages available to the group now."""
    messages = await api.do(api.queen.queue(queue).group(group).pop, batch=100, partitions=100)
    return [message.data for message in messages]


async def test_a_consumer_handles_all_in_order_and_acknowledges_it(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    for partition in ("a", "b"):
        await api.do(handle.partition(partition).push_many, [f"{partition}{number}" for number in range(10)])
    seen: list[str] = []
    reader = handle.group("g")
    summary = await api.do(reader.consume, api.handler(lambda m: seen.append(m.data)), batch=4, concurrency=2, limit=20)
    assert (summary.handled, summary.failed) == (20, 0)
    for partition in ("a", "b"):
        assert [one for one in seen if one[0] == partition] == [f"{partition}{number}" for number in range(10)]
    assert (await api.do(api.queen.admin.queues.depth, queue, "g"))["pending"] == 0


async def test_a_stopped_consumer_leaves_no_lease_behind(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    await api.do(handle.push_many, list(range(10)))
    began, go_on = threading.Event(), threading.Event()
    seen: list[Any] = []

    def handler(message: Any) -> None:
        seen.append(message)
        began.set()
        go_on.wait(PATIENCE)

    async def async_handler(message: Any) -> None:
        await asyncio.to_thread(handler, message)

    consumer = await api.do(handle.group("g").start, handler if api.sync else async_handler, batch=10, lease=300)
    await until(began.is_set)
    stopping = asyncio.ensure_future(api.do(consumer.stop))
    await until(lambda: seen[0].stopping)
    go_on.set()
    summary = await stopping
    assert (summary.handled, len(seen)) == (1, 1)
    assert await left(api, queue, "g") == list(range(1, 10))
    assert await api.do(consumer.stop) == summary


async def test_a_consumer_that_waits_stops_at_once(api: Api, queue: str) -> None:
    async def parked() -> float:
        page = await api.do(api.queen.admin.prometheus)
        return float(re.search(r"^queen_parked_pops (\S+)$", page, re.MULTILINE)[1])  # type: ignore[index]

    before = await parked()
    handle = api.queen.queue(queue)
    consumer = await api.do(handle.group("g").start, api.handler(print), concurrency=3, wait=30)
    ends = time.monotonic() + PATIENCE
    while await parked() < before + 3:
        assert time.monotonic() < ends, "they do not wait"
        await asyncio.sleep(0.05)
    # Before the pops' wait of 30 s is over.
    await asyncio.wait_for(api.do(consumer.stop), 25)
    await api.do(handle.push, 1)
    assert await left(api, queue, "g") == [1]


async def test_a_handler_that_takes_too_long_to_stop_is_left_and_its_message_given_back(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    await api.do(handle.push_many, [1, 2])
    began, release = threading.Event(), threading.Event()

    def stuck(message: Any) -> None:
        began.set()
        release.wait(PATIENCE)

    async def async_stuck(message: Any) -> None:
        began.set()
        await asyncio.sleep(PATIENCE)

    consumer = await api.do(handle.group("g").start, stuck if api.sync else async_stuck, batch=2, lease=300)
    await until(began.is_set)
    summary = await api.do(consumer.stop, 0.1)
    release.set()
    assert (summary.handled, summary.failed) == (0, 0)
    assert await left(api, queue, "g") == [1, 2]


async def test_a_cancelled_consumer_gives_back_what_it_holds(broker: str, queue: str) -> None:
    async with AsyncQueen(broker) as queen:
        handle = queen.queue(queue)
        await handle.push_many([1, 2])
        began = asyncio.Event()
        cancelled: list[bool] = []

        async def handler(message: AsyncMessage[Any]) -> None:
            began.set()
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        task = asyncio.ensure_future(handle.group("g").consume(handler, batch=2, lease=300))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cancelled == [True]
        assert [message.data for message in await handle.group("g").pop(batch=5)] == [1, 2]


async def test_a_consumer_that_is_killed_in_the_middle_of_a_batch_loses_nothing(broker: str, queue: str) -> None:
    async with AsyncQueen(broker) as queen:
        await queen.queue(queue).push_many(list(range(5)))
        # Prints what it handles, and hangs in the third.
        program = f"""
import time
from queen_client import Queen
def handle(message):
    print(message.data, flush=True)
    if message.data == 2:
        time.sleep(1000)
with Queen({broker!r}) as queen:
    queen.queue({queue!r}).group("g").consume(handle, batch=5, lease=2)
"""
        process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        lines = [await asyncio.to_thread(process.stdout.readline) for _ in range(3)]
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert lines == ["0\n", "1\n", "2\n"]
        seen: list[int] = []

        async def handler(message: AsyncMessage[Any]) -> None:
            seen.append(message.data)

        await queen.queue(queue).group("g").consume(handler, batch=5, limit=5)
        assert seen == [0, 1, 2, 3, 4]


async def test_a_slow_batch_is_acknowledged_bit_by_bit(broker: str, queue: str) -> None:
    async with AsyncQueen(broker) as queen:
        await queen.queue(queue).push_many([1, 2, 3])
        waiting = asyncio.Event()

        async def handler(message: AsyncMessage[Any]) -> None:
            if message.data == 1:
                await asyncio.sleep(1.1)
            if message.data == 3:
                waiting.set()
                await asyncio.sleep(PATIENCE)

        consumer = queen.queue(queue).group("g").start(handler, batch=3)
        await waiting.wait()
        # The second as well, if the first acknowledgement was slow.
        assert (await queen.admin.queues.depth(queue, "g"))["pending"] in (1, 2)
        await consumer.stop(0)
        assert (await queen.admin.queues.depth(queue, "g"))["pending"] == 1


async def test_a_lease_is_kept_while_a_handler_runs(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    await api.do(handle.push, 1)

    def slow(message: Any) -> None:
        time.sleep(5)

    async def async_slow(message: Any) -> None:
        await asyncio.sleep(5)

    summary = await api.do(handle.group("g").consume, slow if api.sync else async_slow, lease=4, limit=1)
    assert (summary.handled, summary.failed) == (1, 0)
    assert (await api.do(api.queen.admin.queues.depth, queue, "g"))["pending"] == 0


async def test_a_handler_sees_that_its_lease_is_lost_and_nothing_is_acknowledged(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    await api.do(handle.push, 1)
    began = threading.Event()
    lost: list[bool] = []

    def hang(message: Any) -> None:
        if began.is_set():
            return
        began.set()
        ends = time.monotonic() + PATIENCE
        while not message.lease_lost and time.monotonic() < ends:
            time.sleep(0.01)
        lost.append(message.lease_lost)

    async def async_hang(message: Any) -> None:
        if began.is_set():
            return
        began.set()
        try:
            await asyncio.sleep(PATIENCE)
        finally:
            lost.append(message.lease_lost)

    told: list[Exception] = []
    reader = handle.group("g")
    consumer = await api.do(reader.start, hang if api.sync else async_hang, lease=4, limit=1, on_error=told.append)
    await until(began.is_set)
    # A seek ends the leases of a group.
    await api.do(api.queen.admin.groups.seek, "g", queue, "beginning")
    # It is redelivered, so the lost message counts neither as handled nor as failed.
    summary = await api.do(consumer.wait)
    assert (summary.handled, summary.failed, lost) == (1, 0, [True])
    assert "refused" in [getattr(error, "kind", None) for error in told]
    assert (await api.do(api.queen.admin.queues.depth, queue, "g"))["pending"] == 0


async def test_a_permanent_error_ends_the_consumer_and_is_raised() -> None:
    told: list[Any] = []
    queue = AsyncQueue[Any](http(lambda request: httpx.Response(401)), Source(queue="q"), lambda value: value)
    consumer = queue.start(print, concurrency=2, on_error=told.append)  # type: ignore[arg-type]
    with pytest.raises(Unauthorized):
        await consumer.wait()
    with pytest.raises(Unauthorized):
        await consumer.stop()
    assert [error.kind for error in told] == ["unauthorized"]


async def test_a_consumer_goes_on_after_a_429_whatever_the_client_does() -> None:
    told: list[Any] = []
    client = http(replies(httpx.Response(429), httpx.Response(401)), retry_on_429=False, retry_delay=0.001)
    queue = AsyncQueue[Any](client, Source(queue="q"), lambda value: value)
    with pytest.raises(Unauthorized):
        await queue.consume(print, on_error=told.append)  # type: ignore[arg-type]
    assert [error.kind for error in told] == ["rate_limited", "unauthorized"]


def test_a_broker_that_answers_empty_at_once_is_not_asked_without_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    asked: list[float] = []

    def nothing(request: httpx.Request) -> httpx.Response:
        asked.append(clock.now)
        return httpx.Response(204)

    async def consume() -> None:
        queue = AsyncQueue[Any](http(nothing), Source(queue="q"), lambda value: value)
        await queue.consume(print, idle_timeout=5.0)  # type: ignore[arg-type]

    clock.run(consume())
    pauses = [round(later - earlier, 3) for earlier, later in zip(asked, asked[1:])]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]

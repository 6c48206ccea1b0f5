"""Buffers: limits, order, and that nothing is lost silently. The broker is fake."""

from __future__ import annotations

import asyncio
import gc
from typing import Any, Callable

import httpx
import pytest

from made_up import http, payloads, pushed
from queen_client import AsyncBuffer, BufferFull, Closed, QueenError, Refused, Undelivered
from queen_client.buffer import Limits


def buffer(reply: Callable[[httpx.Request], Any], **limits: Any) -> AsyncBuffer[Any]:
    return AsyncBuffer(http(reply, deadline=0.5, retry_delay=0.001), "q", None, Limits(**limits))


class Broker:
    """Records pushes, and holds responses back on request."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.active = self.most_active = 0

    async def reply(self, request: httpx.Request) -> httpx.Response:
        self.batches.append(payloads(request))
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        await self.open.wait()
        self.active -= 1
        return pushed(request)


async def test_a_request_carries_no_more_than_it_may() -> None:
    broker = Broker()
    async with buffer(broker.reply, batch_messages=3, lanes=1, linger=5) as made:
        for number in range(7):
            await made.push(number)
    assert broker.batches == [[0, 1, 2], [3, 4, 5], [6]]
    broker = Broker()
    async with buffer(broker.reply, batch_bytes=1000, lanes=1, linger=5) as made:
        for size in (10, 500, 400, 3000, 10):
            await made.push("x" * size)
    assert [[len(payload) for payload in batch] for batch in broker.batches] == [[10, 500], [400], [3000], [10]]


async def test_a_lane_has_one_request_at_a_time_and_what_comes_meanwhile_travels_together() -> None:
    broker = Broker()
    broker.open.clear()
    async with buffer(broker.reply, lanes=1, linger=0) as made:
        first = await made.push(0)
        while not broker.batches:
            await asyncio.sleep(0)
        for number in range(1, 6):
            await made.push(number)
        broker.open.set()
        assert (await first).id == "id-0"
    assert broker.batches == [[0], [1, 2, 3, 4, 5]]


async def test_lanes_work_side_by_side_and_a_partition_stays_in_its_lane() -> None:
    broker = Broker()
    broker.open.clear()
    made = buffer(broker.reply, lanes=4, linger=0)
    for number in range(40):
        await made.push(number, partition=str(number % 20))
    while broker.active < 4:
        await asyncio.sleep(0)
    broker.open.set()
    await made.close()
    assert broker.most_active == 4
    sent = [number for batch in broker.batches for number in batch]
    assert sorted(sent) == list(range(40))
    for number in range(20):
        assert sent.index(number) < sent.index(number + 20)


async def test_who_pushes_into_a_full_buffer_waits_in_line_and_nothing_lingers() -> None:
    broker = Broker()
    made = buffer(broker.reply, max_messages=2, lanes=1, linger=30)
    await asyncio.wait_for(asyncio.gather(*(made.push(number) for number in range(6))), 25)
    await asyncio.wait_for(made.close(), 25)
    assert [number for batch in broker.batches for number in batch] == list(range(6))


async def test_bytes_make_a_buffer_full_too_and_it_may_refuse() -> None:
    broker = Broker()
    made = buffer(broker.reply, max_bytes=400, lanes=1, linger=30, when_full="reject")
    await made.push("x" * 200)
    with pytest.raises(BufferFull):
        await made.push("y" * 200)
    await made.flush()
    await made.push("y" * 200)
    await made.close()
    assert [payload[0] for batch in broker.batches for payload in batch] == ["x", "y"]


async def test_one_message_that_is_refused_takes_no_other_along() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        return httpx.Response(413, json={"error": "too large"}) if "bad" in payloads(request) else pushed(request)

    told: list[Any] = []
    made = buffer(reply, linger=5, lanes=1, on_error=told.append)
    receipts = [await made.push(payload) for payload in (1, 2, "bad", 3, 4, 5)]
    with pytest.raises(Undelivered, match="too large") as caught:
        await made.close()
    (message, error), = caught.value.messages
    assert (message.payload, message.transaction_id) == ("bad", receipts[2].transaction_id)
    assert (error.status, caught.value.kind, len(told)) == (413, "bad_request", 1)
    assert [(await receipt).status for receipt in receipts if receipt is not receipts[2]] == ["queued"] * 5


async def test_of_messages_that_are_refused_one_by_one_only_those_fail() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        results = pushed(request).json()
        results[1].update(status="failed", error="no room")
        return httpx.Response(201, json=results)

    made = buffer(reply, linger=5, lanes=1, on_error=lambda error: None)
    receipts = [await made.push(number) for number in range(3)]
    with pytest.raises(Undelivered) as caught:
        await made.flush()
    assert [message.payload for message, _ in caught.value.messages] == [1]
    assert (await receipts[0]).status == (await receipts[2]).status == "queued"
    with pytest.raises(Refused, match="no room"):
        await receipts[1]
    await made.close()


async def test_a_failure_reported_by_its_receipt_is_not_reported_again() -> None:
    told: list[Exception] = []
    made = buffer(lambda request: httpx.Response(401), on_error=told.append)
    receipt = await made.push(1)
    with pytest.raises(QueenError, match="401"):
        await receipt
    await made.close()
    assert told == []


async def test_undelivered_messages_take_room_until_they_are_reported() -> None:
    made = buffer(lambda request: httpx.Response(401), max_messages=2, linger=0, on_error=lambda error: None)
    for number in range(2):
        await made.push(number)
    with pytest.raises(BufferFull, match="flush"):
        await made.push(2)
    with pytest.raises(Undelivered) as caught:
        await made.flush()
    assert [message.payload for message, _ in caught.value.messages] == [0, 1]
    receipt = await made.push(3)
    with pytest.raises(QueenError):
        await receipt
    await made.close()


async def test_a_closed_buffer_accepts_nothing_including_waiting_pushes() -> None:
    broker = Broker()
    broker.open.clear()
    made = buffer(broker.reply, max_messages=1, lanes=1)
    await made.push(1)
    waiting = asyncio.ensure_future(made.push(2))
    while not broker.batches:
        await asyncio.sleep(0)
    closing = asyncio.ensure_future(made.close())
    with pytest.raises(Closed):
        await waiting
    broker.open.set()
    await closing
    with pytest.raises(Closed):
        await made.push(3)
    assert broker.batches == [[1]]


async def test_a_message_that_is_sent_again_keeps_its_id() -> None:
    seen: list[bytes] = []

    def reply(request: httpx.Request) -> Any:
        seen.append(request.content)
        return httpx.ReadError("reset") if len(seen) == 1 else pushed(request)

    async with buffer(reply) as made:
        await made.push(1)
    assert len(seen) == 2 and seen[0] == seen[1]


def test_a_buffer_that_is_left_with_messages_is_reported() -> None:
    async def leave() -> None:
        broker = Broker()
        broker.open.clear()
        await buffer(broker.reply, on_error=told.append, linger=0).push(1)
        while not broker.batches:
            await asyncio.sleep(0)

    told: list[Exception] = []
    with pytest.warns(ResourceWarning, match="was not closed"):
        asyncio.run(leave())
        gc.collect()
    assert isinstance(told[0], Undelivered) and told[0].kind == "closed"


async def test_an_abandoned_receipt_is_reported_by_flush() -> None:
    broker = Broker()
    told: list[Exception] = []
    broker.open.clear()

    async def reply(request: httpx.Request) -> httpx.Response:
        await broker.reply(request)
        return httpx.Response(401)

    made = buffer(reply, linger=0, on_error=told.append)
    receipt = await made.push(1)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(receipt, 0.01)
    broker.open.set()
    with pytest.raises(Undelivered) as caught:
        await made.close()
    assert [message.payload for message, _ in caught.value.messages] == [1]
    assert [type(error) for error in told] == [Undelivered]


async def test_who_stops_waiting_in_the_moment_of_a_failure_has_not_heard_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = Broker()
    broker.open.clear()
    told: list[Exception] = []

    async def reply(request: httpx.Request) -> httpx.Response:
        await broker.reply(request)
        return httpx.Response(401)

    made = buffer(reply, linger=0, on_error=told.append)
    receipt = await made.push(1)
    waiters = [asyncio.ensure_future(receipt._outcome()) for _ in range(2)]
    while receipt._waiting < 2:
        await asyncio.sleep(0)
    tell_changed = made._tell_changed

    def cancel() -> None:
        for waiter in waiters:
            waiter.cancel()
        tell_changed()

    monkeypatch.setattr(made, "_tell_changed", cancel)
    broker.open.set()
    await asyncio.wait(waiters)
    assert all(waiter.cancelled() for waiter in waiters)
    assert [type(error) for error in told] == [Undelivered]
    with pytest.raises(Undelivered):
        await made.close()


async def test_a_push_whose_operation_failed_fails_alone() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            failed = request.url.path.endswith("a")
            return httpx.Response(200, json={"status": "failed" if failed else "completed", "error_message": "no room"})
        elements = pushed(request).json()
        return httpx.Response(202, json=[{**one, "operationId": one["partition_id"]} for one in elements])

    client = http(reply, queued_operation_behavior="poll")
    made: AsyncBuffer[Any] = AsyncBuffer(client, "q", None, Limits(linger=5, lanes=1, on_error=lambda error: None))
    receipts = [await made.push(number, partition="ab"[number]) for number in range(2)]
    with pytest.raises(Undelivered, match="no room") as caught:
        await made.close()
    assert [message.payload for message, _ in caught.value.messages] == [0]
    assert caught.value.kind == "operation_failed"
    assert (await receipts[1]).status == "queued"

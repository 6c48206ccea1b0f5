"""Both clients with a real broker: Python-specific behavior beyond the shared scenarios."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel

from conftest import Api
from queen_client import AsyncMessage, AsyncQueen, BadUse, DecodeError, NewMessage, Refused


@dataclass
class Order:
    customer: str
    total: int


class Parcel(BaseModel):
    weight: int


@pytest.mark.parametrize("payload", [Order("ada", 10), Parcel(weight=3)])
async def test_a_typed_payload_comes_back_as_its_type(api: Api, queue: str, payload: Any) -> None:
    orders = api.queen.queue(queue, type=type(payload))
    await api.do(orders.push, payload)
    (message,) = await api.do(orders.pop)
    assert message.data == payload
    assert isinstance(message.raw, dict)


async def test_a_message_tells_what_it_is(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue).partition("p")
    trace = "4bf92f35-77b3-4da6-a3ce-929d0e0e4736"
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    result = await api.do(handle.push, 1, transaction_id="t", trace_id=trace, traceparent=parent, tracestate="a=b")
    assert (result.status, result.transaction_id, result.queue, result.operation) == ("queued", "t", queue, None)
    (message,) = await api.do(handle.group("g").pop, lease=30)
    assert (message.id, message.partition_id, message.transaction_id) == (result.id, result.partition_id, "t")
    assert (message.queue, message.partition, message.group) == (queue, "p", "g")
    assert (message.trace_id, message.traceparent, message.tracestate) == (trace, parent, "a=b")
    assert (message.retry_count, message.lease_lost, message.producer) == (0, False, None)
    assert abs(message.created_at - datetime.now(timezone.utc)) < timedelta(minutes=1)
    assert message.lease_id and "t of" in repr(message)
    until = await api.do(message.renew, 600)
    assert until - datetime.now(timezone.utc) > timedelta(minutes=9)
    acked = await api.do(message.ack)
    assert acked.success and acked.lease_released and not acked.noop
    assert (await api.do(message.ack)).noop
    with pytest.raises(Refused) as caught:
        await api.do(message.nack, "too late")
    assert caught.value.results[0].success is False


async def test_without_a_group_a_message_says_so_and_can_be_acknowledged(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    await api.do(handle.push_many, [1, 2])
    messages = await api.do(handle.pop, batch=2)
    assert [message.group for message in messages] == [None, None]
    assert [result.success for result in await api.do(api.queen.ack, messages)] == [True, True]
    assert (await api.do(api.queen.admin.queues.depth, queue))["pending"] == 0


async def test_many_messages_go_to_their_own_partitions(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    new = [NewMessage(number, partition=f"p{number % 3}", transaction_id=str(number)) for number in range(6)]
    results = await api.do(handle.push_many, new)
    assert [result.transaction_id for result in results] == [str(number) for number in range(6)]
    messages = await api.do(handle.pop, batch=10, partitions=3)
    assert sorted((message.partition, message.data) for message in messages) == [
        ("p0", 0), ("p0", 3), ("p1", 1), ("p1", 4), ("p2", 2), ("p2", 5),
    ]  # fmt: skip


async def test_a_payload_that_does_not_fit_can_be_looked_at_and_given_up(api: Api, queue: str) -> None:
    await api.do(api.queen.queue(queue).push, "no order")
    (message,) = await api.do(api.queen.queue(queue, type=Order).group("g").pop)
    with pytest.raises(DecodeError):
        message.data
    assert message.raw == "no order"
    assert (await api.do(message.dead_letter, ValueError("no order"))).dead_letter
    letters = api.queen.queue(queue).group("g").dead_letters()
    assert (await api.do(letters.list))["messages"][0]["errorMessage"] == "no order"


async def test_messages_of_two_groups_are_not_acknowledged_together(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    await api.do(handle.push, 1)
    both = [(await api.do(handle.group(group).pop))[0] for group in ("g", "h")]
    with pytest.raises(BadUse, match="one consumer group"):
        await api.do(api.queen.ack, both)


async def test_a_transaction_tells_what_it_did_and_ends(api: Api, queue: str) -> None:
    source, sink = api.queen.queue(queue), f"{queue}-sink"
    await api.do(source.push_many, [1, 2])
    first, second = await api.do(source.group("g").pop, batch=2)
    transaction = api.queen.transaction()
    transaction.ack(first)
    transaction.ack(second, "dlq", ValueError("why"))
    given = transaction.push(sink, "a", partition="p", transaction_id="a")
    minted = transaction.push(sink, "b", partition="p")
    done = await api.do(transaction.commit)
    assert [result.transaction_id for result in done.pushed] == [given, minted] and given == "a"
    assert [result.dead_letter for result in done.acked] == [False, True]
    with pytest.raises(BadUse, match="has ended"):
        transaction.push(sink, "c")
    assert [message.data for message in await api.do(api.queen.queue(sink).pop, batch=9)] == ["a", "b"]


async def test_a_transaction_commits_at_the_end_of_its_block_and_not_after_an_exception(
    broker: str, queue: str
) -> None:
    async with AsyncQueen(broker) as queen:
        async with queen.transaction() as transaction:
            transaction.push(queue, "in")
        with pytest.raises(RuntimeError):
            async with queen.transaction() as transaction:
                transaction.push(queue, "out")
                raise RuntimeError
        async with queen.transaction() as transaction:
            transaction.push(queue, "by hand")
            await transaction.commit()
        assert [message.data for message in await queen.queue(queue).pop(batch=9)] == ["in", "by hand"]


async def test_notes_about_a_message_can_be_read(api: Api, queue: str) -> None:
    await api.do(api.queen.queue(queue).push, 1)
    (message,) = await api.do(api.queen.queue(queue).group("g").pop)
    assert await api.do(message.trace, {"step": Order("ada", 1)}, names=[queue], event_type="info")
    ids = (message.partition_id, message.transaction_id)
    await api.do(api.queen.traces.add, message.transaction_id, message.partition_id, {"step": 2}, names=queue)
    traces = await api.do(api.queen.traces.of, *ids)
    assert [trace["data"]["step"] for trace in traces["traces"]] == [{"customer": "ada", "total": 1}, 2]
    assert (await api.do(api.queen.traces.by_name, queue))["total"] == 2
    assert (await api.do(api.queen.traces.names, limit=1))["trace_names"]


async def test_a_buffer_keeps_the_order_of_partitions(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    buffer = await api.do(handle.buffer, linger=0.05)
    receipts = [await api.do(buffer.push, number, partition=f"p{number % 3}") for number in range(90)]
    await api.do(buffer.close)
    assert all(receipt.done() for receipt in receipts)
    for partition in range(3):
        messages = await api.do(handle.partition(f"p{partition}").pop, batch=100)
        assert [message.data for message in messages] == list(range(partition, 90, 3))


async def test_the_result_of_a_buffered_message_can_be_awaited(broker: str, queue: str) -> None:
    async with AsyncQueen(broker) as queen:
        async with queen.queue(queue).buffer() as buffer:
            receipt = await buffer.push({"n": 1}, partition="p", transaction_id="t")
            assert receipt.transaction_id == "t"
            assert (await receipt).status == "queued"
            assert (await (await buffer.push({"n": 1}, partition="p", transaction_id="t"))).status == "duplicate"


async def test_several_brokers_are_one_client(broker: str, queue: str) -> None:
    async with AsyncQueen(["http://127.0.0.1:1", broker], retry_delay=20.0) as queen:
        handle = queen.queue(queue)
        await asyncio.gather(*(handle.partition(str(number)).push(number) for number in range(20)))
        seen: list[Any] = []

        async def handler(message: AsyncMessage[Any]) -> None:
            seen.append(message.data)

        await handle.group("g").consume(handler, concurrency=3, limit=20, on_error=lambda error: None)
        assert sorted(seen) == list(range(20))

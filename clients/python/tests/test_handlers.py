"""Handlers of both clients with a real broker: what they may do, and the outcome of their messages."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from conftest import Api
from queen_client import AsyncMessage, AsyncQueen, BadUse
from test_consume import PATIENCE, left, until


async def test_what_a_handler_acknowledges_itself_is_left_alone(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    await api.do(handle.push_many, ["done", "give up", "again", "behind"])
    told: list[Exception] = []
    seen: list[str] = []

    def verb(message: Any) -> Any:
        seen.append(message.data)
        first = seen.count(message.data) == 1
        if message.data == "done":
            return message.ack
        if message.data == "give up":
            return message.dead_letter
        return message.retry if message.data == "again" and first else message.ack

    def handler(message: Any) -> None:
        verb(message)()

    async def async_handler(message: Any) -> None:
        await verb(message)()

    await api.do(
        handle.group("g").consume, handler if api.sync else async_handler, batch=4, limit=5, on_error=told.append
    )
    assert seen == ["done", "give up", "again", "again", "behind"]
    assert told == []
    assert (await api.do(handle.dead_letters().list))["total"] == 1


async def test_a_transaction_in_a_handler_is_all_the_acknowledgement_it_needs(broker: str, queue: str) -> None:
    told: list[Exception] = []
    async with AsyncQueen(broker) as queen:
        await queen.queue(queue).push_many([1, 2, 3])

        async def handler(message: AsyncMessage[Any]) -> None:
            async with queen.transaction() as transaction:
                transaction.ack(message)
                transaction.push(f"{queue}-sink", message.data)

        await queen.queue(queue).group("g").consume(handler, batch=3, limit=3, on_error=told.append)
        assert told == []
        assert [message.data for message in await queen.queue(f"{queue}-sink").pop(batch=9)] == [1, 2, 3]


async def test_what_cannot_be_decoded_is_given_up_and_the_rest_goes_on(api: Api, queue: str) -> None:
    def number(payload: Any) -> int:
        return int(payload["number"])

    await api.do(api.queen.admin.queues.configure, queue, retry_limit=0)
    await api.do(api.queen.queue(queue).push_many, [{"number": 1}, "nonsense", {"number": 3}])
    for group, verb in (("each", "consume"), ("batches", "consume_batches")):
        seen: list[Any] = []

        def note(given: Any, seen: list[Any] = seen) -> None:
            seen.extend(one.data for one in (given if isinstance(given, list) else [given]))

        told: list[Exception] = []
        reader = api.queen.queue(queue, type=number).group(group)
        summary = await api.do(getattr(reader, verb), api.handler(note), batch=3, limit=3, on_error=told.append)
        assert (seen, summary.handled, summary.failed) == ([1, 3], 2, 1)
        assert [getattr(error, "kind", None) for error in told] == ["decode"]
        letters = await api.do(api.queen.queue(queue).group(group).dead_letters().list)
        assert "the payload is not a valid number" in letters["messages"][0]["errorMessage"]


async def test_what_cannot_be_decoded_is_given_up_also_if_handlers_acknowledge_themselves(api: Api, queue: str) -> None:
    await api.do(api.queen.admin.queues.configure, queue, retry_limit=0)
    await api.do(api.queen.queue(queue).push_many, ["nonsense", {"number": 1}])

    def number(payload: Any) -> int:
        return int(payload["number"])

    def handler(message: Any) -> None:
        message.ack()

    async def async_handler(message: Any) -> None:
        await message.ack()

    reader = api.queen.queue(queue, type=number).group("g")
    summary = await api.do(
        reader.consume,
        handler if api.sync else async_handler,
        batch=2,
        limit=2,
        auto_ack=False,
        on_error=lambda error: None,
    )
    assert (summary.handled, summary.failed) == (1, 1)
    assert (await api.do(api.queen.queue(queue).dead_letters().list))["total"] == 1


async def test_a_handler_that_raises_fails_its_message_with_any_error_and_auto_ack_mode(api: Api, queue: str) -> None:
    await api.do(api.queen.admin.queues.configure, queue, retry_limit=0)
    await api.do(api.queen.queue(queue).push_many, [1, 2])

    def handler(message: Any) -> None:
        # A lone surrogate, as in file names.
        raise ValueError(f"bad file \udcff {message.data}")

    reader = api.queen.queue(queue).group("g")
    summary = await api.do(
        reader.consume, api.handler(handler), batch=2, limit=2, auto_ack=False, on_error=lambda error: None
    )
    assert (summary.handled, summary.failed) == (0, 2)
    letters = await api.do(api.queen.queue(queue).dead_letters().list)
    assert [letter["errorMessage"] for letter in letters["messages"]] == ["bad file ? 2", "bad file ? 1"]


async def test_a_nack_in_a_transaction_that_makes_a_dead_letter_keeps_the_rest(broker: str, queue: str) -> None:
    told: list[Exception] = []
    async with AsyncQueen(broker) as queen:
        await queen.admin.queues.configure(queue, retry_limit=0)
        await queen.queue(queue).push_many([1, 2, 3])
        seen: list[Any] = []

        async def handler(message: AsyncMessage[Any]) -> None:
            seen.append(message.data)
            if message.data == 1:
                async with queen.transaction() as transaction:
                    transaction.ack(message, "failed", "no")

        await queen.queue(queue).group("g").consume(handler, batch=3, limit=3, on_error=told.append)
        assert (seen, told) == ([1, 2, 3], [])
        assert (await queen.admin.queues.depth(queue, "g"))["pending"] == 0


async def test_a_handler_may_end_its_consumer_but_not_wait_for_that(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue)
    await api.do(handle.push_many, [1, 2, 3])
    refused: list[str] = []
    consumers: list[Any] = []
    ready = threading.Event()

    def handler(message: Any) -> None:
        ready.wait(PATIENCE)
        for wait in (consumers[0].stop, api.queen.close):
            with pytest.raises(BadUse, match="request_stop"):
                wait()
            refused.append(message.data)
        consumers[0].request_stop()
        refused.append("asked")

    async def async_handler(message: Any) -> None:
        await until(ready.is_set)
        for wait in (consumers[0].stop, api.queen.close):
            with pytest.raises(BadUse, match="request_stop"):
                await wait()
            refused.append(message.data)
        consumers[0].request_stop()
        refused.append("asked")

    consumers.append(await api.do(handle.group("g").start, handler if api.sync else async_handler, batch=3))
    ready.set()
    summary = await api.do(consumers[0].wait)
    assert (summary.handled, summary.failed, refused) == (1, 0, [1, 1, "asked"])
    assert await left(api, queue, "g") == [2, 3]


async def test_a_handler_that_was_left_alone_can_see_it(broker: str, queue: str) -> None:
    api = Api(broker, True)
    await api.do(api.queen.queue(queue).push, 1)
    began, release = threading.Event(), threading.Event()
    seen: list[bool] = []

    def handler(message: Any) -> None:
        seen.append(message.lease_lost)
        began.set()
        release.wait(PATIENCE)
        seen.append(message.lease_lost)

    consumer = await api.do(api.queen.queue(queue).group("g").start, handler, lease=300)
    await until(began.is_set)
    await api.do(consumer.stop, 0)
    release.set()
    await until(lambda: len(seen) == 2)
    await api.close()
    assert seen == [False, True]

"""What is logged without a callback. The broker is fake."""

from __future__ import annotations

import asyncio
import re
from typing import Any, Callable

import httpx
import pytest

from made_up import Reply, acked, delivery, http
from queen_client import AsyncQueue, QueenError
from queen_client.buffer import AsyncBuffer, Limits
from queen_client.delivery import Lease
from queen_client.pop import Source


def popped(*names: str, lease: float = 60) -> httpx.Response:
    given = Lease("lease", lease, 0)
    messages = [{**delivery(name, given).fields, "createdAt": "2026-01-01T00:00:00Z"} for name in names]
    return httpx.Response(200, json={"messages": messages, "leaseId": "lease", "leaseSeconds": lease})


def queue(*pops: Reply, ack: Callable[[httpx.Request], httpx.Response] = acked, **options: Any) -> AsyncQueue[Any]:
    """Its broker responds to pops like this and then with nothing, and accepts acknowledgements."""
    waiting = list(pops)

    def reply(request: httpx.Request) -> Reply:
        if request.method == "POST":
            return ack(request)
        return waiting.pop(0) if waiting and request.method == "GET" else httpx.Response(204)

    return AsyncQueue(http(reply, retry_delay=0.001, max_retry_delay=0.002, **options), Source(queue="q"), lambda it: it)


async def mistaken(messages: Any) -> None:
    missing: Any = None
    missing()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Levels and texts, without parts that vary between runs."""
    records = [record for record in caplog.records if record.name == "queen_client"]
    return [f"{one.levelname} {re.sub('after [0-9.]+ s', 'after N s', one.getMessage())}" for one in records]


async def until_said(caplog: pytest.LogCaptureFixture, lines: int) -> None:
    while len(said(caplog)) < lines:
        await asyncio.sleep(0.002)


async def test_a_handler_that_fails_is_logged_with_its_message_its_error_and_its_stack(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await queue(popped("a1")).group("g").consume(mistaken, limit=1)
    assert said(caplog) == [
        "ERROR handler failed (queue q, partition a, transaction id a1): TypeError: 'NoneType' object is not callable"
    ]
    assert ", in mistaken" in caplog.text


async def test_a_report_of_a_batch_names_its_first_message_and_how_many_there_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await queue(popped("a1", "a2", "a3")).group("g").consume_batches(mistaken, limit=3)
    (line,) = said(caplog)
    assert line.startswith("ERROR handler failed (queue q, partition a, transaction id a1, first of 3): TypeError")


async def test_what_a_listener_hears_is_not_logged_as_well(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[Exception] = []
    await queue(popped("a1")).group("g").consume(mistaken, limit=1, on_error=heard.append)
    assert len(heard) == 1 and said(caplog) == []


async def test_a_broker_that_does_not_answer_is_logged_when_that_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = [httpx.ConnectError("refused") for _ in range(7)]
    consumer = queue(*refused).group("g").start(mistaken, concurrency=2, wait=0.05)
    await until_said(caplog, 2)
    await consumer.stop()
    assert said(caplog) == [
        "WARNING broker http://broker-0 does not respond: cannot reach http://broker-0: refused (network)",
        "WARNING broker http://broker-0 responds again after N s",
    ]


async def test_a_token_that_cannot_be_had_is_logged_once_and_so_is_its_return(
    caplog: pytest.LogCaptureFixture,
) -> None:
    missing = ["the vault is closed"] * 3

    def token() -> str:
        if missing:
            raise RuntimeError(missing.pop())
        return "secret"

    await queue(token=token).pop()
    assert said(caplog) == [
        "WARNING token function does not respond: cannot get a token: RuntimeError('the vault is closed') (network)",
        "WARNING token function responds again after N s",
    ]


async def test_pops_that_a_broker_refuses_for_a_while_are_logged_when_that_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    refused = [httpx.Response(500, json={"error": "out of order"}) for _ in range(5)]
    consumer = queue(*refused).group("g").start(mistaken, wait=0.05)
    await until_said(caplog, 2)
    await consumer.stop()
    assert said(caplog) == [
        "WARNING pops are failing; retrying (queue q): out of order (server, status 500)",
        "WARNING pops work again after N s (queue q)",
    ]


async def test_an_acknowledgement_that_fails_is_logged_with_its_message(caplog: pytest.LogCaptureFixture) -> None:
    async def handler(message: Any) -> None:
        pass

    forbidden = httpx.Response(403, json={"error": "not yours"})
    await queue(popped("a1"), ack=lambda request: forbidden).group("g").consume(handler, limit=1)
    assert said(caplog)[0] == "ERROR acknowledgement failed (queue q, partition a, transaction id a1): not yours (forbidden, status 403)"


async def test_a_lost_lease_is_logged_with_its_messages_but_unanswered_renewals_are_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = asyncio.Event()

    async def handler(message: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            lost.set()

    def ack(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    consumer = queue(popped("a1", lease=0.1), ack=ack).group("g").start(handler)
    await lost.wait()
    await consumer.stop()
    assert [line.split(": ")[0] for line in said(caplog) if line.startswith("ERROR")] == [
        "ERROR lease lost (queue q, partition a, transaction id a1)"
    ]


async def test_a_consumer_that_ends_with_an_error_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(QueenError):
        await queue(httpx.Response(401, json={"error": "who are you"})).group("g").consume(mistaken)
    assert said(caplog) == ["ERROR consumer ended (queue q): who are you (unauthorized, status 401)"]


async def test_messages_that_a_buffer_could_not_deliver_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    client = http(lambda request: httpx.Response(403, json={"error": "not yours"}))
    buffer: AsyncBuffer[int] = AsyncBuffer(client, "q", None, Limits(linger=0))
    await buffer.push(1)
    with pytest.raises(QueenError):
        await buffer.flush()
    (line,) = said(caplog)
    assert line.startswith("ERROR ") and line.endswith("(queue q)")

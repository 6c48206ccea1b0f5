"""Wrong use is rejected before anything is sent, with a helpful error."""

from __future__ import annotations

import asyncio
import functools
from datetime import datetime
from typing import Any, Callable

import pytest

from queen_client import AsyncQueen, BadUse, Closed, NewMessage, Queen

#: There is no listener, so that a request would cause a different error.
NOWHERE = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    "url",
    [
        "",
        [],
        None,
        "localhost:6632",
        "ftp://localhost",
        "http://",
        "http://host:port",
        "http://h/?a=b",
        "http://h/#/queues",
        [7],
    ],
)
def test_an_address_is_checked(url: Any) -> None:
    with pytest.raises(BadUse):
        AsyncQueen(url)
    with pytest.raises(BadUse):
        Queen(url)


@pytest.mark.parametrize(
    "options",
    [
        {"deadline": 0},
        {"deadline": -1.0},
        {"request_timeout": float("nan")},
        {"retry_delay": "1s"},
        {"queued_operation_behavior": "wait"},
        {"token": ""},
        {"token": "secret\n"},
        {"token": 7},
        {"headers": {"x-more": "a\nb"}},
        {"headers": {"x more": "a"}},
    ],
)
def test_options_are_checked(options: Any) -> None:
    with pytest.raises(BadUse):
        AsyncQueen(NOWHERE, **options)


@pytest.mark.parametrize("url", ["http://me:secret@host", "me:secret@host", "http://me:secret@host:port"])
def test_a_password_in_an_address_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(BadUse, match="must not contain user and password") as caught:
        AsyncQueen(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "x" * 256, "a\0b", "\ud800", 7, None])
def test_names_are_checked(name: Any) -> None:
    queen = AsyncQueen(NOWHERE)
    makers: list[Callable[[Any], object]] = [
        queen.queue,
        queen.queue("q").partition,
        queen.queue("q").group,
        queen.discover(task="t").group,
    ]
    for make in makers:
        with pytest.raises(BadUse):
            make(name)


def test_a_name_is_as_long_as_the_broker_counts() -> None:
    AsyncQueen(NOWHERE).queue("ü" * 255).partition("🐝" * 255).group("x" * 255)


async def test_pops_are_checked() -> None:
    queue = AsyncQueen(NOWHERE).queue("q")
    wrong: list[dict[str, Any]] = [
        {"batch": 0},
        {"batch": 10_001},
        {"batch": 1.5},
        {"partitions": 0},
        {"partitions": 101},
        {"wait": -1},
        {"wait": 601},
        {"lease": 0},
        {"lease": 86_401},
        {"deadline": -1},
        {"subscription": "old"},
    ]
    for options in wrong:
        with pytest.raises(BadUse):
            await queue.group("g").pop(**options)
    for subscription in ("new", datetime(2026, 1, 1)):
        with pytest.raises(BadUse, match="consumer group"):
            await queue.pop(subscription=subscription)
    with pytest.raises(TypeError):
        await queue.pop(size=3)  # type: ignore[call-arg]


async def test_consumers_are_checked() -> None:
    queue = AsyncQueen(NOWHERE).queue("q")

    async def handler(message: object) -> None:
        raise AssertionError("was called")

    def plain(message: object) -> None:
        raise AssertionError("was called")

    wrong: list[dict[str, Any]] = [
        {"batch": 0},
        {"concurrency": 0},
        {"limit": 0},
        {"idle_timeout": 0},
        {"wait": 0},
        {"stop_timeout": -1},
    ]
    for options in wrong:
        with pytest.raises(BadUse):
            await queue.consume(handler, **options)
        with pytest.raises(BadUse):
            await asyncio.to_thread(Queen(NOWHERE).queue("q").consume, plain, **options)


def test_what_would_be_begun_and_not_run_is_no_handler() -> None:
    async def coroutine(message: object) -> None: ...

    async def later(message: object, more: int) -> None: ...

    class Instance:
        async def __call__(self, message: object) -> None: ...

    def generator(message: object) -> Any:
        yield message

    async def asynchronous(message: object) -> Any:
        yield message

    plain, other = Queen(NOWHERE).queue("q"), AsyncQueen(NOWHERE).queue("q")
    for handler in (coroutine, functools.partial(later, more=1), Instance()):
        for verb in (plain.start, plain.consume, plain.start_batches, plain.consume_batches):
            with pytest.raises(BadUse, match="AsyncQueen"):
                verb(handler)
    for handler in (generator, asynchronous):
        for start in (plain.start, plain.start_batches, other.start, other.start_batches):
            with pytest.raises(BadUse, match="generator"):
                start(handler)
    with pytest.raises(BadUse, match="function"):
        plain.start(None)  # type: ignore[arg-type]


async def test_pushes_are_checked() -> None:
    queue = AsyncQueen(NOWHERE).queue("q")
    with pytest.raises(BadUse):
        await queue.push({1, 2})
    with pytest.raises(BadUse):
        await queue.push(1, transaction_id="")
    with pytest.raises(BadUse):
        await queue.push_many("text")
    with pytest.raises(BadUse):
        await queue.push(NewMessage(1), transaction_id="t")
    with pytest.raises(BadUse):
        await queue.push(1, deadline=0)
    with pytest.raises(BadUse, match="partition"):
        await queue.push(1, partition="p")  # type: ignore[call-arg]
    with pytest.raises(BadUse, match="transactionId"):
        await queue.push(1, transactionId="t")  # type: ignore[call-arg]
    with pytest.raises(BadUse, match="deadline"):
        AsyncQueen(NOWHERE).transaction().push("q", 1, deadline=1)  # type: ignore[call-arg]
    assert await queue.push_many([]) == []


async def test_buffers_are_checked() -> None:
    queue = AsyncQueen(NOWHERE).queue("q")
    wrong: list[dict[str, Any]] = [{"lanes": 0}, {"max_messages": 0}, {"linger": -1}, {"when_full": "drop"}]
    for options in wrong:
        with pytest.raises(BadUse):
            queue.buffer(**options)
    async with queue.buffer(max_bytes=100) as buffer:
        with pytest.raises(BadUse):
            await buffer.push("x" * 100)
        with pytest.raises(BadUse, match="deadline"):
            await buffer.push("x", deadline=1)  # type: ignore[call-arg]


def test_a_buffer_or_a_consumer_without_an_event_loop_is_rejected() -> None:
    queue = AsyncQueen(NOWHERE).queue("q")
    with pytest.raises(BadUse, match="event loop"):
        queue.buffer()
    with pytest.raises(BadUse, match="event loop"):
        queue.start(print)  # type: ignore[arg-type]


async def test_an_empty_transaction_is_rejected() -> None:
    with pytest.raises(BadUse, match="empty"):
        await AsyncQueen(NOWHERE).transaction().commit()


def test_discover_needs_a_label_and_has_no_partitions_and_no_dead_letters() -> None:
    queen = AsyncQueen(NOWHERE)
    with pytest.raises(BadUse):
        queen.discover()
    assert not hasattr(queen.discover("n"), "partition")
    with pytest.raises(BadUse):
        queen.discover("n").dead_letters()


#: Every verb that takes its options as keywords.
VERBS: dict[str, Callable[[Any], Any]] = {
    "pop": lambda queen: queen.queue("q").pop(tiemout=1),
    "consume": lambda queen: queen.queue("q").consume(print, tiemout=1),
    "consume_batches": lambda queen: queen.queue("q").consume_batches(print, tiemout=1),
    "start": lambda queen: queen.queue("q").start(print, tiemout=1),
    "start_batches": lambda queen: queen.queue("q").start_batches(print, tiemout=1),
    "push": lambda queen: queen.queue("q").push(1, tiemout=1),
    "buffer": lambda queen: queen.queue("q").buffer(tiemout=1),
    "transaction.push": lambda queen: queen.transaction().push("q", 1, tiemout=1),
    "configure": lambda queen: queen.admin.queues.configure("q", tiemout=1),
    "seek": lambda queen: queen.admin.groups.seek("g", "q", "end", dryrun=True),
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
@pytest.mark.parametrize("client", [AsyncQueen, Queen])
async def test_an_option_that_there_is_not_is_refused_by_every_verb(client: Any, verb: Callable[[Any], Any]) -> None:
    queen = client(NOWHERE)
    with pytest.raises((TypeError, BadUse), match="tiemout|dryrun"):
        result = verb(queen)
        if asyncio.iscoroutine(result):
            await result
    if client is Queen:
        queen.close()


def test_an_option_that_there_is_not_is_refused_by_clients() -> None:
    for client in (AsyncQueen, Queen):
        with pytest.raises(TypeError, match="tiemout"):
            client(NOWHERE, tiemout=1)  # type: ignore[call-arg]


async def test_options_of_queues_are_checked() -> None:
    with pytest.raises(BadUse, match="leasetime"):
        await AsyncQueen(NOWHERE).admin.queues.configure("q", leasetime=3)  # type: ignore[call-arg]
    with pytest.raises(BadUse):
        await AsyncQueen(NOWHERE).admin.groups.seek("g", "q", "middle")  # type: ignore[arg-type]


async def test_a_closed_client_sends_nothing() -> None:
    queen = AsyncQueen(NOWHERE)
    await queen.close()
    with pytest.raises(Closed):
        await queen.queue("q").push(1)
    plain = Queen(NOWHERE)
    plain.close()
    plain.close()
    with pytest.raises(Closed):
        plain.queue("q").push(1)

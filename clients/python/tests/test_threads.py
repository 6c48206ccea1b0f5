"""The synchronous client: threads, callbacks, forks, and the end of the program."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator

import pytest

from conftest import Api
from queen_client import AsyncQueen, BadUse, Closed, Message, NetworkError, Queen, QueenError, TimedOut
from test_consume import PATIENCE, left, until


def program(broker: str, queue: str, text: str) -> subprocess.Popen[str]:
    # A test runner in the background may make all child processes ignore it.
    ready = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    text = f"{ready}from queen_client import Queen\nbroker, queue = {broker!r}, {queue!r}\n{text}"
    command, pipe = [sys.executable, "-c", text], subprocess.PIPE
    return subprocess.Popen(command, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    return process.stdout.readline().strip() or process.stderr.read()


def test_the_client_says_so_after_a_fork(broker: str, queue: str) -> None:
    text = f"""
import os
from queen_client import BadUse, Queen
queen, fresh = Queen({broker!r}), Queen({broker!r})
queen.queue({queue!r}).push("before")
child = os.fork()
if child == 0:
    try:
        queen.queue({queue!r}).push("never")
    except BadUse as error:
        fresh.queue({queue!r}).push("made before, used after")
        os._exit(0 if "forked" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
queen.queue({queue!r}).push("after")
print([message.data for message in queen.queue({queue!r}).pop(batch=9)])
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "['before', 'made before, used after', 'after']", done.stderr


async def test_ctrl_c_gives_back_what_a_consumer_holds(broker: str, queue: str) -> None:
    async with AsyncQueen(broker) as queen:
        await queen.queue(queue).push_many([1, 2])
        process = program(broker, queue, """
import sys
def handle(message):
    print("began", flush=True)
    sys.stdin.readline()
with Queen(broker) as queen:
    queen.queue(queue).group("g").consume(handle, batch=5, lease=300)
""")
        assert await asyncio.to_thread(line, process) == "began"
        process.send_signal(signal.SIGINT)
        # The program ends during its handler, and has given back its message before.
        (message, *_) = await queen.queue(queue).group("g").pop(batch=5, wait=PATIENCE)
        assert message.data == 1
        _, errors = await asyncio.to_thread(process.communicate, "go on\n", PATIENCE)
        assert "KeyboardInterrupt" in errors


async def test_the_end_of_the_program_fails_no_unhandled_message(broker: str, queue: str) -> None:
    async with AsyncQueen(broker) as queen:
        await queen.admin.queues.configure(queue, retry_limit=0)
        await queen.queue(queue).partition("a").push("first")
        # Its last handler continues until it is asked to end, and the program waits for that.
        process = program(broker, queue, """
import concurrent.futures.thread as pool, sys, threading, time
began = threading.Event()
def handle(message):
    began.set()
    while not pool._shutdown:
        time.sleep(0.01)
    print(message.data, flush=True)
    sys.stdin.readline()
reader = Queen(broker).queue(queue).group("g")
reader.start(handle, concurrency=2, lease=300, on_error=lambda error: print(error.kind, flush=True))
began.wait()
""")
        assert await asyncio.to_thread(line, process) == "first"
        await queen.queue(queue).partition("b").push("second")
        assert await asyncio.to_thread(line, process) == "closed"
        (message,) = await queen.queue(queue).group("g").pop(wait=PATIENCE)
        assert (message.data, message.retry_count) == ("second", 0)
        assert (await queen.queue(queue).dead_letters().list())["total"] == 0
        await asyncio.to_thread(process.communicate, "go on\n", PATIENCE)


async def test_a_handler_that_is_begun_and_not_run_has_failed(broker: str, queue: str) -> None:
    api = Api(broker, True)
    await api.do(api.queen.admin.queues.configure, queue, retry_limit=0)
    await api.do(api.queen.queue(queue).push_many, [1, 2])
    told: list[Any] = []

    async def coroutine(message: Message[Any]) -> None: ...

    def generator(message: Message[Any]) -> Iterator[None]:
        yield

    def handler(message: Message[Any]) -> object:
        return coroutine(message) if message.data == 1 else generator(message)

    reader = api.queen.queue(queue).group("g")
    summary = await api.do(reader.consume, handler, limit=2, on_error=told.append)
    assert (summary.handled, summary.failed) == (0, 2)
    assert [error.kind for error in told] == ["bad_use", "bad_use"]
    assert (await api.do(api.queen.queue(queue).dead_letters().list))["total"] == 2
    await api.close()


async def test_a_callback_that_would_deadlock_gets_an_error_and_may_request_a_stop(broker: str, queue: str) -> None:
    told: list[BaseException] = []
    api = Api(broker, True)
    await api.do(api.queen.queue(queue).push_many, [1, 2])
    consumers: list[Any] = []
    ready = threading.Event()

    def handler(message: Any) -> None:
        ready.wait(PATIENCE)
        raise ValueError("no")

    def on_error(error: Exception) -> None:
        for call in (lambda: api.queen.queue(queue).push(2), api.queen.close, consumers[0].stop):
            try:
                call()
            except QueenError as refused:
                told.append(refused)
        consumers[0].request_stop()

    consumers.append(await api.do(api.queen.queue(queue).group("g").start, handler, on_error=on_error))
    ready.set()
    await api.do(consumers[0].wait)
    assert [type(error) for error in told] == [BadUse, BadUse, BadUse]
    # The refused calls have not closed the client.
    assert await left(api, queue, "g") == [1, 2]
    await api.close()


async def test_who_waits_in_another_thread_hears_that_the_client_was_closed(broker: str, queue: str) -> None:
    api, other = Api(broker, True), Api(broker, False)

    async def parked() -> bool:
        return "queen_parked_pops 0" not in await other.queen.admin.prometheus()

    waiting = asyncio.ensure_future(api.do(api.queen.queue(queue).pop, wait=300))
    ends = time.monotonic() + PATIENCE
    while not await parked():
        assert time.monotonic() < ends
        await asyncio.sleep(0.05)
    await api.close()
    with pytest.raises(Closed):
        await waiting
    await other.close()


def test_threads_that_use_a_closing_client_get_closed(broker: str, queue: str) -> None:
    for _ in range(5):
        queen = Queen(broker)
        begun = threading.Barrier(5)

        def push() -> None:
            handle = queen.queue(queue)
            handle.push(0)
            begun.wait(PATIENCE)
            while True:
                handle.push(1)

        with ThreadPoolExecutor(4) as pool:
            pushing = [pool.submit(push) for _ in range(4)]
            begun.wait(PATIENCE)
            queen.close()
            assert [type(one.exception(PATIENCE)) for one in pushing] == [Closed] * 4


def test_who_closes_while_another_closes_waits_for_it(broker: str, queue: str) -> None:
    queen = Queen(broker)
    queen.queue(queue).push(1)
    with ThreadPoolExecutor(4) as pool:
        for closing in [pool.submit(queen.close) for _ in range(4)]:
            closing.result(PATIENCE)
    assert queen._loop._thread is not None and not queen._loop._thread.is_alive()


def test_what_is_iterated_belongs_to_the_thread_of_the_caller(broker: str, queue: str) -> None:
    with Queen(broker) as queen:
        handle, threads = queen.queue(queue), set()

        def numbers() -> Iterator[int]:
            threads.add(threading.current_thread())
            # In that thread it would deadlock.
            yield len(handle.pop())

        def messages() -> Iterator[Message[Any]]:
            threads.add(threading.current_thread())
            yield from handle.pop(wait=PATIENCE)

        assert [result.status for result in handle.push_many(numbers())] == ["queued"]
        assert [result.success for result in queen.ack(messages())] == [True]
        assert threads == {threading.current_thread()}


def test_a_receipt_that_is_not_waited_for_to_the_end_is_reported() -> None:
    told: list[Exception] = []
    with Queen("http://127.0.0.1:1", deadline=1.0) as queen:
        buffer = queen.queue("q").buffer(linger=0, on_error=told.append)
        receipt = buffer.push(1)
        with pytest.raises(TimedOut):
            receipt.result(timeout=0.01)
        with pytest.raises(QueenError, match="1 messages were not delivered"):
            buffer.close()
        with pytest.raises(NetworkError):
            receipt.result(timeout=0)
    assert len(told) == 1

"""An event loop in its own thread, for callers that have none."""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Callable, Coroutine, Generic, TypeVar

from .errors import BadUse, Closed

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    P = ParamSpec("P")

A = TypeVar("A")
R = TypeVar("R")


class LoopThread:
    """Starts with its first call, so that a client can be created before a fork and used afterwards."""

    def __init__(self) -> None:
        #: Held while closing, so that concurrent calls of close wait for it.
        self._closing = threading.Lock()
        #: Held briefly: nothing is passed to a loop that is ending.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0
        self._closed = False

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Runs a coroutine in the loop and waits for its result."""
        with self._lock:
            try:
                self._check_thread()
                loop = self._running()
            except BaseException:
                coroutine.close()
                raise
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return future.result()
        except CancelledError:
            if self._closed:
                raise Closed("this client was closed in the meantime") from None
            raise
        except BaseException:
            # For example Ctrl-C.
            future.cancel()
            raise

    def soon(self, function: Callable[[], object]) -> None:
        """Schedules a call in the loop without waiting. Also allowed in callbacks."""
        with self._lock:
            self._running().call_soon_threadsafe(function)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a final coroutine if the loop was used, and ends the thread. May be called again."""
        self._check_thread()
        with self._closing:
            with self._lock:
                loop, thread = self._loop, self._thread
                # After a fork there is no thread to end.
                if self._closed or loop is None or thread is None or self._process != os.getpid():
                    self._closed = True
                    return
            # Handlers that are awaited need the client until then.
            ending = asyncio.run_coroutine_threadsafe(last(), loop)
            try:
                ending.result()
            finally:
                with self._lock:
                    self._closed = True
                    loop.call_soon_threadsafe(loop.stop)
                thread.join()

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise Closed("this client is closed; create a new one")
        if self._loop is None:
            self._process = os.getpid()
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_turn, args=(self._loop,), name="queen-client", daemon=True)
            self._thread.start()
        if self._process != os.getpid():
            raise BadUse("this client was used before the process was forked; create one in each process")
        return self._loop

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise BadUse("a callback must not call its own client, because that would deadlock")


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        # Remaining tasks need to clean up.
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class Facade(Generic[A]):
    """Wraps an object of the asyncio client, for callers without an event loop."""

    def __init__(self, inner: A, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[A], P], R]:
    """Wraps a method of the asyncio client and waits for its result."""

    @functools.wraps(method)
    def call(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._inner, *args, **kwargs))

    return call

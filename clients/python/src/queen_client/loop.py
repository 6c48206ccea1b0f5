"""An event loop in a thread of its own, for callers that have none."""

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
    """Starts with its first call, so that a client can be made before a fork and used behind it."""

    def __init__(self) -> None:
        #: Held by who closes, so that others who close wait for it.
        self._closing = threading.Lock()
        #: Held for a moment: nothing is handed to a loop that was told to end.
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._process = 0
        self._closed = False

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Runs it over there and waits for its end."""
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
                raise Closed("this client was closed meanwhile") from None
            raise
        except BaseException:
            # Ctrl-C, for one.
            future.cancel()
            raise

    def soon(self, function: Callable[[], object]) -> None:
        """Has it called over there, and does not wait for that. Also for callbacks."""
        with self._lock:
            self._running().call_soon_threadsafe(function)

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs a last coroutine, if there was a first one, and ends the thread. Twice is fine."""
        self._check_thread()
        with self._closing:
            with self._lock:
                loop, thread = self._loop, self._thread
                # What a fork left behind has no thread to end.
                if self._closed or loop is None or thread is None or self._process != os.getpid():
                    self._closed = True
                    return
            # Handlers that are waited for need the client until then.
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
            raise Closed("this client was closed; make another one")
        if self._loop is None:
            self._process = os.getpid()
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_turn, args=(self._loop,), name="queen-client", daemon=True)
            self._thread.start()
        if self._process != os.getpid():
            raise BadUse("this client was used before the process was forked; make one in each process")
        return self._loop

    def _check_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise BadUse("a callback must not call the client it was called by: it would wait for itself")


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        # What is left wants to clean up.
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


class Facade(Generic[A]):
    """Something of the asyncio client, for callers without an event loop."""

    def __init__(self, inner: A, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop


def blocking(
    method: Callable[Concatenate[A, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[Facade[A], P], R]:
    """A method of the asyncio client that waits for its answer."""

    @functools.wraps(method)
    def call(self: Facade[A], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._loop.run(method(self._inner, *args, **kwargs))

    return call

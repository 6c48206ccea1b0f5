"""Handlers: validation, and running those of the synchronous client in threads."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

from .errors import BadUse, Closed

if TYPE_CHECKING:
    from .consume import AsyncConsumer

_GENERATOR = "a handler must not be a generator"
_COROUTINE = "handlers of Queen must be plain functions; coroutine handlers need AsyncQueen"

#: In a thread of `Threads`: the consumer whose handler it runs.
_current = threading.local()


class NotBegun(Exception):
    """The handler was not called, and will not be."""


def check_handler(handler: Any, *, plain: bool = False) -> None:
    """Rejects generators and coroutines where they would be created but never run."""
    if not callable(handler):
        raise BadUse(f"a handler must be a function, not {handler!r}")
    for function in (handler, getattr(handler, "__call__", None)):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BadUse(_GENERATOR)
        if plain and inspect.iscoroutinefunction(function):
            raise BadUse(_COROUTINE)


async def finish(result: object) -> None:
    """A handler may also be a plain function, if it returns quickly."""
    if inspect.isawaitable(result):
        await result
    else:
        _check_result(result)


def _check_result(result: Any) -> None:
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise BadUse(_GENERATOR)


class Threads:
    """Runs the handlers of one consumer, one thread per worker."""

    def __init__(self, count: int) -> None:
        # A handler that cannot be cancelled keeps its thread until it returns.
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="queen-handler")
        #: Set once the consumer has started.
        self.consumer: AsyncConsumer | None = None

    async def run(self, handler: Callable[[Any], object], argument: Any) -> None:
        try:
            future = self._pool.submit(self._handle, handler, argument)
        except RuntimeError as error:
            # The interpreter is shutting down, which is not a failure of the message.
            assert self.consumer is not None
            self.consumer._give_up(Closed(f"handlers can no longer run; stop the consumer earlier: {error}"))
            raise NotBegun from error
        await asyncio.wrap_future(future)

    def _handle(self, handler: Callable[[Any], object], argument: Any) -> None:
        _current.consumer = self.consumer
        try:
            result = handler(argument)
        finally:
            _current.consumer = None
        if inspect.iscoroutine(result):
            result.close()
        if inspect.isawaitable(result):
            raise BadUse(_COROUTINE)
        _check_result(result)


def current_consumer() -> AsyncConsumer | None:
    """The consumer whose handler this thread runs."""
    consumer: AsyncConsumer | None = getattr(_current, "consumer", None)
    return consumer

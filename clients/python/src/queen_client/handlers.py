"""Handlers: what may be one, and how those of the client without an event loop are run."""

from __future__ import annotations

import asyncio
import inspect
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Callable

from .errors import BadUse, Closed

if TYPE_CHECKING:
    from .consume import AsyncConsumer

_GENERATOR = "a handler must not yield: nobody would run it to its end"
_COROUTINE = "the handlers of Queen are plain functions; coroutines are for AsyncQueen"

#: In a thread of `Threads`: the consumer whose handler it runs.
_current = threading.local()


class NotBegun(Exception):
    """The handler was not called, and will not be."""


def check_handler(handler: Any, *, plain: bool = False) -> None:
    """What is begun and never run would be taken for done."""
    if not callable(handler):
        raise BadUse(f"a handler is a function, not {handler!r}")
    for function in (handler, getattr(handler, "__call__", None)):
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise BadUse(_GENERATOR)
        if plain and inspect.iscoroutinefunction(function):
            raise BadUse(_COROUTINE)


async def finish(result: object) -> None:
    """A handler may also be a plain function, if it is quick."""
    if inspect.isawaitable(result):
        await result
    else:
        _check_result(result)


def _check_result(result: Any) -> None:
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        raise BadUse(_GENERATOR)


class Threads:
    """Runs the handlers of one consumer, as many at a time as it has workers."""

    def __init__(self, count: int) -> None:
        # One that cannot be cancelled keeps its place until it ends.
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="queen-handler")
        #: Known as soon as it has begun.
        self.consumer: AsyncConsumer | None = None

    async def run(self, handler: Callable[[Any], object], argument: Any) -> None:
        try:
            future = self._pool.submit(self._handle, handler, argument)
        except RuntimeError as error:
            # The program ends. That is no fault of the message.
            assert self.consumer is not None
            self.consumer._give_up(Closed(f"handlers cannot be run any more; stop the consumer before: {error}"))
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
    """Whose handler this thread runs."""
    consumer: AsyncConsumer | None = getattr(_current, "consumer", None)
    return consumer

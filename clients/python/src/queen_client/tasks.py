"""Tasks that only their owner cancels, and waits with a limit."""

from __future__ import annotations

import asyncio
from typing import Any, Coroutine, TypeVar

R = TypeVar("R")

#: How long an abandoned task may take to clean up, such as to close its connection.
_LEAVE = 1.0


class Cut(Exception):
    """The task was cancelled by someone other than the caller that waits for it."""


class Owned(asyncio.Task[R]):
    """A task that ignores `cancel()`: it ends by itself, or its owner calls `give_up()`.

    A loop that ends cancels all tasks at once. A request cut off that way may have been executed, and its response (the
    messages of a pop) would be lost. The owner, which is cancelled as well, decides whether to wait for it.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, R]) -> None:
        super().__init__(coroutine, loop=asyncio.get_running_loop())

    def cancel(self, msg: Any = None) -> bool:
        return False

    def give_up(self) -> None:
        super().cancel()


async def within(seconds: float, work: Coroutine[Any, Any, R] | asyncio.Future[R]) -> R:
    """Like `asyncio.wait_for`, which may lose a cancellation before Python 3.12."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=max(0.0, seconds))
        if task.cancelled():
            raise Cut
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        await leave(task)


async def leave(task: asyncio.Future[Any]) -> None:
    """Cancels a task that is not done, and gives it a moment to clean up. Its outcome is discarded."""
    if not task.done():
        task.give_up() if isinstance(task, Owned) else task.cancel()
        await asyncio.wait({task}, timeout=_LEAVE)
    if task.done() and not task.cancelled():
        # Otherwise asyncio complains about an unobserved exception.
        task.exception()

"""Background work of a client, which ends when the client is closed: consumers and buffers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from .errors import Closed, Undelivered

if TYPE_CHECKING:
    from .buffer import AsyncBuffer
    from .consume import AsyncConsumer


class Running:
    def __init__(self) -> None:
        #: Includes consumers without other references.
        self.consumers: set[AsyncConsumer] = set()
        #: A buffer without other references is empty, or held by a task.
        self.buffers: WeakSet[AsyncBuffer[Any]] = WeakSet()
        self._ended = False

    def check_open(self) -> None:
        if self._ended:
            raise Closed("this client is closed; create a new one")

    def check_outside(self) -> None:
        for consumer in self.consumers:
            consumer._check_outside()

    async def end(self) -> None:
        """Stops consumers, then closes buffers, which handlers need until then. Raises errors of undelivered messages."""
        self._ended = True
        try:
            await self._stop(None)
        except asyncio.CancelledError:
            await self._stop(0.0)
            raise
        closing = (buffer.close() for buffer in list(self.buffers))
        ends = await asyncio.gather(*closing, return_exceptions=True)
        untold = [one for end in ends if isinstance(end, Undelivered) for one in end.messages]
        if untold:
            raise Undelivered(untold)

    async def _stop(self, timeout: float | None) -> None:
        # A consumer has already reported the error that it ended with.
        stopping = (consumer.stop(timeout) for consumer in list(self.consumers))
        await asyncio.gather(*stopping, return_exceptions=True)

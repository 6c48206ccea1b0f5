"""The asyncio client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Iterable, Sequence, TypeVar, overload

from .ack import AckResult, AckStatus
from .admin import AsyncAdmin
from .delivery import Delivered
from .errors import BadUse
from .http import Http
from .payload import decoder
from .pop import Source
from .queue import AsyncQueue, AsyncReader, acknowledge_all
from .settings import QueenOptions, Settings, check_name, check_urls
from .traces import AsyncTraces
from .transaction import AsyncTransaction

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class AsyncQueen:
    """A client of one broker, or of several on one database.

    It belongs to one event loop. Use it with `async with`, or call `close()`.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        urls: Sequence[str] | None = None,
        **options: Unpack[QueenOptions],
    ) -> None:
        self._http = Http(Settings(check_urls(url, urls), **options))
        self.admin = AsyncAdmin(self._http)
        self.traces = AsyncTraces(self._http)

    @overload
    def queue(self, name: str) -> AsyncQueue[Any]: ...
    @overload
    def queue(self, name: str, type: type[T]) -> AsyncQueue[T]: ...
    @overload
    def queue(self, name: str, type: Callable[[Any], T]) -> AsyncQueue[T]: ...
    def queue(self, name: str, type: Any = None) -> AsyncQueue[Any]:
        """A queue with payloads of this type: a pydantic model, a dataclass, a TypedDict, or the result of a function."""
        return AsyncQueue(self._http, Source(queue=check_name("queue", name)), decoder(type))

    @overload
    def discover(self, namespace: str | None = None, task: str | None = None) -> AsyncReader[Any]: ...
    @overload
    def discover(
        self, namespace: str | None = None, task: str | None = None, *, type: type[T]
    ) -> AsyncReader[T]: ...
    @overload
    def discover(
        self, namespace: str | None = None, task: str | None = None, *, type: Callable[[Any], T]
    ) -> AsyncReader[T]: ...
    def discover(self, namespace: str | None = None, task: str | None = None, *, type: Any = None) -> AsyncReader[Any]:
        """All queues with these labels, including ones created later."""
        if namespace is None and task is None:
            raise BadUse("discover needs a namespace, a task or both")
        if namespace is not None:
            check_name("namespace", namespace)
        if task is not None:
            check_name("task", task)
        return AsyncReader(self._http, Source(namespace=namespace, task=task), decoder(type))

    async def ack(
        self,
        messages: Iterable[Delivered[Any]],
        status: AckStatus = "completed",
        error: str | BaseException | None = None,
        *,
        deadline: float | None = None,
    ) -> list[AckResult]:
        """Acknowledges messages of one group in one request. A refusal is a result, not an error."""
        return await acknowledge_all(self._http, messages, status, error, deadline)

    def transaction(self) -> AsyncTransaction:
        """A transaction: acknowledgements and pushes, all or nothing."""
        return AsyncTransaction(self._http)

    async def close(self) -> None:
        """Stops consumers, flushes buffers, and closes connections.

        Raises Undelivered if a buffer could not deliver all of its messages.
        """
        self._http.running.check_outside()
        try:
            await self._http.running.end()
        finally:
            await self._http.close()

    async def __aenter__(self) -> AsyncQueen:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

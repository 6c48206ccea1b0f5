"""Handles: a queue, its partitions and groups. Cheap, immutable and reusable; they send nothing, verbs do."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Generic, Iterable, List, Sequence, TypeVar, Union

from .ack import Ack, AckResult, AckStatus, acknowledge, tell_ahead
from .batch import Handle, Summary
from .buffer import AsyncBuffer, BufferOptions, Limits
from .consume import AsyncConsumer, Consume, ConsumeOptions
from .dead_letters import AsyncDeadLetters
from .delivery import Delivered, Delivery
from .errors import BadUse
from .handlers import check_handler, finish
from .http import Http
from .message import AsyncMessage, text_of
from .pop import Pop, PopOptions, Source, pop
from .push import MessageOptions, NewMessage, PushResult, listed, new_message, outgoing, push

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")

#: Default batch size for a handler of batches.
_BATCH = 100

Handler = Callable[[AsyncMessage[T]], Awaitable[object]]
BatchHandler = Callable[[List[AsyncMessage[T]]], Awaitable[object]]


class AsyncReader(Generic[T]):
    """A source of messages: a queue, a partition or queues by label, with or without a consumer group."""

    def __init__(self, http: Http, source: Source, decode: Callable[[Any], Any]) -> None:
        self._http, self._source, self._decode = http, source, decode

    def group(self, name: str) -> AsyncReader[T]:
        """The consumer group to read as. Consumers without a group share one cursor."""
        return AsyncReader(self._http, self._source.with_group(name), self._decode)

    async def pop(self, **options: Unpack[PopOptions]) -> list[AsyncMessage[T]]:
        """Pops up to `batch` messages; an empty list if there are none."""
        wanted = Pop(**options)
        wanted.check(self._source)
        popped = await pop(self._http, self._source, wanted, self._decode)
        return [AsyncMessage(delivery, self._http) for delivery in popped.messages]

    async def consume(self, handler: Handler[T], **options: Unpack[ConsumeOptions]) -> Summary:
        """Handles messages one at a time until the consumer ends. If cancelled, it gives back what it holds."""
        return await _to_its_end(self.start(handler, **options))

    async def consume_batches(self, handler: BatchHandler[T], **options: Unpack[ConsumeOptions]) -> Summary:
        """Handles whole batches, which succeed or fail together."""
        return await _to_its_end(self.start_batches(handler, **options))

    def start(self, handler: Handler[T], **options: Unpack[ConsumeOptions]) -> AsyncConsumer:
        """Starts a consumer in the background."""
        check_handler(handler)

        async def handle(deliveries: Sequence[Delivery]) -> None:
            await finish(handler(AsyncMessage(deliveries[0], self._http)))

        return self._start(handle, False, Consume(**options))

    def start_batches(self, handler: BatchHandler[T], **options: Unpack[ConsumeOptions]) -> AsyncConsumer:
        check_handler(handler)

        async def handle(deliveries: Sequence[Delivery]) -> None:
            await finish(handler([AsyncMessage(delivery, self._http) for delivery in deliveries]))

        options.setdefault("batch", _BATCH)
        return self._start(handle, True, Consume(**options))

    def dead_letters(self) -> AsyncDeadLetters:
        """The dead letters of this queue, partition or group."""
        if self._source.queue is None:
            raise BadUse("dead letters belong to a queue: queen.queue(…).dead_letters()")
        return AsyncDeadLetters(self._http, self._source)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._source}>"

    def _start(self, handle: Handle, together: bool, options: Consume) -> AsyncConsumer:
        return AsyncConsumer(self._http, self._source, self._decode, handle, together, options)


class AsyncQueue(AsyncReader[T]):
    """A queue, or one of its partitions."""

    def partition(self, name: str) -> AsyncQueue[T]:
        """A partition of the queue. Partitions are independent of each other."""
        return AsyncQueue(self._http, self._source.with_partition(name), self._decode)

    async def push(
        self, payload: Union[T, NewMessage[T]], *, deadline: float | None = None, **options: Unpack[MessageOptions]
    ) -> PushResult:
        """Pushes one message. Safe to retry: it gets its transaction id before the first attempt."""
        message = outgoing(self._name, self._source.partition, new_message(payload, None, options))
        return (await push(self._http, [message], deadline))[0]

    async def push_many(
        self, payloads: Iterable[Union[T, NewMessage[T]]], *, deadline: float | None = None
    ) -> list[PushResult]:
        """Pushes messages in one request, in this order."""
        messages = [outgoing(self._name, self._source.partition, payload) for payload in listed(payloads)]
        return await push(self._http, messages, deadline)

    def buffer(self, **options: Unpack[BufferOptions]) -> AsyncBuffer[T]:
        """A buffer that combines many pushes into few requests."""
        return AsyncBuffer(self._http, self._name, self._source.partition, Limits(**options))

    @property
    def _name(self) -> str:
        assert self._source.queue is not None
        return self._source.queue


async def acknowledge_all(
    http: Http,
    messages: Iterable[Delivered[Any]],
    status: AckStatus,
    error: str | BaseException | None,
    deadline: float | None,
) -> list[AckResult]:
    acks = [Ack(message._delivery, status, text_of(error)) for message in messages]
    await tell_ahead(acks)
    return (await acknowledge(http, acks, deadline)).results


async def _to_its_end(consumer: AsyncConsumer) -> Summary:
    try:
        return await consumer.wait()
    except asyncio.CancelledError:
        await consumer.stop(timeout=0)
        raise

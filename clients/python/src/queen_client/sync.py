"""The synchronous client. It wraps the asyncio client, which does everything."""

from __future__ import annotations

import asyncio
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Coroutine,
    Generic,
    Iterable,
    List,
    Sequence,
    TypeVar,
    Union,
    overload,
)

from .ack import AckResult, AckStatus
from .batch import Summary
from .buffer import AsyncBuffer, AsyncReceipt, BufferOptions
from .client import AsyncQueen
from .consume import WAITS_FOR_ITSELF, AsyncConsumer, ConsumeOptions
from .delivery import Delivered
from .errors import BadUse, QueenError, TimedOut
from .handlers import Threads, check_handler, current_consumer
from .loop import Facade, LoopThread, blocking
from .message import AsyncMessage
from .pop import PopOptions
from .push import MessageOptions, NewMessage, PushResult, listed
from .queue import AsyncQueue, AsyncReader
from .settings import QueenOptions, check_count, check_time
from .sync_admin import Admin, DeadLetters, Traces
from .tasks import within
from .transaction import AsyncTransaction, Committed

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Message(Facade[AsyncMessage[T]], Delivered[T]):
    """Each verb is one request. It raises Refused if the broker refuses it because the lease has ended."""

    def __init__(self, inner: AsyncMessage[T], loop: LoopThread) -> None:
        Facade.__init__(self, inner, loop)
        Delivered.__init__(self, inner._delivery)

    ack = blocking(AsyncMessage.ack)
    nack = blocking(AsyncMessage.nack)
    retry = blocking(AsyncMessage.retry)
    dead_letter = blocking(AsyncMessage.dead_letter)
    renew = blocking(AsyncMessage.renew)
    trace = blocking(AsyncMessage.trace)


class Consumer(Facade[AsyncConsumer]):
    """A running consumer. Its handlers run in their own threads."""

    wait = blocking(AsyncConsumer.wait)

    def stop(self, timeout: float | None = None) -> Summary:
        """Pops no more messages, waits for handlers, and gives back unhandled messages.

        Handlers that exceed the timeout continue, with `message.lease_lost` true. Afterwards nothing is leased.
        """
        if current_consumer() is self._inner:
            raise BadUse(WAITS_FOR_ITSELF)
        return self._loop.run(self._inner.stop(timeout))

    def request_stop(self) -> None:
        """Stops without waiting, so that a handler may call it."""
        self._loop.soon(self._inner.request_stop)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Receipt(Facade[AsyncReceipt]):
    """The receipt of a message in a buffer."""

    @property
    def transaction_id(self) -> str:
        return self._inner.transaction_id

    def done(self) -> bool:
        return self._inner.done()

    def result(self, timeout: float | None = None) -> PushResult:
        """Waits for the result of its push."""
        check_time("timeout", timeout)
        return self._loop.run(_awaited(self._inner, timeout))


class Buffer(Facade[AsyncBuffer[T]], Generic[T]):
    """Use it with `with`, or call `close()`."""

    def push(
        self, payload: Union[T, NewMessage[T]], *, partition: str | None = None, **options: Unpack[MessageOptions]
    ) -> Receipt:
        """Returns as soon as the message is in the buffer."""
        return Receipt(self._loop.run(self._inner.push(payload, partition=partition, **options)), self._loop)

    flush = blocking(AsyncBuffer.flush)
    close = blocking(AsyncBuffer.close)

    def __enter__(self) -> Buffer[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Transaction(Facade[AsyncTransaction]):
    """Collects operations, which `commit()` or the end of `with` sends. After an exception nothing is sent."""

    def ack(
        self, message: Delivered[Any], status: AckStatus = "completed", error: str | BaseException | None = None
    ) -> None:
        """Adds an acknowledgement. If it is refused, the whole transaction is rolled back."""
        self._inner.ack(message, status, error)

    def push(
        self, queue: str, payload: Any, *, partition: str | None = None, **options: Unpack[MessageOptions]
    ) -> str:
        """Adds a message. Returns its transaction id."""
        return self._inner.push(queue, payload, partition=partition, **options)

    commit = blocking(AsyncTransaction.commit)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.run(self._inner.__aexit__(*exception))


class Reader(Facade[AsyncReader[T]], Generic[T]):
    """A source of messages: a queue, a partition or queues by label, with or without a consumer group."""

    def group(self, name: str) -> Reader[T]:
        """The consumer group to read as. Consumers without a group share one cursor."""
        return Reader(self._inner.group(name), self._loop)

    def pop(self, **options: Unpack[PopOptions]) -> list[Message[T]]:
        """Pops up to `batch` messages; an empty list if there are none."""
        return [Message(message, self._loop) for message in self._loop.run(self._inner.pop(**options))]

    def consume(self, handler: Callable[[Message[T]], object], **options: Unpack[ConsumeOptions]) -> Summary:
        """Handles messages one at a time until the consumer ends. If interrupted, it gives back what it holds."""
        return _to_its_end(self.start(handler, **options))

    def consume_batches(
        self, handler: Callable[[List[Message[T]]], object], **options: Unpack[ConsumeOptions]
    ) -> Summary:
        """Handles whole batches, which succeed or fail together."""
        return _to_its_end(self.start_batches(handler, **options))

    def start(self, handler: Callable[[Message[T]], object], **options: Unpack[ConsumeOptions]) -> Consumer:
        """Starts a consumer in the background."""
        check_handler(handler, plain=True)

        async def begin(threads: Threads) -> AsyncConsumer:
            async def handle(message: AsyncMessage[T]) -> None:
                await threads.run(handler, Message(message, self._loop))

            return self._inner.start(handle, **options)

        return self._start(begin, options)

    def start_batches(
        self, handler: Callable[[List[Message[T]]], object], **options: Unpack[ConsumeOptions]
    ) -> Consumer:
        check_handler(handler, plain=True)

        async def begin(threads: Threads) -> AsyncConsumer:
            async def handle(messages: List[AsyncMessage[T]]) -> None:
                await threads.run(handler, [Message(message, self._loop) for message in messages])

            return self._inner.start_batches(handle, **options)

        return self._start(begin, options)

    def dead_letters(self) -> DeadLetters:
        """The dead letters of this queue, partition or group."""
        return DeadLetters(self._inner.dead_letters(), self._loop)

    def _start(
        self, begin: Callable[[Threads], Coroutine[Any, Any, AsyncConsumer]], options: ConsumeOptions
    ) -> Consumer:
        count = options.get("concurrency", 1)
        check_count("concurrency", count)
        return Consumer(self._loop.run(_begun(begin, Threads(count))), self._loop)


class Queue(Reader[T]):
    """A queue, or one of its partitions."""

    _inner: AsyncQueue[T]

    def partition(self, name: str) -> Queue[T]:
        """A partition of the queue. Partitions are independent of each other."""
        return Queue(self._inner.partition(name), self._loop)

    def push(
        self, payload: Union[T, NewMessage[T]], *, deadline: float | None = None, **options: Unpack[MessageOptions]
    ) -> PushResult:
        """Pushes one message. Safe to retry: it gets its transaction id before the first attempt."""
        return self._loop.run(self._inner.push(payload, deadline=deadline, **options))

    def push_many(
        self, payloads: Iterable[Union[T, NewMessage[T]]], *, deadline: float | None = None
    ) -> list[PushResult]:
        """Pushes messages in one request, in this order."""
        # Iterated here and not in the loop, where a slow iterator would block everything else.
        messages = listed(payloads)
        return self._loop.run(self._inner.push_many(messages, deadline=deadline))

    def buffer(self, **options: Unpack[BufferOptions]) -> Buffer[T]:
        """A buffer that combines many pushes into few requests."""

        async def begin() -> AsyncBuffer[T]:
            return self._inner.buffer(**options)

        return Buffer(self._loop.run(begin()), self._loop)


class Queen(Facade[AsyncQueen]):
    """A client of one broker, or of several on one database.

    It may be used by several threads. Use it with `with`, or call `close()`.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        urls: Sequence[str] | None = None,
        **options: Unpack[QueenOptions],
    ) -> None:
        super().__init__(AsyncQueen(url, urls=urls, **options), LoopThread())
        self.admin = Admin(self._inner.admin, self._loop)
        self.traces = Traces(self._inner.traces, self._loop)

    @overload
    def queue(self, name: str) -> Queue[Any]: ...
    @overload
    def queue(self, name: str, type: type[T]) -> Queue[T]: ...
    @overload
    def queue(self, name: str, type: Callable[[Any], T]) -> Queue[T]: ...
    def queue(self, name: str, type: Any = None) -> Queue[Any]:
        """A queue with payloads of this type: a pydantic model, a dataclass, a TypedDict, or the result of a function."""
        return Queue(self._inner.queue(name, type), self._loop)

    @overload
    def discover(self, namespace: str | None = None, task: str | None = None) -> Reader[Any]: ...
    @overload
    def discover(self, namespace: str | None = None, task: str | None = None, *, type: type[T]) -> Reader[T]: ...
    @overload
    def discover(
        self, namespace: str | None = None, task: str | None = None, *, type: Callable[[Any], T]
    ) -> Reader[T]: ...
    def discover(self, namespace: str | None = None, task: str | None = None, *, type: Any = None) -> Reader[Any]:
        """All queues with these labels, including ones created later."""
        return Reader(self._inner.discover(namespace, task, type=type), self._loop)

    def ack(
        self,
        messages: Iterable[Delivered[Any]],
        status: AckStatus = "completed",
        error: str | BaseException | None = None,
        *,
        deadline: float | None = None,
    ) -> list[AckResult]:
        """Acknowledges messages of one group in one request. A refusal is a result, not an error."""
        return self._loop.run(self._inner.ack(list(messages), status, error, deadline=deadline))

    def transaction(self) -> Transaction:
        """A transaction: acknowledgements and pushes, all or nothing."""
        return Transaction(self._inner.transaction(), self._loop)

    def close(self) -> None:
        """Stops consumers, flushes buffers, and closes connections.

        Raises Undelivered if a buffer could not deliver all of its messages.
        """
        if current_consumer() in self._inner._http.running.consumers:
            raise BadUse(WAITS_FOR_ITSELF)
        self._loop.close(self._inner.close)

    def __enter__(self) -> Queen:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _to_its_end(consumer: Consumer) -> Summary:
    try:
        return consumer.wait()
    except QueenError:
        raise
    except BaseException:
        # For example Ctrl-C.
        consumer.stop(0)
        raise


async def _begun(begin: Callable[[Threads], Coroutine[Any, Any, AsyncConsumer]], threads: Threads) -> AsyncConsumer:
    # Its first handler is called after this.
    threads.consumer = await begin(threads)
    return threads.consumer


async def _awaited(receipt: AsyncReceipt, timeout: float | None) -> PushResult:
    if timeout is None or receipt.done():
        return await receipt
    try:
        return await within(timeout, receipt._outcome())
    except asyncio.TimeoutError:
        raise TimedOut(f"not done within {timeout} s") from None

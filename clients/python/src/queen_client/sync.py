"""The client for callers without an event loop. Has no behaviour of its own: the asyncio client does everything."""

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
    """Each verb is one request. If the broker refuses it, because the lease has ended, it raises Refused."""

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
    """A running consumer. Its handlers run in threads of their own."""

    wait = blocking(AsyncConsumer.wait)

    def stop(self, timeout: float | None = None) -> Summary:
        """Takes no more messages, waits for handlers, and gives back what they have not begun.

        Handlers that take longer than the timeout are left alone, with `message.lease_lost` true. Afterwards nothing is
        leased any more.
        """
        if current_consumer() is self._inner:
            raise BadUse(WAITS_FOR_ITSELF)
        return self._loop.run(self._inner.stop(timeout))

    def request_stop(self) -> None:
        """The same without waiting for its end, so that a handler may do it."""
        self._loop.soon(self._inner.request_stop)

    def __enter__(self) -> Consumer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Receipt(Facade[AsyncReceipt]):
    """Stands for a message in a buffer."""

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
    """Collects; `commit()` or the end of `with` sends. An exception inside of it sends nothing."""

    def ack(
        self, message: Delivered[Any], status: AckStatus = "completed", error: str | BaseException | None = None
    ) -> None:
        """Adds an acknowledgement. If it would be refused, nothing of the transaction happens."""
        self._inner.ack(message, status, error)

    def push(
        self, queue: str, payload: Any, *, partition: str | None = None, **options: Unpack[MessageOptions]
    ) -> str:
        """Adds a message. Tells its transaction id."""
        return self._inner.push(queue, payload, partition=partition, **options)

    commit = blocking(AsyncTransaction.commit)

    def __enter__(self) -> Transaction:
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.run(self._inner.__aexit__(*exception))


class Reader(Facade[AsyncReader[T]], Generic[T]):
    """Where messages are read: a queue or what is found by labels, with or without a consumer group."""

    def group(self, name: str) -> Reader[T]:
        """As this consumer group, which has a cursor of its own. All who name none share one."""
        return Reader(self._inner.group(name), self._loop)

    def pop(self, **options: Unpack[PopOptions]) -> list[Message[T]]:
        """Messages, as many as there are up to `batch`; none is an empty list."""
        return [Message(message, self._loop) for message in self._loop.run(self._inner.pop(**options))]

    def consume(self, handler: Callable[[Message[T]], object], **options: Unpack[ConsumeOptions]) -> Summary:
        """Handles messages one after the other until the consumer ends. Interrupted, it gives back what it holds."""
        return _to_its_end(self.start(handler, **options))

    def consume_batches(
        self, handler: Callable[[List[Message[T]]], object], **options: Unpack[ConsumeOptions]
    ) -> Summary:
        """Handles whole batches: all of one are done or none."""
        return _to_its_end(self.start_batches(handler, **options))

    def start(self, handler: Callable[[Message[T]], object], **options: Unpack[ConsumeOptions]) -> Consumer:
        """Begins to consume, and returns what can be stopped and waited for."""
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
        """What was given up here."""
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
        """One ordered lane of the queue. Lanes never block one another."""
        return Queue(self._inner.partition(name), self._loop)

    def push(
        self, payload: Union[T, NewMessage[T]], *, deadline: float | None = None, **options: Unpack[MessageOptions]
    ) -> PushResult:
        """Stores one message. Safe to be sent again: it gets its transaction id before the first attempt."""
        return self._loop.run(self._inner.push(payload, deadline=deadline, **options))

    def push_many(
        self, payloads: Iterable[Union[T, NewMessage[T]]], *, deadline: float | None = None
    ) -> list[PushResult]:
        """Stores messages with one request, in this order."""
        # Here and not over there, where a slow iterator would hold up everything else.
        messages = listed(payloads)
        return self._loop.run(self._inner.push_many(messages, deadline=deadline))

    def buffer(self, **options: Unpack[BufferOptions]) -> Buffer[T]:
        """A buffer that turns many single pushes into few requests."""

        async def begin() -> AsyncBuffer[T]:
            return self._inner.buffer(**options)

        return Buffer(self._loop.run(begin()), self._loop)


class Queen(Facade[AsyncQueen]):
    """A connection to one broker or several that share a database.

    May be used by several threads. Use it with `with`, or call `close()`.
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
        """A queue with payloads of this type: a pydantic model, a dataclass, a TypedDict, or what a function makes."""
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
        """All queues with these labels, also those that come later."""
        return Reader(self._inner.discover(namespace, task, type=type), self._loop)

    def ack(
        self,
        messages: Iterable[Delivered[Any]],
        status: AckStatus = "completed",
        error: str | BaseException | None = None,
        *,
        deadline: float | None = None,
    ) -> list[AckResult]:
        """Acknowledges messages of one group with one request. A refusal is a result, not an error."""
        return self._loop.run(self._inner.ack(list(messages), status, error, deadline=deadline))

    def transaction(self) -> Transaction:
        """Acknowledges and pushes together: all of it or nothing."""
        return Transaction(self._inner.transaction(), self._loop)

    def close(self) -> None:
        """Stops its consumers, delivers what its buffers hold, and closes its connections.

        Raises Undelivered if a buffer could not deliver all of it.
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
        # Ctrl-C, for one.
        consumer.stop(0)
        raise


async def _begun(begin: Callable[[Threads], Coroutine[Any, Any, AsyncConsumer]], threads: Threads) -> AsyncConsumer:
    # Its first handler is called later than this.
    threads.consumer = await begin(threads)
    return threads.consumer


async def _awaited(receipt: AsyncReceipt, timeout: float | None) -> PushResult:
    if timeout is None or receipt.done():
        return await receipt
    try:
        return await within(timeout, receipt._outcome())
    except asyncio.TimeoutError:
        raise TimedOut(f"not done within {timeout} s") from None

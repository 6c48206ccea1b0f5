"""A buffer in front of a queue: combines many pushes into few requests. Bounded, ordered, and loses nothing silently."""

from __future__ import annotations

import asyncio
import time
import warnings
import zlib
from collections import deque
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Awaitable,
    Callable,
    Deque,
    Generator,
    Generic,
    Literal,
    Sequence,
    TypedDict,
    TypeVar,
    Union,
)

from .errors import (
    BadRequest,
    BadUse,
    BufferFull,
    Closed,
    OperationFailed,
    QueenError,
    Refused,
    ServerError,
    Undelivered,
)
from .http import Http, check_loop
from .log import hear, log
from .push import MessageOptions, NewMessage, Outgoing, PushResult, new_message, outgoing, push
from .settings import check_count, check_time
from .tasks import within

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class BufferOptions(TypedDict, total=False):
    #: Limits of the buffer.
    max_messages: int
    max_bytes: int
    #: Seconds a message waits for others.
    linger: float
    #: Limits of one request. A larger message is sent alone.
    batch_messages: int
    batch_bytes: int
    #: Concurrent requests. Messages of one partition use the same lane, and a lane sends one request at a time.
    lanes: int
    #: What a push does without room: wait, or raise BufferFull.
    when_full: Literal["wait", "reject"]
    #: Called for undelivered messages whose receipt is not awaited. By default they are logged.
    on_error: Callable[[Exception], object] | None
    #: Time limit of a request including retries, in seconds; the client's if None.
    deadline: float | None


@dataclass(frozen=True)
class Limits:
    max_messages: int = 10_000
    max_bytes: int = 16 * 1024 * 1024
    linger: float = 0.01
    batch_messages: int = 1_000
    batch_bytes: int = 4 * 1024 * 1024
    lanes: int = 4
    when_full: Literal["wait", "reject"] = "wait"
    on_error: Callable[[Exception], object] | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        for what in ("max_messages", "max_bytes", "batch_messages", "batch_bytes", "lanes"):
            check_count(what, getattr(self, what))
        check_time("linger", self.linger)
        check_time("deadline", self.deadline, zero=False)
        if self.when_full not in ("wait", "reject"):
            raise BadUse(f'when_full must be "wait" or "reject", not {self.when_full!r}')


class AsyncReceipt:
    """The receipt of a message in a buffer. Await it for the result of its push."""

    def __init__(self, message: Outgoing, buffer: AsyncBuffer[Any]) -> None:
        self._message = message
        self._buffer = buffer
        self._arrived = time.monotonic()
        self._result: asyncio.Future[PushResult] = asyncio.get_running_loop().create_future()
        #: How many callers wait for the result.
        self._waiting = 0

    @property
    def transaction_id(self) -> str:
        return self._message.transaction_id

    def done(self) -> bool:
        return self._result.done()

    def __await__(self) -> Generator[Any, None, PushResult]:
        return self._outcome().__await__()

    async def _outcome(self) -> PushResult:
        heard = False
        self._waiting += 1
        try:
            await asyncio.wait({self._result})
            heard = True
        finally:
            self._waiting -= 1
            self._buffer._left(self, heard)
        return self._result.result()


class _Lane:
    """Messages to be sent, in order."""

    def __init__(self) -> None:
        self.waiting: Deque[AsyncReceipt] = deque()
        self.bytes = 0
        #: Set when waiting for more messages is useless.
        self.hurry = asyncio.Event()
        self.task: asyncio.Future[None] | None = None

    def add(self, receipt: AsyncReceipt) -> None:
        self.waiting.append(receipt)
        self.bytes += len(receipt._message.item)

    def is_full(self, limits: Limits) -> bool:
        return len(self.waiting) >= limits.batch_messages or self.bytes >= limits.batch_bytes

    def take(self, limits: Limits) -> list[AsyncReceipt]:
        """The next batch: at least one message."""
        batch: list[AsyncReceipt] = []
        size = 0
        while self.waiting and len(batch) < limits.batch_messages:
            next_size = len(self.waiting[0]._message.item)
            if batch and size + next_size > limits.batch_bytes:
                break
            batch.append(self.waiting.popleft())
            size += next_size
        self.bytes -= size
        return batch


class AsyncBuffer(Generic[T]):
    """Use it with `async with`, or call `close()`."""

    def __init__(self, http: Http, queue: str, partition: str | None, limits: Limits) -> None:
        check_loop("a buffer")
        http.running.check_open()
        self._http, self._queue, self._partition, self._limits = http, queue, partition, limits
        self._lanes = [_Lane() for _ in range(limits.lanes)]
        #: Everything that takes up room: not delivered yet, or failed and not reported.
        self._open: dict[AsyncReceipt, None] = {}
        self._failed: dict[AsyncReceipt, QueenError] = {}
        self._bytes = 0
        self._door = asyncio.Lock()
        self._changed = asyncio.Event()
        #: How many callers wait for a flush, during which nothing lingers.
        self._hurried = 0
        self._closed = False
        http.running.buffers.add(self)

    async def push(
        self, payload: Union[T, NewMessage[T]], *, partition: str | None = None, **options: Unpack[MessageOptions]
    ) -> AsyncReceipt:
        """Returns as soon as the message is in the buffer."""
        self._check_open()
        message = outgoing(self._queue, self._partition, new_message(payload, partition, options))
        if len(message.item) > self._limits.max_bytes:
            raise BadUse(f"the message has {len(message.item)} bytes, which exceeds the limit of the buffer")
        # Pushes that wait for room keep their order.
        async with self._door:
            await self._room(len(message.item))
            self._check_open()
            receipt = AsyncReceipt(message, self)
            self._open[receipt] = None
            self._bytes += len(message.item)
        lane = self._lanes[zlib.crc32(f"{message.queue}\0{message.partition}".encode()) % len(self._lanes)]
        lane.add(receipt)
        if self._hurried or lane.is_full(self._limits):
            lane.hurry.set()
        if lane.task is None:
            lane.task = asyncio.ensure_future(self._run(lane))
        return receipt

    async def flush(self) -> None:
        """Waits until all messages are delivered or have failed. Raises Undelivered for failures that were not reported."""
        if self._open:
            await self._hurry(asyncio.wait([receipt._result for receipt in self._open]))
        self._report()

    async def close(self) -> None:
        """Flushes, and accepts no more messages."""
        self._closed = True
        self._tell_changed()
        await self.flush()

    async def __aenter__(self) -> AsyncBuffer[T]:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        # Attributes may be missing if the constructor raised.
        left = len(getattr(self, "_open", ())) + len(getattr(self, "_failed", ()))
        if left:
            warnings.warn(f"a buffer with {left} messages was not closed", ResourceWarning, stacklevel=2)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this buffer is closed")

    async def _room(self, size: int) -> None:
        while not self._closed and not self._fits(size):
            held = len(self._open) + len(self._failed)
            if self._limits.when_full == "reject":
                raise BufferFull(f"the buffer holds {held} messages of {self._bytes} bytes")
            if not self._open:
                raise BufferFull("the buffer is full of undelivered messages; flush() returns them")
            await self._hurry(self._changed.wait())

    async def _hurry(self, until: Awaitable[object]) -> None:
        self._hurried += 1
        try:
            for lane in self._lanes:
                lane.hurry.set()
            await until
        finally:
            self._hurried -= 1

    def _fits(self, size: int) -> bool:
        held = len(self._open) + len(self._failed)
        return held < self._limits.max_messages and self._bytes + size <= self._limits.max_bytes

    def _release(self, receipt: AsyncReceipt) -> None:
        self._open.pop(receipt, None)
        self._failed.pop(receipt, None)
        self._bytes -= len(receipt._message.item)
        self._tell_changed()

    def _tell_changed(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _run(self, lane: _Lane) -> None:
        batch: list[AsyncReceipt] = []
        try:
            while lane.waiting:
                await self._linger(lane)
                batch = lane.take(self._limits)
                await self._deliver(batch)
                batch = []
        except asyncio.CancelledError:
            lost = [receipt for receipt in (*batch, *lane.waiting) if not receipt.done()]
            lane.waiting.clear()
            self._fail(lost, Closed("the event loop ended before the message was delivered"))
            warnings.warn(f"a buffer with {len(lost)} messages was not closed", ResourceWarning, stacklevel=2)
            raise
        finally:
            lane.task = None

    async def _linger(self, lane: _Lane) -> None:
        left = lane.waiting[0]._arrived + self._limits.linger - time.monotonic()
        if left > 0 and not self._hurried and not lane.is_full(self._limits):
            lane.hurry.clear()
            try:
                await within(left, lane.hurry.wait())
            except asyncio.TimeoutError:
                pass

    async def _deliver(self, batch: Sequence[AsyncReceipt]) -> None:
        try:
            results = await push(self._http, [receipt._message for receipt in batch], self._limits.deadline)
        except (Refused, OperationFailed) as error:
            results = error.results
        except BadRequest as error:
            # A refused message must not fail the others.
            if len(batch) > 1 and error.status in (400, 413):
                middle = len(batch) // 2
                await self._deliver(batch[:middle])
                await self._deliver(batch[middle:])
            else:
                self._fail(batch, error)
            return
        except QueenError as error:
            self._fail(batch, error)
            return
        except Exception as error:
            # A bug of the client, which still must be reported.
            self._fail(batch, ServerError(f"the push ended with {error!r}"))
            return
        for receipt, result in zip(batch, results):
            if result.status == "failed":
                self._fail([receipt], _failure(result))
            elif not receipt._result.done():
                receipt._result.set_result(result)
                self._release(receipt)

    def _fail(self, receipts: Sequence[AsyncReceipt], error: QueenError) -> None:
        untold = []
        for receipt in receipts:
            if receipt._result.done():
                continue
            receipt._result.set_exception(error)
            # Keeps asyncio from complaining about an unobserved exception; it is reported below.
            receipt._result.exception()
            self._open.pop(receipt, None)
            self._failed[receipt] = error
            if not receipt._waiting:
                untold.append((receipt._message.message, error))
        self._tell_changed()
        self._tell(untold)

    def _left(self, receipt: AsyncReceipt, heard: bool) -> None:
        """A caller stops waiting for a receipt. If it has seen the failure, the failure counts as reported."""
        if receipt not in self._failed:
            return
        if heard:
            self._release(receipt)
        elif not receipt._waiting:
            self._tell([(receipt._message.message, self._failed[receipt])])

    def _tell(self, untold: list[tuple[NewMessage[Any], QueenError]]) -> None:
        if not untold:
            return
        error = Undelivered(untold)
        if self._limits.on_error is not None:
            hear(self._limits.on_error, error)
        else:
            log.error("%s (queue %s)", error, self._queue)

    def _report(self) -> None:
        # A waiting caller is about to see the failure.
        failed = [(receipt, error) for receipt, error in self._failed.items() if not receipt._waiting]
        for receipt, _ in failed:
            self._release(receipt)
        if failed:
            raise Undelivered([(receipt._message.message, error) for receipt, error in failed])


def _failure(result: PushResult) -> QueenError:
    if result.operation is not None:
        return OperationFailed(result.error or "", result.operation.id, [result])
    return Refused(f"the message was refused: {result.error}", [result])

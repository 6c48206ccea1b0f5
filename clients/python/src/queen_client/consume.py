"""Consumers: pop, handle and acknowledge in a loop until stopped."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from typing import Any, Callable, Sequence, TypedDict

from . import wire
from .batch import Batch, Handle, Rules, Summary
from .brokers import Route
from .delivery import Delivery
from .errors import BadUse, QueenError
from .http import Http, Request, check_loop
from .log import ConsumerLog, hear
from .pop import NOTHING, Pop, Popped, Source, Subscription, Wait, pop
from .settings import check_count, check_time
from .tasks import Owned, leave

#: Time limit of the response to a pop whose wait was ended, and when to repeat that request.
_END_PATIENCE = 5.0
_END_AGAIN = 0.1
#: Maximum pause after an empty response that came too early, as during maintenance.
_EMPTY_PAUSE_MAX = 1.0
WAITS_FOR_ITSELF = "a handler cannot wait for its own consumer to stop; call consumer.request_stop() instead"
#: How long cancelled workers may take to give back messages.
_CLEAN_UP = 10.0


class ConsumeOptions(TypedDict, total=False):
    """Times are seconds."""

    #: Maximum messages per pop: 1, or 100 for a handler of batches.
    batch: int
    partitions: int
    #: Number of batches handled concurrently.
    concurrency: int
    #: Stop after this many messages.
    limit: int | None
    #: Stop after this long without a message.
    idle_timeout: float | None
    #: How long a pop waits.
    wait: float
    #: Lease time; the queue's `leaseTime` if None.
    lease: float | None
    #: Acknowledge a message when its handler returns; otherwise the handler does it. If it raises, the message fails with
    #: the error's text in any case, unless the handler has reported another outcome.
    auto_ack: bool
    #: Renew the lease while the handler runs.
    renew: bool
    subscription: Subscription | None
    #: How long `stop()` waits for handlers before it cancels them.
    stop_timeout: float
    #: Called for all errors, including those that are retried. By default they are logged.
    on_error: Callable[[Exception], object] | None


@dataclass(frozen=True)
class Consume:
    batch: int = 1
    partitions: int = 1
    concurrency: int = 1
    limit: int | None = None
    idle_timeout: float | None = None
    wait: float = 30.0
    lease: float | None = None
    auto_ack: bool = True
    renew: bool = True
    subscription: Subscription | None = None
    stop_timeout: float = 30.0
    on_error: Callable[[Exception], object] | None = None

    def check(self, source: Source) -> None:
        self.pop(self.batch, self.wait).check(source)
        check_count("concurrency", self.concurrency)
        check_count("limit", self.limit)
        check_time("idle_timeout", self.idle_timeout, zero=False)
        check_time("wait", self.wait, zero=False)
        check_time("stop_timeout", self.stop_timeout)

    def pop(self, batch: int, wait: float) -> Pop:
        return Pop(batch, self.partitions, wait, self.lease, False, self.subscription, deadline=math.inf)


class AsyncConsumer:
    """A running consumer. Ends by its limit, its idle timeout, a permanent error of a pop, or `stop()`."""

    def __init__(
        self, http: Http, source: Source, decode: Callable[[Any], Any], handle: Handle, together: bool, options: Consume
    ) -> None:
        check_loop("a consumer")
        options.check(source)
        http.running.check_open()
        self._http, self._source, self._decode, self._options = http, source, decode, options
        self._summary = Summary()
        self._log = ConsumerLog(source)
        #: How many messages workers may still pop.
        self._room = math.inf if options.limit is None else options.limit
        self._reserved = 0
        self._busy = 0
        self._last_message = time.monotonic()
        self._changed = asyncio.Event()
        self._failure: Exception | None = None
        #: The running handlers.
        self._handlers: set[asyncio.Future[object]] = set()
        self._stop, self._abort = asyncio.Event(), asyncio.Event()
        self._stopped = asyncio.ensure_future(self._stop.wait())
        self._aborted = asyncio.ensure_future(self._abort.wait())
        self._rules = Rules(
            http,
            handle,
            together,
            options.auto_ack,
            options.renew,
            self._stop,
            self._aborted,
            self._handlers,
            self._tell,
        )
        http.running.consumers.add(self)
        self._task = asyncio.ensure_future(self._run())

    async def wait(self) -> Summary:
        """Waits until it ends. Raises the error that it ended with."""
        return await asyncio.shield(self._task)

    async def stop(self, timeout: float | None = None) -> Summary:
        """Pops no more messages, waits for handlers, and gives back unhandled messages.

        Handlers that exceed the timeout are cancelled. Afterwards nothing is leased.
        """
        check_time("timeout", timeout)
        self._check_outside()
        self.request_stop()
        await asyncio.wait({self._task}, timeout=self._options.stop_timeout if timeout is None else timeout)
        self._abort.set()
        return await asyncio.shield(self._task)

    def request_stop(self) -> None:
        """Stops without waiting, so that a handler may call it."""
        self._stop.set()
        self._tell_workers()

    async def __aenter__(self) -> AsyncConsumer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _check_outside(self) -> None:
        if asyncio.current_task() in self._handlers:
            raise BadUse(WAITS_FOR_ITSELF)

    def _give_up(self, error: Exception) -> None:
        """Ends it with this error."""
        if self._failure is None:
            self._failure = error
            self._tell(error, "consumer")
            self.request_stop()

    async def _run(self) -> Summary:
        workers = [asyncio.ensure_future(self._work(number)) for number in range(self._options.concurrency)]
        try:
            await asyncio.wait(workers)
        except asyncio.CancelledError:
            # As at the end of a loop, which cancels the workers as well.
            self._abort.set()
            self.request_stop()
            await asyncio.wait(workers, timeout=_CLEAN_UP)
            raise
        finally:
            for task in (*workers, self._stopped, self._aborted):
                task.cancel()
            self._http.running.consumers.discard(self)
        if self._failure is not None:
            raise self._failure
        return self._summary

    async def _work(self, number: int) -> None:
        try:
            await self._take_turns(number)
        except Exception as error:
            self._give_up(error)

    async def _take_turns(self, number: int) -> None:
        empty = 0
        while (batch := await self._reserve()) > 0:
            used = 0
            try:
                wait = self._next_wait()
                if wait is None:
                    return
                began = time.monotonic()
                popped = await self._pop(number, batch, wait)
                if popped.messages:
                    used = await self._handle_popped(popped)
                    empty = 0
                elif time.monotonic() - began < wait / 2:
                    pause = min(self._http.settings.retry_delay * 2**empty, _EMPTY_PAUSE_MAX)
                    empty = min(empty + 1, 30)
                    await asyncio.wait({self._stopped}, timeout=pause)
            finally:
                self._reserved -= batch
                self._room -= used
                self._tell_workers()

    async def _reserve(self) -> int:
        """How many messages a worker may pop; 0 if it should end."""
        while not self._stop.is_set() and self._room > 0:
            free = min(self._options.batch, self._room - self._reserved)
            if free > 0:
                self._reserved += int(free)
                return int(free)
            # Other workers may not receive what they have reserved.
            await self._changed.wait()
        return 0

    def _tell_workers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _next_wait(self) -> float | None:
        """How long the next pop waits; None if the idle timeout has passed."""
        idle = self._options.idle_timeout
        if idle is None or self._busy > 0:
            return min(self._options.wait, idle or math.inf)
        left = self._last_message + idle - time.monotonic()
        return min(self._options.wait, left) if left > 0 else None

    async def _pop(self, number: int, batch: int, seconds: float) -> Popped:
        wait, options = Wait(), self._options.pop(batch, seconds)
        call = Owned(
            pop(self._http, self._source, options, self._decode, worker=number, ending=wait, on_error=self._pop_failed)
        )
        try:
            await asyncio.wait({call, self._stopped}, return_when=asyncio.FIRST_COMPLETED)
            if call.done():
                popped = call.result()
                self._log.pop_worked()
                return popped
            await self._end(call, wait)
            if call.done() and not call.cancelled() and call.exception() is None:
                return call.result()
            return NOTHING
        except asyncio.CancelledError:
            # Its response may be in transit, and may contain messages that other workers are giving back.
            await self._end(call, wait)
            if call.done() and not call.cancelled() and call.exception() is None:
                await Batch(self._rules, call.result()).give_back()
            raise
        finally:
            await leave(call)

    async def _end(self, call: asyncio.Future[Popped], wait: Wait) -> None:
        """Asks the broker to end a waiting pop. If it does not respond, the connection is dropped."""
        ends = time.monotonic() + _END_PATIENCE
        while not call.done() and wait.broker is not None and (left := ends - time.monotonic()) > 0:
            where, route = wire.path("pop", "waits", wait.id), Route(broker=wait.broker)
            try:
                answer = await self._http.call(Request("DELETE", where, route=route, deadline=left))
                ended = isinstance(answer.body, dict) and answer.body.get("ended") is True
            except QueenError:
                ended = False
            # The broker may not have received the pop yet.
            left = ends - time.monotonic()
            await asyncio.wait({call}, timeout=max(0.0, left if ended else min(left, _END_AGAIN)))

    async def _handle_popped(self, popped: Popped) -> int:
        """Counts handled messages, whatever their outcome."""
        self._last_message = time.monotonic()
        self._busy += 1
        try:
            did = await Batch(self._rules, popped).handle()
        finally:
            self._busy -= 1
            self._last_message = time.monotonic()
        self._summary.handled += did.handled
        self._summary.failed += did.failed
        self._summary.batches += did.batches
        return did.handled + did.failed

    def _pop_failed(self, error: QueenError) -> None:
        self._tell(error, "pop")

    def _tell(self, error: Exception, during: str, messages: Sequence[Delivery] = ()) -> None:
        if self._options.on_error is not None:
            hear(self._options.on_error, error)
        else:
            self._log.failed(error, during, messages)

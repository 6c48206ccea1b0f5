"""A batch of a consumer: runs its handler, renews its lease, and acknowledges its messages."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Awaitable, Callable, Sequence

from .ack import acknowledge, renew
from .delivery import Delivery
from .errors import DecodeError, NotFound, Refused
from .handlers import NotBegun
from .http import Http
from .ledger import Ledger
from .message import text_of
from .pop import Popped
from .tasks import leave

#: A batch that takes longer is acknowledged in parts, so that a crash repeats little.
_SLOW = 1.0

#: Minimum time for a renewal, when the lease has nearly ended.
_RENEWAL_MIN = 0.1

#: Handles decoded messages: one, or all of a batch.
Handle = Callable[[Sequence[Delivery]], Awaitable[object]]


@dataclass
class Summary:
    """What a consumer did."""

    #: Messages whose handler returned.
    handled: int = 0
    #: Messages whose handler raised, or that could not be decoded.
    failed: int = 0
    batches: int = 0


@dataclass(frozen=True)
class Rules:
    """How the batches of a consumer are handled."""

    http: Http
    handle: Handle
    #: Whether the handler takes a whole batch.
    together: bool
    auto_ack: bool
    renew: bool
    #: Set when no further message is to be handled.
    stop: asyncio.Event
    #: Done when running handlers are no longer awaited.
    aborted: asyncio.Future[Any]
    #: The running handlers.
    handlers: set[asyncio.Future[object]]
    #: Called with an error, its context (`handler`, `acknowledgement`, `renewal`, `lease`), and its messages.
    tell: Callable[[Exception, str, Sequence[Delivery]], None]


class Batch:
    def __init__(self, rules: Rules, popped: Popped) -> None:
        self._rules = rules
        self._messages = popped.messages
        self._lease = popped.lease
        self._ends = time.monotonic() + (popped.lease.seconds if popped.lease else 0.0)
        self._ledger = Ledger(popped.messages, rules.auto_ack)
        self._did = Summary()
        #: The handler while it runs.
        self._running: asyncio.Future[object] | None = None

    async def handle(self) -> Summary:
        """Handles messages, and gives the rest back. Afterwards nothing of the batch is leased, if possible."""
        if self._rules.stop.is_set():
            await self.give_back()
            return self._did
        self._did.batches = 1
        if self._lease is not None:
            self._lease.stop, self._lease.ahead = self._rules.stop, self._settle
        renewing = asyncio.ensure_future(self._renew())
        try:
            await (self._handle_together() if self._rules.together else self._handle_each())
            await self.give_back()
        except asyncio.CancelledError:
            await self.give_back()
            raise
        finally:
            if self._lease is not None:
                self._lease.ahead = None
            await leave(renewing)
        return self._did

    async def give_back(self) -> None:
        """Sends due acknowledgements, and gives back unhandled messages."""
        if self._is_lost():
            return
        self._ledger.give_back()
        try:
            await self._settle()
        except asyncio.CancelledError:
            # Otherwise the messages would stay leased. A second cancellation interrupts this, too.
            await self._settle()
            raise

    async def _handle_each(self) -> None:
        told = time.monotonic()
        for message in self._messages:
            if self._rules.stop.is_set() or self._is_lost():
                return
            if not self._ledger.is_open(message) or not self._is_decoded(message):
                continue
            finished, error = await self._call([message])
            # A lost message is redelivered, so it counts neither as handled nor as failed.
            if self._is_lost() or not finished:
                return
            if error is None:
                self._did.handled += 1
                self._ledger.done(message)
            else:
                self._did.failed += 1
                self._rules.tell(error, "handler", [message])
                self._ledger.failed(message, text_of(error))
            if time.monotonic() - told > _SLOW:
                await self._settle()
                told = time.monotonic()

    async def _handle_together(self) -> None:
        messages = []
        for message in self._messages:
            # A message that cannot be decoded blocks those behind it in its partition.
            if self._ledger.is_open(message) and self._is_decoded(message):
                messages.append(message)
        if not messages:
            return
        finished, error = await self._call(messages)
        if self._is_lost() or not finished:
            return
        if error is not None:
            self._did.failed += len(messages)
            self._rules.tell(error, "handler", messages)
            self._ledger.all_failed(messages, text_of(error))
            return
        self._did.handled += len(messages)
        for message in messages:
            self._ledger.done(message)

    def _is_decoded(self, message: Delivery) -> bool:
        """A payload that does not fit fails its message, and not the consumer."""
        try:
            message.data()
            return True
        except DecodeError as error:
            self._did.failed += 1
            self._rules.tell(error, "handler", [message])
            self._ledger.failed(message, text_of(error.message))
            return False

    async def _call(self, messages: Sequence[Delivery]) -> tuple[bool, Exception | None]:
        """Returns whether the handler finished, and its error."""
        task = self._running = asyncio.ensure_future(self._rules.handle(messages))
        self._rules.handlers.add(task)
        try:
            await asyncio.wait({task, self._rules.aborted}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._running = None
            if not task.done():
                if self._lease is not None:
                    self._lease.given_up.set()
                await leave(task)
            self._rules.handlers.discard(task)
        if not task.done() or (task.cancelled() and self._rules.aborted.done()):
            return False, None
        if task.cancelled():
            return True, RuntimeError("the handler was cancelled")
        error = task.exception()
        if isinstance(error, NotBegun):
            return False, None
        return True, error if error is None or isinstance(error, Exception) else RuntimeError(repr(error))

    async def _renew(self) -> None:
        """Renews the lease. If it is lost, the handler is cancelled and nothing of the batch is acknowledged."""
        lease = self._lease
        if lease is None or not self._rules.renew:
            return
        due = self._ends - lease.seconds * 2 / 3
        while True:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            sent = time.monotonic()
            left = max(self._ends - sent, _RENEWAL_MIN)
            try:
                # A renewal without a response must leave time for another one.
                await renew(self._rules.http, lease, lease.seconds, deadline=left, timeout=lease.seconds / 6)
                self._ends, due = sent + lease.seconds, sent + lease.seconds / 3
                continue
            except Exception as error:
                failure = error
            now = time.monotonic()
            gone = isinstance(failure, (Refused, NotFound)) or now >= self._ends
            if gone and self._ledger.is_settled():
                return
            self._rules.tell(failure, "lease" if gone else "renewal", self._messages)
            if gone:
                lease.lost.set()
                if self._running is not None:
                    self._running.cancel()
                return
            due = min(now + lease.seconds / 10, self._ends)

    def _is_lost(self) -> bool:
        return self._lease is not None and self._lease.lost.is_set()

    async def _settle(self) -> None:
        """Sends due acknowledgements. If that fails they stay due; eventually the messages are redelivered."""
        acks = self._ledger.take()
        if not acks:
            return
        try:
            acked = await acknowledge(self._rules.http, acks)
        except BaseException as error:
            self._ledger.put_back(acks)
            if not isinstance(error, Exception):
                raise
            self._rules.tell(error, "acknowledgement", [ack.delivery for ack in acks])
            return
        for ack, result in zip(acks, acked.results):
            if not result.success:
                self._ledger.refused(ack.delivery)
                # The lease of a message to give back may have ended already.
                if ack.status != "retry":
                    self._rules.tell(acked.refusal(ack, result), "acknowledgement", [ack.delivery])

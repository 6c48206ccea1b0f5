"""A delivered message and what can be done with it."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Sequence, TypeVar

from .ack import Ack, AckResult, acknowledge_one, check_ackable, renew
from .delivery import Delivered, Delivery
from .http import Http
from .settings import check_time
from .traces import add_trace

T = TypeVar("T")


class AsyncMessage(Delivered[T]):
    """Each verb is one request. If the broker refuses it, because the lease has ended, it raises Refused."""

    def __init__(self, delivery: Delivery, http: Http) -> None:
        super().__init__(delivery)
        self._http = http

    async def ack(self, *, deadline: float | None = None) -> AckResult:
        """Done, **and with it everything delivered before it** in its partition."""
        return await acknowledge_one(self._http, Ack(self._delivery, "completed"), deadline)

    async def nack(self, error: str | BaseException | None = None, *, deadline: float | None = None) -> AckResult:
        """Failed: comes again while the queue's retries last, and is a dead letter then."""
        return await acknowledge_one(self._http, Ack(self._delivery, "failed", text_of(error)), deadline)

    async def retry(self, *, deadline: float | None = None) -> AckResult:
        """Given back: comes again, at no cost, and so does everything behind it."""
        return await acknowledge_one(self._http, Ack(self._delivery, "retry"), deadline)

    async def dead_letter(
        self, reason: str | BaseException | None = None, *, deadline: float | None = None
    ) -> AckResult:
        """Given up: a dead letter now. **Everything delivered before it** in its partition is done."""
        return await acknowledge_one(self._http, Ack(self._delivery, "dlq", text_of(reason)), deadline)

    async def renew(self, seconds: float | None = None, *, deadline: float | None = None) -> datetime:
        """Keeps the message, and all that came with it, for so long from now on. Tells until when."""
        check_ackable(self._delivery)
        check_time("seconds", seconds, zero=False)
        lease = self._delivery.lease
        assert lease is not None
        return await renew(self._http, lease, lease.seconds if seconds is None else seconds, deadline)

    async def trace(
        self, data: Any, *, names: str | Sequence[str] | None = None, event_type: str | None = None
    ) -> str:
        """Notes something about the message. Answers the id of the note. If an answer is lost it may be there twice."""
        delivery = self._delivery
        return await add_trace(
            self._http,
            delivery.transaction_id,
            delivery.partition_id,
            data,
            group=delivery.group,
            names=names,
            event_type=event_type,
        )


def text_of(error: str | BaseException | None) -> str | None:
    """The text of an error; many say nothing but what they are."""
    if isinstance(error, BaseException):
        error = str(error) or type(error).__name__
    # A name of a file may hold half a character, which cannot be sent.
    return None if error is None else error.encode("utf-8", "replace").decode()

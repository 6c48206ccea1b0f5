"""A delivered message and its verbs."""

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
    """Each verb is one request. It raises Refused if the broker refuses it because the lease has ended."""

    def __init__(self, delivery: Delivery, http: Http) -> None:
        super().__init__(delivery)
        self._http = http

    async def ack(self, *, deadline: float | None = None) -> AckResult:
        """Marks it as completed, **with everything delivered before it** in its partition."""
        return await acknowledge_one(self._http, Ack(self._delivery, "completed"), deadline)

    async def nack(self, error: str | BaseException | None = None, *, deadline: float | None = None) -> AckResult:
        """Marks it as failed: it is redelivered until the queue's retries are exhausted, then it becomes a dead letter."""
        return await acknowledge_one(self._http, Ack(self._delivery, "failed", text_of(error)), deadline)

    async def retry(self, *, deadline: float | None = None) -> AckResult:
        """Returns it for redelivery, with everything behind it, without counting a failure."""
        return await acknowledge_one(self._http, Ack(self._delivery, "retry"), deadline)

    async def dead_letter(
        self, reason: str | BaseException | None = None, *, deadline: float | None = None
    ) -> AckResult:
        """Makes it a dead letter now. **Everything delivered before it** in its partition is completed."""
        return await acknowledge_one(self._http, Ack(self._delivery, "dlq", text_of(reason)), deadline)

    async def renew(self, seconds: float | None = None, *, deadline: float | None = None) -> datetime:
        """Extends the lease of everything delivered with it to this long from now. Returns when it ends."""
        check_ackable(self._delivery)
        check_time("seconds", seconds, zero=False)
        lease = self._delivery.lease
        assert lease is not None
        return await renew(self._http, lease, lease.seconds if seconds is None else seconds, deadline)

    async def trace(
        self, data: Any, *, names: str | Sequence[str] | None = None, event_type: str | None = None
    ) -> str:
        """Attaches a note to the message. Returns the id of the note. After a lost response it may exist twice."""
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
    """The text of an error; for many, only their type is informative."""
    if isinstance(error, BaseException):
        error = str(error) or type(error).__name__
    # A file name may contain a lone surrogate, which cannot be sent.
    return None if error is None else error.encode("utf-8", "replace").decode()

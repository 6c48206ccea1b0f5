"""What a broker delivered: the record behind a message, whichever client shows it."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime
from typing import Any, Awaitable, Callable, Generic, Mapping, TypeVar

from . import wire

T = TypeVar("T")

_NOT_YET: Any = object()


class Lease:
    """All messages of one pop share one."""

    def __init__(self, id: str, seconds: float, broker: int) -> None:
        self.id = id
        self.seconds = seconds
        #: Who gave it.
        self.broker = broker
        #: Set when it is gone, by the words of the broker or by the clock.
        self.lost = threading.Event()
        #: Set when its consumer does not wait any longer for the handler of its messages.
        self.given_up = threading.Event()
        #: Set when that consumer was told to stop.
        self.stop: asyncio.Event | None = None
        #: Tells the broker what that consumer has not told yet.
        self.ahead: Callable[[], Awaitable[None]] | None = None


class Delivery:
    """A delivered message, and what became of it. Raises KeyError if the broker left something out."""

    def __init__(
        self, fields: Mapping[str, Any], decode: Callable[[Any], Any], broker: int, lease: Lease | None
    ) -> None:
        self.fields = fields
        self.id: str = fields["id"]
        self.transaction_id: str = fields["transactionId"]
        self.queue: str = fields["queue"]
        self.partition: str = fields["partition"]
        self.partition_id: str = fields["partitionId"]
        self.raw: Any = fields["data"]
        group: str = fields["consumerGroup"]
        self.group = None if group == wire.QUEUE_MODE else group
        self.broker = broker
        self.lease = lease
        #: The status it was acknowledged with.
        self.settled: str | None = None
        #: Whether that has ended the lease on its partition as far as anybody can tell, and whether the broker said so.
        self.ended = self.released = False
        self._decode = decode
        self._decoded = _NOT_YET

    def data(self) -> Any:
        if self._decoded is _NOT_YET:
            self._decoded = self._decode(self.raw)
        return self._decoded

    def settle(self, status: str, *, dead_letter: bool = False, released: bool = False) -> None:
        """It was acknowledged. A nack whose retries are spent makes a dead letter, and the lease stays."""
        self.settled, self.released = status, released
        self.ended = released or (status in ("failed", "retry") and not dead_letter)


class Delivered(Generic[T]):
    """What can be read from a message."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def id(self) -> str:
        return self._delivery.id

    @property
    def transaction_id(self) -> str:
        """The producer's id for it."""
        return self._delivery.transaction_id

    @property
    def queue(self) -> str:
        return self._delivery.queue

    @property
    def partition(self) -> str:
        return self._delivery.partition

    @property
    def partition_id(self) -> str:
        return self._delivery.partition_id

    @property
    def group(self) -> str | None:
        """The consumer group it was delivered to."""
        return self._delivery.group

    @property
    def data(self) -> T:
        """The payload as the type of the queue. Raises DecodeError if it is something else."""
        data: T = self._delivery.data()
        return data

    @property
    def raw(self) -> Any:
        """The payload as JSON has it."""
        return self._delivery.raw

    @property
    def created_at(self) -> datetime:
        return wire.parse_time(self._delivery.fields["createdAt"])

    @property
    def retry_count(self) -> int:
        """How often it has failed before."""
        return int(self._delivery.fields.get("retryCount") or 0)

    @property
    def trace_id(self) -> str | None:
        return self._delivery.fields.get("traceId")

    @property
    def traceparent(self) -> str | None:
        return self._delivery.fields.get("traceparent")

    @property
    def tracestate(self) -> str | None:
        return self._delivery.fields.get("tracestate")

    @property
    def original_transaction_id(self) -> str | None:
        """The producer's id of a message that was replayed from a dead letter and has a new `transaction_id`."""
        return self._delivery.fields.get("originalTransactionId")

    @property
    def producer(self) -> str | None:
        """Who pushed it, if the broker has access control."""
        return self._delivery.fields.get("producerSub")

    @property
    def lease_id(self) -> str | None:
        """None if it was acknowledged at delivery."""
        return self._delivery.lease.id if self._delivery.lease else None

    @property
    def lease_lost(self) -> bool:
        """Whether the message is not its own any more: a consumer has lost its lease, or has given it back because its
        handler took too long to stop. What the handler does now is done twice."""
        lease = self._delivery.lease
        return lease is not None and (lease.lost.is_set() or lease.given_up.is_set())

    @property
    def stopping(self) -> bool:
        """Whether its consumer was told to stop. It waits for this handler, and begins no other."""
        lease = self._delivery.lease
        return lease is not None and lease.stop is not None and lease.stop.is_set()

    def __repr__(self) -> str:
        # Without the payload: messages end up in logs.
        return f"<{type(self).__name__} {self.transaction_id} of {self.queue}/{self.partition}>"

"""The record of a delivered message, shared by the asyncio and the synchronous client."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime
from typing import Any, Awaitable, Callable, Generic, Mapping, TypeVar

from . import wire

T = TypeVar("T")

_NOT_YET: Any = object()


class Lease:
    """The lease of a pop, shared by its messages."""

    def __init__(self, id: str, seconds: float, broker: int) -> None:
        self.id = id
        self.seconds = seconds
        #: The broker that granted it.
        self.broker = broker
        #: Set when it is lost, according to the broker or the clock.
        self.lost = threading.Event()
        #: Set when its consumer no longer waits for the handler.
        self.given_up = threading.Event()
        #: Set when its consumer is stopping.
        self.stop: asyncio.Event | None = None
        #: Sends pending acknowledgements of its consumer.
        self.ahead: Callable[[], Awaitable[None]] | None = None


class Delivery:
    """A delivered message and its outcome. Raises KeyError if the broker omitted a field."""

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
        #: Whether that ended the lease on its partition, as far as known, and whether the broker said so.
        self.ended = self.released = False
        self._decode = decode
        self._decoded = _NOT_YET

    def data(self) -> Any:
        if self._decoded is _NOT_YET:
            self._decoded = self._decode(self.raw)
        return self._decoded

    def settle(self, status: str, *, dead_letter: bool = False, released: bool = False) -> None:
        """Records an acknowledgement. When a nack exhausts the retries, it makes a dead letter and the lease stays."""
        self.settled, self.released = status, released
        self.ended = released or (status in ("failed", "retry") and not dead_letter)


class Delivered(Generic[T]):
    """The properties of a message."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    @property
    def id(self) -> str:
        return self._delivery.id

    @property
    def transaction_id(self) -> str:
        """Transaction id, chosen by the producer."""
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
        """The payload as the type of the queue. Raises DecodeError if it does not fit."""
        data: T = self._delivery.data()
        return data

    @property
    def raw(self) -> Any:
        """The payload as plain JSON values."""
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
        """The original transaction id of a dead letter that was replayed with a new `transaction_id`."""
        return self._delivery.fields.get("originalTransactionId")

    @property
    def producer(self) -> str | None:
        """The authenticated producer, with access control."""
        return self._delivery.fields.get("producerSub")

    @property
    def lease_id(self) -> str | None:
        """None if it was acknowledged at delivery."""
        return self._delivery.lease.id if self._delivery.lease else None

    @property
    def lease_lost(self) -> bool:
        """Whether the message is no longer held: its lease is lost, or was given back because the handler took too long to
        stop. Work that the handler does now will be repeated."""
        lease = self._delivery.lease
        return lease is not None and (lease.lost.is_set() or lease.given_up.is_set())

    @property
    def stopping(self) -> bool:
        """Whether its consumer is stopping. It waits for this handler and starts no other."""
        lease = self._delivery.lease
        return lease is not None and lease.stop is not None and lease.stop.is_set()

    def __repr__(self) -> str:
        # Without the payload, because messages end up in logs.
        return f"<{type(self).__name__} {self.transaction_id} of {self.queue}/{self.partition}>"

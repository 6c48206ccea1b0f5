"""Pops messages."""

from __future__ import annotations

import math
import time
import uuid
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Callable, Literal, TypedDict, Union

from . import wire
from .brokers import Route
from .delivery import Delivery, Lease
from .errors import BadUse, DecodeError, QueenError
from .http import Http, Place, Request
from .settings import check_count, check_name, check_time

#: Where a new group starts: at the oldest message, at new messages only, or after a time.
Subscription = Union[Literal["all", "new"], datetime]

_BATCH_MAX = 10_000
_PARTITIONS_MAX = 100
#: The broker's maximum wait.
_WAIT_MAX = 600.0
_LEASE_MAX = 86_400.0

#: Time in addition to the wait of a pop: for an attempt, and for the call.
_ATTEMPT_SPARE = 5.0
_DEADLINE_SPARE = 30.0

#: If the broker does not return the lease time.
_LEASE_SECONDS = 60.0


class PopOptions(TypedDict, total=False):
    #: Maximum messages over all partitions.
    batch: int
    #: Maximum partitions.
    partitions: int
    #: Seconds to wait for a message; None to not wait.
    wait: float | None
    #: Lease time in seconds; the queue's `leaseTime` if None.
    lease: float | None
    #: Acknowledge at delivery: no lease, at-most-once.
    auto_ack: bool
    subscription: Subscription | None
    #: Time limit of the whole call in seconds.
    deadline: float | None


@dataclass(frozen=True)
class Pop:
    batch: int = 1
    partitions: int = 1
    wait: float | None = None
    lease: float | None = None
    auto_ack: bool = False
    subscription: Subscription | None = None
    deadline: float | None = None

    def check(self, source: Source) -> None:
        check_count("batch", self.batch, _BATCH_MAX)
        check_count("partitions", self.partitions, _PARTITIONS_MAX)
        check_time("wait", self.wait)
        check_time("lease", self.lease, zero=False)
        check_time("deadline", self.deadline, zero=False)
        if self.wait is not None and self.wait > _WAIT_MAX:
            raise BadUse(f"a pop waits at most {_WAIT_MAX:.0f} s, not {self.wait}; pop again instead")
        if self.lease is not None and self.lease > _LEASE_MAX:
            raise BadUse(f"a lease lasts at most {_LEASE_MAX:.0f} s, not {self.lease}; renew it instead")
        if self.subscription is None:
            return
        if source.group is None:
            raise BadUse("a subscription needs a consumer group: use .group(…)")
        if not isinstance(self.subscription, datetime) and self.subscription not in ("all", "new"):
            raise BadUse(f'subscription must be "all", "new" or a datetime, not {self.subscription!r}')


@dataclass(frozen=True)
class Source:
    """A source of messages: a queue, one of its partitions, or all queues with a label."""

    queue: str | None = None
    partition: str | None = None
    group: str | None = None
    namespace: str | None = None
    task: str | None = None

    def with_partition(self, name: str) -> Source:
        return replace(self, partition=check_name("partition", name))

    def with_group(self, name: str) -> Source:
        return replace(self, group=check_name("consumer group", name))

    def path(self) -> str:
        if self.queue is None:
            return wire.path("pop")
        if self.partition is None:
            return wire.path("pop", "queue", self.queue)
        return wire.path("pop", "queue", self.queue, "partition", self.partition)

    def route(self, worker: int) -> Route:
        if self.queue is not None and self.partition is not None:
            return Route((self.queue, self.partition))
        # Workers of one consumer are spread over the brokers.
        what = (self.namespace or "", self.task or "") if self.queue is None else (self.queue,)
        return Route((*what, self.group or "", str(worker)))

    def query(self, options: Pop, wait: float) -> dict[str, str]:
        timed = isinstance(options.subscription, datetime)
        return wire.query(
            namespace=self.namespace,
            task=self.task,
            consumerGroup=self.group,
            batch=options.batch,
            partitions=options.partitions if options.partitions > 1 else None,
            wait=True if wait > 0 else None,
            timeout=math.ceil(wait * 1000) if wait > 0 else None,
            leaseSeconds=math.ceil(options.lease) if options.lease else None,
            autoAck=True if options.auto_ack else None,
            subscriptionMode=None if timed else options.subscription,
            subscriptionFrom=options.subscription if timed else None,
        )


@dataclass
class Wait(Place):
    """The wait of a pop, with the id by which the broker can end it."""

    id: str = ""

    def next_id(self) -> str:
        # A new id per attempt: the broker may still hold the wait of an abandoned one.
        self.id = str(uuid.uuid4())
        return self.id


@dataclass(frozen=True)
class Popped:
    messages: list[Delivery]
    #: None without messages, or without anything to acknowledge.
    lease: Lease | None


NOTHING = Popped([], None)


async def pop(
    http: Http,
    source: Source,
    options: Pop,
    decode: Callable[[Any], Any],
    *,
    worker: int = 0,
    ending: Wait | None = None,
    on_error: Callable[[QueenError], object] | None = None,
) -> Popped:
    wait = options.wait or 0.0
    deadline, timeout = options.deadline, None
    if wait > 0:
        timeout = wait + _ATTEMPT_SPARE
        deadline = wait + _DEADLINE_SPARE if deadline is None else deadline
    waits_until = time.monotonic() + wait

    def query(left: float) -> dict[str, str]:
        if ending is not None:
            return {**source.query(options, wait), "waitId": ending.next_id()}
        # A repeated pop has less time to wait, and should respond before the call ends.
        seconds = min(waits_until - time.monotonic(), left - min(_ATTEMPT_SPARE, left / 2))
        return source.query(options, min(wait, seconds))

    request = Request(
        "GET",
        source.path(),
        query,
        route=source.route(worker),
        deadline=deadline,
        timeout=timeout,
        # A retry would return the next messages and hide the loss.
        repeatable=not options.auto_ack,
        patient=ending is not None,
        on_error=on_error,
        place=ending,
    )
    answer = await http.call(request)
    if answer.body is None:
        return NOTHING
    try:
        return _read(answer.body, answer.broker, options, decode)
    except (KeyError, TypeError, AttributeError) as error:
        raise DecodeError(f"cannot read the broker's response to a pop: {error!r}") from error


def _read(body: Any, broker: int, options: Pop, decode: Callable[[Any], Any]) -> Popped:
    lease = None
    if body["messages"] and body["leaseId"]:
        seconds = body.get("leaseSeconds") or options.lease or _LEASE_SECONDS
        lease = Lease(body["leaseId"], float(seconds), broker)
    return Popped([Delivery(fields, decode, broker, lease) for fields in body["messages"]], lease)

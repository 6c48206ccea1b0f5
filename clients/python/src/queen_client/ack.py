"""Acknowledges messages and renews their leases."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Sequence

from . import wire
from .brokers import Route
from .delivery import Delivery, Lease
from .errors import BadUse, DecodeError, OutcomeUnknown, QueenError, Refused
from .http import Http, Request
from .operations import Operation, completed, read_operation, unfolded

#: `completed`: done, with everything delivered before it. `failed`: redelivered until the retries are exhausted. `retry`:
#: redelivered, without counting a failure. `dlq`: a dead letter now.
AckStatus = Literal["completed", "failed", "retry", "dlq"]


class Ack(NamedTuple):
    delivery: Delivery
    status: AckStatus
    error: str | None = None


@dataclass(frozen=True)
class AckResult:
    transaction_id: str
    success: bool
    error: str | None
    queue: str | None
    partition: str | None
    #: Whether this ended the lease on the partition.
    lease_released: bool
    #: Whether the message became a dead letter.
    dead_letter: bool
    #: Whether it was completed before.
    noop: bool
    #: Set if the broker deferred it.
    operation: Operation | None


class Acked(NamedTuple):
    #: One per message, in the order of the request.
    results: list[AckResult]
    attempts: int
    #: Whether an earlier attempt may have been executed.
    repeated: bool

    def refusal(self, ack: Ack, result: AckResult) -> QueenError:
        """The error for a result without success."""
        text = f"message {result.transaction_id} was not acknowledged: {result.error}"
        # The first attempt of a nack ends the lease, which is why a later one is refused.
        if self.repeated and ack.status != "completed":
            return OutcomeUnknown(f"a response was lost, and then {text}", status=200, attempts=self.attempts)
        return Refused(text, [result], status=200, attempts=self.attempts)


async def acknowledge(http: Http, acks: Sequence[Ack], deadline: float | None = None) -> Acked:
    """One request for messages of one group. Refusals are results, not errors."""
    if not acks:
        return Acked([], 0, False)
    first = acks[0].delivery
    for ack in acks:
        check_ackable(ack.delivery)
        if ack.delivery.group != first.group:
            raise BadUse("the messages of a request must belong to one consumer group; acknowledge each group separately")
        if ack.status not in ("completed", "failed", "retry", "dlq"):
            raise BadUse(f'status must be "completed", "failed", "retry" or "dlq", not {ack.status!r}')
    items = [ack_item(ack) for ack in acks]
    if len(items) == 1:
        where, body = wire.path("ack"), {**items[0], "consumerGroup": first.group}
    else:
        where, body = wire.path("ack", "batch"), {"acknowledgments": items, "consumerGroup": first.group}
    ends = time.monotonic() + (http.settings.deadline if deadline is None else deadline)
    route = Route((first.queue, first.partition), first.broker)
    answer = await http.call(Request("POST", where, body=wire.body(body), route=route, deadline=deadline))
    lanes = [(ack.delivery.queue, ack.delivery.partition) for ack in acks]
    accepted = [{"transactionId": ack.delivery.transaction_id, "success": True} for ack in acks]
    elements = unfolded(answer.body, lanes, accepted)
    if not isinstance(elements, list) or len(elements) != len(acks):
        raise DecodeError("the broker's response to an acknowledgement does not have one result per message")
    elements, failure = await completed(http, answer, elements, ends)
    results = [_read_result(element) for element in elements]
    for ack, result in zip(acks, results):
        if result.success:
            ack.delivery.settle(ack.status, dead_letter=result.dead_letter, released=result.lease_released)
    if failure is not None:
        failure.results = results
        raise failure
    return Acked(results, answer.attempts, answer.repeated)


async def tell_ahead(acks: Sequence[Ack]) -> None:
    """A nack ends the lease, so a consumer's pending completions of earlier messages have to be sent first."""
    leases = {ack.delivery.lease for ack in acks if ack.status in ("failed", "retry")}
    for lease in leases:
        if lease is not None and lease.ahead is not None:
            await lease.ahead()


async def acknowledge_one(http: Http, ack: Ack, deadline: float | None = None) -> AckResult:
    """Acknowledges one message; a refusal is an error."""
    await tell_ahead([ack])
    acked = await acknowledge(http, [ack], deadline)
    (result,) = acked.results
    if not result.success:
        raise acked.refusal(ack, result)
    return result


def check_ackable(delivery: Delivery) -> None:
    if delivery.lease is None:
        raise BadUse("the message was popped with auto_ack and is already acknowledged")


def ack_item(ack: Ack) -> dict[str, Any]:
    lease = ack.delivery.lease
    return wire.given(
        transactionId=ack.delivery.transaction_id,
        # Selects one of several messages with the same transaction id.
        messageId=ack.delivery.id,
        partitionId=ack.delivery.partition_id,
        leaseId=lease.id if lease else None,
        status=ack.status,
        error=ack.error,
    )


def _read_result(element: dict[str, Any]) -> AckResult:
    try:
        return AckResult(
            transaction_id=element["transactionId"],
            success=element["success"],
            error=element.get("error"),
            queue=element.get("queueName"),
            partition=element.get("partitionName"),
            lease_released=bool(element.get("leaseReleased")),
            dead_letter=bool(element.get("dlq")),
            noop=bool(element.get("noop")),
            operation=read_operation(element),
        )
    except (KeyError, TypeError) as error:
        raise DecodeError(f"the broker's response to an acknowledgement has no {error}") from error


async def renew(
    http: Http, lease: Lease, seconds: float, deadline: float | None = None, timeout: float | None = None
) -> datetime:
    """Returns when the lease now ends. It covers all messages that were delivered with it."""
    where = wire.path("lease", lease.id, "extend")
    body = wire.body({"seconds": math.ceil(seconds)})
    route = Route(broker=lease.broker)
    answer = await http.call(Request("POST", where, body=body, route=route, deadline=deadline, timeout=timeout))
    if not isinstance(answer.body, dict):
        raise DecodeError("the broker's response to a renewal is not an object")
    if not answer.body.get("success"):
        text = answer.body.get("error") or "it has ended"
        raise Refused(f"the lease {lease.id} was not renewed: {text}", status=answer.status, attempts=answer.attempts)
    try:
        return wire.parse_time(answer.body["expiresAt"])
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError("the broker's response to a renewal has no expiry time") from error

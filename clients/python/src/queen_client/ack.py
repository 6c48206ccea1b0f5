"""Acknowledges messages and keeps their leases."""

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

#: `completed` is done, with everything delivered before it; `failed` comes again while retries last; `retry` comes
#: again at no cost; `dlq` is a dead letter now.
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
    #: Whether the lease on the partition ended with it.
    lease_released: bool
    #: Whether the message is a dead letter now.
    dead_letter: bool
    #: Whether it was completed before.
    noop: bool
    #: If the broker does it later.
    operation: Operation | None


class Acked(NamedTuple):
    #: One for each, in the order of the request.
    results: list[AckResult]
    attempts: int
    #: Whether an attempt before the last one may have been carried out.
    repeated: bool

    def refusal(self, ack: Ack, result: AckResult) -> QueenError:
        """What to say about one that was not successful."""
        text = f"message {result.transaction_id} was not acknowledged: {result.error}"
        # The first attempt of a nack ends the lease, and the second is refused for that.
        if self.repeated and ack.status != "completed":
            return OutcomeUnknown(f"an answer was lost, and then {text}", status=200, attempts=self.attempts)
        return Refused(text, [result], status=200, attempts=self.attempts)


async def acknowledge(http: Http, acks: Sequence[Ack], deadline: float | None = None) -> Acked:
    """One request for messages of one group. Refusals are results, not errors."""
    if not acks:
        return Acked([], 0, False)
    first = acks[0].delivery
    for ack in acks:
        check_ackable(ack.delivery)
        if ack.delivery.group != first.group:
            raise BadUse("messages of one request have one consumer group; acknowledge each group by itself")
        if ack.status not in ("completed", "failed", "retry", "dlq"):
            raise BadUse(f'a status is "completed", "failed", "retry" or "dlq", not {ack.status!r}')
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
        raise DecodeError("the broker's answer to an acknowledgement has not one result for each message")
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
    """A nack ends the lease. What is done before it, and a consumer has not told yet, would be refused afterwards."""
    leases = {ack.delivery.lease for ack in acks if ack.status in ("failed", "retry")}
    for lease in leases:
        if lease is not None and lease.ahead is not None:
            await lease.ahead()


async def acknowledge_one(http: Http, ack: Ack, deadline: float | None = None) -> AckResult:
    """Here a refusal is an error."""
    await tell_ahead([ack])
    acked = await acknowledge(http, [ack], deadline)
    (result,) = acked.results
    if not result.success:
        raise acked.refusal(ack, result)
    return result


def check_ackable(delivery: Delivery) -> None:
    if delivery.lease is None:
        raise BadUse("the message was popped with auto_ack: it was acknowledged when it was delivered")


def ack_item(ack: Ack) -> dict[str, Any]:
    lease = ack.delivery.lease
    return wire.given(
        transactionId=ack.delivery.transaction_id,
        # Decides between several messages of one transaction.
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
        raise DecodeError(f"the broker's answer to an acknowledgement has no {error}") from error


async def renew(
    http: Http, lease: Lease, seconds: float, deadline: float | None = None, timeout: float | None = None
) -> datetime:
    """Until when the lease is held now. It covers all messages that were delivered with it."""
    where = wire.path("lease", lease.id, "extend")
    body = wire.body({"seconds": math.ceil(seconds)})
    route = Route(broker=lease.broker)
    answer = await http.call(Request("POST", where, body=body, route=route, deadline=deadline, timeout=timeout))
    if not isinstance(answer.body, dict):
        raise DecodeError("the broker's answer to a renewal is no object")
    if not answer.body.get("success"):
        text = answer.body.get("error") or "it has ended"
        raise Refused(f"the lease {lease.id} was not renewed: {text}", status=answer.status, attempts=answer.attempts)
    try:
        return wire.parse_time(answer.body["expiresAt"])
    except (KeyError, TypeError, ValueError) as error:
        raise DecodeError("the broker's answer to a renewal does not say until when") from error

"""Pushes messages."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Generic, Iterable, Literal, Sequence, TypedDict, TypeVar, Union

from . import payload as payloads
from . import wire
from .brokers import Route
from .errors import BadUse, DecodeError, Refused
from .http import Http, Request
from .ids import uuid7
from .operations import Operation, completed, read_operation, unfolded
from .settings import check_name

T = TypeVar("T")

PushStatus = Literal["queued", "duplicate", "buffered", "failed"]

#: The broker takes no more in one request.
_ITEMS_MAX = 50_000

DEFAULT_PARTITION = "Default"


@dataclass(frozen=True)
class NewMessage(Generic[T]):
    """A payload with what may be said about it. Where there is nothing to say the payload alone will do."""

    payload: T
    #: That of the handle if None.
    partition: str | None = None
    #: Your id for it; a second message of the same id and partition is a duplicate.
    transaction_id: str | None = None
    #: A UUID that travels with it.
    trace_id: str | None = None
    #: W3C trace context.
    traceparent: str | None = None
    tracestate: str | None = None


class MessageOptions(TypedDict, total=False):
    """What may be said about one message; see `NewMessage`."""

    transaction_id: str | None
    trace_id: str | None
    traceparent: str | None
    tracestate: str | None


@dataclass(frozen=True)
class PushResult:
    id: str
    transaction_id: str
    queue: str
    #: `duplicate`: was there before, and `id` is that of the first. `buffered`: on the disk of the broker.
    status: PushStatus
    partition_id: str
    trace_id: str | None
    error: str | None
    #: If the broker does it later.
    operation: Operation | None


@dataclass(frozen=True)
class Outgoing:
    """A message as it is sent, however often."""

    queue: str
    partition: str
    transaction_id: str
    #: The item as JSON.
    item: bytes
    message: NewMessage[Any]


def new_message(payload: Any, partition: str | None, options: MessageOptions) -> NewMessage[Any]:
    unknown = set(options) - set(MessageOptions.__annotations__)
    if unknown:
        hint = "; choose it with .partition(…)" if "partition" in unknown else ""
        raise BadUse(f"a message has no option {', '.join(sorted(unknown))}{hint}")
    if not isinstance(payload, NewMessage):
        return NewMessage(payload, partition, **options)
    if partition is not None or options:
        raise BadUse("a NewMessage says everything about the message itself; give it the partition and the ids")
    return payload


def outgoing(queue: str, partition: str | None, message: Any) -> Outgoing:
    """Checks and writes a message, and gives it an id, once and for all attempts."""
    new: NewMessage[Any] = message if isinstance(message, NewMessage) else NewMessage(message)
    lane = new.partition if new.partition is not None else partition
    lane = DEFAULT_PARTITION if lane is None else check_name("partition", lane)
    transaction_id = uuid7() if new.transaction_id is None else check_name("transaction id", new.transaction_id)
    fields = wire.given(
        queue=queue,
        partition=lane,
        transactionId=transaction_id,
        traceId=new.trace_id,
        traceparent=new.traceparent,
        tracestate=new.tracestate,
    )
    # The payload is spliced in, so that it is written once.
    item = wire.body(fields)[:-1] + b',"payload":' + payloads.encode(new.payload) + b"}"
    # Who keeps a message that was not delivered can push it again under the same id.
    return Outgoing(queue, lane, transaction_id, item, replace(new, partition=lane, transaction_id=transaction_id))


async def push(http: Http, messages: Sequence[Outgoing], deadline: float | None = None) -> list[PushResult]:
    """Sends messages in one request. If some are refused it is an error that has the results of all."""
    if not messages:
        return []
    if len(messages) > _ITEMS_MAX:
        raise BadUse(f"a push takes {_ITEMS_MAX} messages at most, not {len(messages)}; use a buffer")
    ends = time.monotonic() + (http.settings.deadline if deadline is None else deadline)
    body = b'{"items":[' + b",".join(message.item for message in messages) + b"]}"
    # All at the broker of the first.
    route = Route((messages[0].queue, messages[0].partition))
    answer = await http.call(Request("POST", wire.path("push"), body=body, route=route, deadline=deadline))
    lanes = [(message.queue, message.partition) for message in messages]
    elements = unfolded(answer.body, lanes, [_accepted(message) for message in messages])
    if not isinstance(elements, list) or len(elements) != len(messages):
        raise DecodeError("the broker's answer to a push has not one result for each message")
    elements, failure = await completed(http, answer, elements, ends)
    results = [read_result(element) for element in elements]
    if failure is not None:
        failure.results = results
        raise failure
    failed = [result for result in results if result.status == "failed"]
    if failed:
        text = f"{len(failed)} of {len(results)} messages were refused: {failed[0].error}"
        raise Refused(text, results, status=answer.status, attempts=answer.attempts)
    return results


def _accepted(message: Outgoing) -> dict[str, Any]:
    """What is known of a message that was put aside if the broker does not tell its id."""
    known = {"transaction_id": message.transaction_id, "queueName": message.queue, "status": "queued"}
    return {"message_id": "", "partition_id": "", **known}


def read_result(element: dict[str, Any]) -> PushResult:
    try:
        return PushResult(
            id=element["message_id"],
            transaction_id=element["transaction_id"],
            queue=element["queueName"],
            status=element["status"],
            partition_id=element.get("partition_id") or "",
            trace_id=element.get("trace_id"),
            error=element.get("error"),
            operation=read_operation(element),
        )
    except (KeyError, TypeError) as error:
        raise DecodeError(f"the broker's answer to a push has no {error}") from error


def listed(messages: Iterable[Union[T, NewMessage[T]]]) -> list[Union[T, NewMessage[T]]]:
    # A text or a dict can be iterated, and nobody means its letters or keys.
    if isinstance(messages, (str, bytes, dict)):
        raise BadUse("push_many takes a list of messages; push takes one")
    return list(messages)

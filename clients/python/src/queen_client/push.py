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

#: The broker's limit per request.
_ITEMS_MAX = 50_000

DEFAULT_PARTITION = "Default"


@dataclass(frozen=True)
class NewMessage(Generic[T]):
    """A payload with options. Without options, a plain payload is enough."""

    payload: T
    #: The handle's partition if None.
    partition: str | None = None
    #: Your id for deduplication; a second message with the same id and partition is a duplicate.
    transaction_id: str | None = None
    #: A UUID that is stored with it.
    trace_id: str | None = None
    #: W3C trace context.
    traceparent: str | None = None
    tracestate: str | None = None


class MessageOptions(TypedDict, total=False):
    """Options of a message; see `NewMessage`."""

    transaction_id: str | None
    trace_id: str | None
    traceparent: str | None
    tracestate: str | None


@dataclass(frozen=True)
class PushResult:
    id: str
    transaction_id: str
    queue: str
    #: `duplicate`: stored before, and `id` is that of the first message. `buffered`: in the broker's spool.
    status: PushStatus
    partition_id: str
    trace_id: str | None
    error: str | None
    #: Set if the broker deferred it.
    operation: Operation | None


@dataclass(frozen=True)
class Outgoing:
    """A serialized message, which retries send unchanged."""

    queue: str
    partition: str
    transaction_id: str
    #: The item as JSON.
    item: bytes
    message: NewMessage[Any]


def new_message(payload: Any, partition: str | None, options: MessageOptions) -> NewMessage[Any]:
    unknown = set(options) - set(MessageOptions.__annotations__)
    if unknown:
        hint = "; set it with .partition(…)" if "partition" in unknown else ""
        raise BadUse(f"unknown message option {', '.join(sorted(unknown))}{hint}")
    if not isinstance(payload, NewMessage):
        return NewMessage(payload, partition, **options)
    if partition is not None or options:
        raise BadUse("a NewMessage cannot be combined with options; set the partition and the ids in it")
    return payload


def outgoing(queue: str, partition: str | None, message: Any) -> Outgoing:
    """Validates and serializes a message, and assigns its id, once for all attempts."""
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
    # The payload is inserted as text, so that it is serialized only once.
    item = wire.body(fields)[:-1] + b',"payload":' + payloads.encode(new.payload) + b"}"
    # The id is kept, so that an undelivered message can be pushed again with it.
    return Outgoing(queue, lane, transaction_id, item, replace(new, partition=lane, transaction_id=transaction_id))


async def push(http: Http, messages: Sequence[Outgoing], deadline: float | None = None) -> list[PushResult]:
    """Sends messages in one request. If some are refused, the error has the results of all."""
    if not messages:
        return []
    if len(messages) > _ITEMS_MAX:
        raise BadUse(f"a push takes at most {_ITEMS_MAX} messages, not {len(messages)}; use a buffer")
    ends = time.monotonic() + (http.settings.deadline if deadline is None else deadline)
    body = b'{"items":[' + b",".join(message.item for message in messages) + b"]}"
    # All go to the broker of the first.
    route = Route((messages[0].queue, messages[0].partition))
    answer = await http.call(Request("POST", wire.path("push"), body=body, route=route, deadline=deadline))
    lanes = [(message.queue, message.partition) for message in messages]
    elements = unfolded(answer.body, lanes, [_accepted(message) for message in messages])
    if not isinstance(elements, list) or len(elements) != len(messages):
        raise DecodeError("the broker's response to a push does not have one result per message")
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
    """The result of a deferred message if the broker does not return its id."""
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
        raise DecodeError(f"the broker's response to a push has no {error}") from error


def listed(messages: Iterable[Union[T, NewMessage[T]]]) -> list[Union[T, NewMessage[T]]]:
    # A str or a dict is iterable too, but its characters or keys are not messages.
    if isinstance(messages, (str, bytes, dict)):
        raise BadUse("push_many takes a list of messages; push takes one")
    return list(messages)

"""What a broker accepted with a 202 and does later: who wants to know asks until it is done."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Sequence

from . import wire
from .brokers import Route
from .errors import DecodeError, OperationFailed, QueenError, TimedOut
from .http import Answer, Http, Request

_FIRST_PAUSE = 0.1
_MAX_PAUSE = 1.0

#: Our own word in an element: all operations of its partition, if there are several.
_ALL = "operationIds"

#: A result as the broker sends it.
Element = Dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """A message or an acknowledgement that is durable, in order, and not done yet."""

    id: str
    #: How many are before it, and about how many seconds they take.
    position: int | None
    estimated_wait: float | None
    reason: str | None


def read_operation(element: Mapping[str, Any]) -> Operation | None:
    if not element.get("operationId"):
        return None
    position, wait = element.get("queuePosition"), element.get("estimatedWait")
    return Operation(element["operationId"], position, wait, element.get("reason"))


def unfolded(body: Any, lanes: Sequence[tuple[str, str]], elements: Sequence[Element]) -> Any:
    """A broker may answer a 202 with one object instead of the usual list: the elements, with their operations."""
    if not isinstance(body, dict) or not body.get("operationId"):
        return body
    ids: dict[tuple[str, str], list[str]] = {}
    for one in body.get("operations") or ({"operationId": body["operationId"]},):
        ids.setdefault((one.get("queue") or "", one.get("partition") or ""), []).append(one["operationId"])
    told = {name: body.get(name) for name in ("queuePosition", "estimatedWait", "reason")}
    # The only one there is may have no name.
    nameless = ids.get(("", "")) if len(ids) == 1 else None
    unfolded = []
    for lane, element in zip(lanes, elements):
        of_lane = ids.get(lane) or nameless
        # What has none was done at once.
        unfolded.append({**element, **told, "operationId": of_lane[0], _ALL: of_lane} if of_lane else element)
    return unfolded


async def completed(
    http: Http, answer: Answer, elements: list[Element], ends: float
) -> tuple[list[Element], OperationFailed | None]:
    """The elements of an answer, if wanted after the operations they were put aside as are done.

    An operation that failed is told as well. It says nothing about the others.
    """
    if answer.status != 202 or http.settings.queued_operation_behavior != "poll":
        return elements, None
    elements, failure = list(elements), None
    places: dict[tuple[str, ...], deque[int]] = {}
    for index, element in enumerate(elements):
        if element.get("operationId"):
            ids = tuple(element.get(_ALL) or (element["operationId"],))
            places.setdefault(ids, deque()).append(index)
    for ids, members in places.items():
        for operation in ids:
            try:
                results = await _result(http, operation, answer.broker, ends)
            except OperationFailed as error:
                failure = failure or error
                for index in members:
                    elements[index].update(status="failed", success=False, error=error.message)
                break
            # They are in the order of the request.
            for result in results[: len(members)]:
                elements[members.popleft()].update(result)
    return elements, failure


async def _result(http: Http, operation: str, broker: int, ends: float) -> list[Element]:
    pause = _FIRST_PAUSE
    while True:
        where, left = wire.path("operations", operation), ends - time.monotonic()
        try:
            if left <= 0:
                raise TimedOut("the deadline has passed")
            answer = await http.call(Request("GET", where, route=Route(broker=broker), deadline=left))
            if not isinstance(answer.body, dict):
                raise DecodeError("the broker's answer about it is no object")
        except QueenError as error:
            error.message = f"operation {operation} was accepted, but was not seen to be done: {error.message}"
            error.operation_id = operation
            raise
        state = answer.body.get("status")
        if state == "completed":
            result = answer.body.get("result")
            return result if isinstance(result, list) else []
        if state in ("failed", "cancelled"):
            reason = answer.body.get("error_message") or f"it is {state}"
            raise OperationFailed(f"operation {operation} was accepted, but failed: {reason}", operation)
        await asyncio.sleep(min(pause, max(0.0, ends - time.monotonic())))
        pause = min(pause * 2, _MAX_PAUSE)

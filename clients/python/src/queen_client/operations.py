"""Deferred operations (202), and waiting until they complete."""

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

#: A key of ours in an element: all operations of its partition, if there are several.
_ALL = "operationIds"

#: A result as the broker sends it.
Element = Dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """A message or an acknowledgement that is durable and in order, but not executed yet."""

    id: str
    #: Approximate number of open operations when it was accepted, including itself, and estimated seconds.
    position: int | None
    estimated_wait: float | None
    reason: str | None


def read_operation(element: Mapping[str, Any]) -> Operation | None:
    if not element.get("operationId"):
        return None
    position, wait = element.get("queuePosition"), element.get("estimatedWait")
    return Operation(element["operationId"], position, wait, element.get("reason"))


def unfolded(body: Any, lanes: Sequence[tuple[str, str]], elements: Sequence[Element]) -> Any:
    """Converts a 202 with a single object to the usual list: the sent elements, with their operations."""
    if not isinstance(body, dict) or not body.get("operationId"):
        return body
    ids: dict[tuple[str, str], list[str]] = {}
    for one in body.get("operations") or ({"operationId": body["operationId"]},):
        ids.setdefault((one.get("queue") or "", one.get("partition") or ""), []).append(one["operationId"])
    told = {name: body.get(name) for name in ("queuePosition", "estimatedWait", "reason")}
    # A single operation may have no name.
    nameless = ids.get(("", "")) if len(ids) == 1 else None
    unfolded = []
    for lane, element in zip(lanes, elements):
        of_lane = ids.get(lane) or nameless
        # Without an operation, it was executed at once.
        unfolded.append({**element, **told, "operationId": of_lane[0], _ALL: of_lane} if of_lane else element)
    return unfolded


async def completed(
    http: Http, answer: Answer, elements: list[Element], ends: float
) -> tuple[list[Element], OperationFailed | None]:
    """The elements of a response, if requested after their deferred operations have completed.

    Failed operations are included. They do not affect the others.
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
            # In the order of the request.
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
                raise DecodeError("the broker's response is not an object")
        except QueenError as error:
            error.message = f"operation {operation} was accepted, but its completion could not be confirmed: {error.message}"
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

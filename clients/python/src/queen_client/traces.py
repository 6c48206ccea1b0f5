"""Traces: notes of consumers about messages."""

from __future__ import annotations

from typing import Any, Sequence

from . import payload as payloads
from . import shapes, wire
from .errors import DecodeError
from .http import Http, Request
from .part import Part


async def add_trace(
    http: Http,
    transaction_id: str,
    partition_id: str,
    data: Any,
    *,
    group: str | None = None,
    names: str | Sequence[str] | None = None,
    event_type: str | None = None,
) -> str:
    fields = wire.given(
        transactionId=transaction_id,
        partitionId=partition_id,
        consumerGroup=group,
        traceNames=names if names is None or isinstance(names, str) else list(names),
        eventType=event_type,
    )
    body = wire.body(fields)[:-1] + b',"data":' + payloads.encode(data) + b"}"
    answer = await http.call(Request("POST", wire.path("traces"), body=body))
    if not isinstance(answer.body, dict) or not isinstance(answer.body.get("traceId"), str):
        raise DecodeError("the broker's response to a trace has no traceId")
    trace_id: str = answer.body["traceId"]
    return trace_id


class AsyncTraces(Part):
    async def add(
        self,
        transaction_id: str,
        partition_id: str,
        data: Any,
        *,
        group: str | None = None,
        names: str | Sequence[str] | None = None,
        event_type: str | None = None,
    ) -> str:
        """Attaches a note to a message. Returns the id of the note. After a lost response it may exist twice."""
        return await add_trace(
            self._http, transaction_id, partition_id, data, group=group, names=names, event_type=event_type
        )

    async def of(self, partition_id: str, transaction_id: str) -> shapes.MessageTraces:
        """The notes of one message, oldest first."""
        return await self._get(shapes.MessageTraces, wire.path("traces", partition_id, transaction_id))

    async def by_name(self, name: str, *, limit: int | None = None, offset: int | None = None) -> shapes.NamedTraces:
        where = wire.path("traces", "by-name", name)
        return await self._get(shapes.NamedTraces, where, wire.query(limit=limit, offset=offset))

    async def names(self, *, limit: int | None = None, offset: int | None = None) -> shapes.TraceNames:
        return await self._get(shapes.TraceNames, wire.path("traces", "names"), wire.query(limit=limit, offset=offset))

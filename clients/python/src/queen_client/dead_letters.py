"""Dead letters, the messages that a group gave up on: list, redrive and purge."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from . import shapes, wire
from .http import Http
from .part import Part
from .pop import Source
from .settings import check_count, check_time

_PAUSE = 0.25


class AsyncDeadLetters(Part):
    """The dead letters of a queue, or of one of its partitions or groups."""

    def __init__(self, http: Http, source: Source) -> None:
        super().__init__(http)
        self._source = source

    async def list(
        self,
        *,
        limit: int | None = None,
        offset: int | None = None,
        error: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> shapes.DeadLetters:
        """A page, newest failure first. `error` is a part of the text; times are those of the failure."""
        chosen = self._chosen(error, since, until)
        return await self._get(shapes.DeadLetters, wire.path("dlq"), wire.query(**chosen, limit=limit, offset=offset))

    async def count(
        self, *, error: str | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> int:
        """How many dead letters a redrive would push."""
        fields = wire.given(**self._chosen(error, since, until), dryRun=True)
        counted = await self._post(shapes.RedriveCount, wire.path("dlq", "redrive"), fields)
        return counted["total"]

    async def redrive(
        self,
        *,
        target_queue: str | None = None,
        per_second: int | None = None,
        error: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> shapes.Redrive:
        """Starts pushing them again, in order. It runs in a broker; query its `progress`, or wait with `finished`."""
        check_count("per_second", per_second)
        chosen = self._chosen(error, since, until)
        fields = wire.given(**chosen, targetQueue=target_queue, perSecond=per_second)
        # Executed twice, it would start two redrives.
        return await self._post(shapes.Redrive, wire.path("dlq", "redrive"), fields, repeatable=False)

    async def progress(self, redrive: str | shapes.Redrive) -> shapes.Redrive:
        return await self._get(shapes.Redrive, wire.path("dlq", "redrives", _id(redrive)))

    async def finished(self, redrive: str | shapes.Redrive, *, pause: float = _PAUSE) -> shapes.Redrive:
        """Waits until a redrive has ended, in whatever way."""
        check_time("pause", pause, zero=False)
        while True:
            state = await self.progress(redrive)
            if state["status"] != "running":
                return state
            await asyncio.sleep(pause)

    async def cancel(self, redrive: str | shapes.Redrive) -> shapes.Redrive:
        """Cancels a redrive; what was pushed stays pushed."""
        return await self._delete(shapes.Redrive, wire.path("dlq", "redrives", _id(redrive)))

    async def redrives(self, *, limit: int | None = None, offset: int | None = None) -> shapes.Redrives:
        """All redrives, of any queue."""
        return await self._get(shapes.Redrives, wire.path("dlq", "redrives"), wire.query(limit=limit, offset=offset))

    async def purge(
        self, *, error: str | None = None, since: datetime | None = None, until: datetime | None = None
    ) -> int:
        """Deletes them permanently. Returns their number."""
        chosen = wire.query(**self._chosen(error, since, until))
        # Executed twice, it would delete dead letters that arrived in between.
        purged = await self._delete(shapes.Purged, wire.path("dlq"), chosen, repeatable=False)
        return purged["purged"]

    def _chosen(self, error: str | None, since: datetime | None, until: datetime | None) -> dict[str, Any]:
        source = self._source
        return {
            "queue": source.queue,
            "partition": source.partition,
            "consumerGroup": source.group,
            "error": error,
            "from_": since,
            "to": until,
        }


def _id(redrive: str | shapes.Redrive) -> str:
    return redrive if isinstance(redrive, str) else redrive["id"]

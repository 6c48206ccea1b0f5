"""The step `consume` of a scenario: a consumer with a scripted handler."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING, Any

from fields import Fields, at_least, at_most, data_of, value_of
from queen_client import QueenError, Summary

if TYPE_CHECKING:
    from scenarios import Runner

HANG_MAX = 10.0
#: Handlers that only return, unless they fail.
RETURNING = ("succeed", "failFirst", "succeedFirst", "hang")


class ConsumeStep:
    def __init__(self, runner: Runner, fields: Fields) -> None:
        self._api = runner.api
        handler = Fields("a handler", fields.take("handler"))
        self._do, self._text = handler.take("do"), handler.take("text", "the handler failed")
        self._ms, self._times = handler.take("ms", 0), handler.take("times", 1)
        handler.end()
        self._each = {"each": True, "batches": False}[fields.take("mode", "each")]
        self._stop_after = value_of(fields.take("stopAfter"))
        self._stop_by_count = isinstance(self._stop_after, int) and not isinstance(self._stop_after, bool)
        options = fields.take_given(
            "batch", "partitions", "wait", "lease", "subscription", "concurrency", "limit", "idleTimeout", "autoAck",
            "renew",
        )  # fmt: skip
        self._options = {name: value_of(value) for name, value in options.items()}
        decode = {None: {}, "object": {"type": an_object}}[fields.take("decode")]
        self._reader = runner.reader(fields, **decode)
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._seen: list[Any] = []
        self._calls = 0
        self._told = 0
        self._lost = False
        self._enough = asyncio.Event()

    async def run(self) -> dict[str, Any]:
        verb = self._reader.start if self._each else self._reader.start_batches
        handler = self._handle if self._api.sync else self._handle_async
        consumer = await self._api.do(verb, handler, on_error=self._tell, **self._options)
        stop_took, error, summary = 0.0, None, Summary()
        try:
            if self._stop_after is not None:
                ended = asyncio.ensure_future(self._api.do(consumer.wait))
                seconds = None if self._stop_by_count else float(self._stop_after)
                enough = asyncio.ensure_future(self._enough.wait())
                await asyncio.wait({ended, enough}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                enough.cancel()
                began = time.monotonic()
                await self._api.do(consumer.stop)
                stop_took = (time.monotonic() - began) * 1000
                summary = await ended
            else:
                summary = await self._api.do(consumer.wait)
        except QueenError as failure:
            error = failure
        return {
            **data_of(self._seen),
            "handled": summary.handled,
            "failed": summary.failed,
            "batches": summary.batches,
            "leaseLost": self._lost,
            "errorsToldAtLeast": at_least(self._told),
            "stopTookAtMostMs": at_most(stop_took),
            "error": error,
        }

    def _tell(self, error: Exception) -> None:
        self._told += 1

    def _begin(self, given: Any) -> tuple[list[Any], int]:
        messages = [given] if self._each else given
        with self._lock:
            self._calls += 1
            self._seen += [message.data for message in messages]
            if self._stop_by_count and len(self._seen) >= self._stop_after:
                self._loop.call_soon_threadsafe(self._enough.set)
            return messages, self._calls

    def _fails(self, call: int) -> bool:
        first = call <= self._times
        return bool(self._do == "fail" or (self._do == "failFirst" and first) or (self._do == "succeedFirst" and not first))

    async def _handle_async(self, given: Any) -> None:
        messages, call = self._begin(given)
        if self._fails(call):
            raise RuntimeError(self._text)
        if self._do == "sleep":
            await asyncio.sleep(self._ms / 1000)
        elif self._do == "manual":
            for message in messages:
                await message.ack()
        elif self._do == "hang" and call == 1:
            try:
                await asyncio.sleep(HANG_MAX)
            except asyncio.CancelledError:
                self._lost = messages[0].lease_lost
                raise
        else:
            assert self._do in RETURNING, f"the runner does not know the handler {self._do}"

    def _handle(self, given: Any) -> None:
        messages, call = self._begin(given)
        if self._fails(call):
            raise RuntimeError(self._text)
        if self._do == "sleep":
            time.sleep(self._ms / 1000)
        elif self._do == "manual":
            for message in messages:
                message.ack()
        elif self._do == "hang" and call == 1:
            ends = time.monotonic() + HANG_MAX
            while time.monotonic() < ends and not self._lost:
                time.sleep(0.01)
                self._lost = messages[0].lease_lost
        else:
            assert self._do in RETURNING, f"the runner does not know the handler {self._do}"


def an_object(payload: Any) -> Any:
    if not isinstance(payload, dict):
        raise TypeError("not an object")
    return payload

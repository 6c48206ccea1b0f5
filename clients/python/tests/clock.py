"""Simulated time that only passes while the code waits, so that tests of long waits finish at once."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Coroutine, TypeVar

import pytest

R = TypeVar("R")


class Clock:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self._patch = patch

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Runs it in its own loop. Nothing in there may wait for real I/O."""
        loop: Any = asyncio.new_event_loop()
        select = loop._selector.select

        def jump(timeout: float | None) -> Any:
            assert timeout is not None, "nothing will ever happen again"
            self.now += timeout
            return select(0)

        loop._selector.select = jump
        self._patch.setattr(time, "monotonic", lambda: self.now)
        try:
            return loop.run_until_complete(coroutine)  # type: ignore[no-any-return]
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            if tasks:
                loop.run_until_complete(asyncio.wait(tasks))
            self._patch.undo()
            loop._selector.select = select
            loop.close()

"""What the client logs without a callback: one record per event, by the logger `queen_client`. Never a payload."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Callable, Sequence

from .errors import NetworkError, QueenError, TimedOut

if TYPE_CHECKING:
    from .delivery import Delivery
    from .pop import Source

log = logging.getLogger("queen_client")


def hear(on_error: Callable[[Exception], object], error: Exception) -> None:
    """Calls a callback; its exceptions do not end a consumer or a buffer."""
    try:
        on_error(error)
    except Exception:
        log.exception("on_error raised")


def is_unanswered(error: Exception) -> bool:
    """No response arrived: an outage, which `Outages` logs."""
    return isinstance(error, (NetworkError, TimedOut))


class Trouble:
    """A recurring failure, logged when it starts and when it ends."""

    def __init__(self) -> None:
        self._since: float | None = None

    def begin(self) -> bool:
        """Whether it starts."""
        begins = self._since is None
        if begins:
            self._since = time.monotonic()
        return begins

    def end(self) -> float | None:
        """Its duration, if it ends."""
        since, self._since = self._since, None
        return None if since is None else time.monotonic() - since


class Outages:
    """Tracks outages of brokers and of the token function."""

    def __init__(self) -> None:
        self._troubles: dict[str, Trouble] = {}

    def silent(self, who: str, error: QueenError) -> None:
        if self._troubles.setdefault(who, Trouble()).begin():
            log.warning("%s does not respond: %s", who, error)

    def answered(self, who: str) -> None:
        trouble = self._troubles.get(who)
        seconds = trouble.end() if trouble else None
        if seconds is not None:
            log.warning("%s responds again after %.1f s", who, seconds)


class ConsumerLog:
    """Logs the errors of a consumer without `on_error`."""

    def __init__(self, source: Source) -> None:
        given = {"queue": source.queue, "namespace": source.namespace, "task": source.task}
        self._where = ", ".join(f"{what} {name}" for what, name in given.items() if name is not None)
        #: Pops that get a response and fail.
        self._refusals = Trouble()

    def failed(self, error: Exception, during: str, messages: Sequence[Delivery]) -> None:
        if during in ("pop", "renewal") and is_unanswered(error):
            return
        if during == "pop":
            if self._refusals.begin():
                log.warning("pops are failing; retrying (%s): %s", self._where, error)
        elif during == "handler":
            log.error("handler failed %s: %s: %s", _about(messages), type(error).__name__, error, exc_info=error)
        elif messages:
            what = "lease lost" if during == "lease" else f"{during} failed"
            log.error("%s %s: %s", what, _about(messages), error)
        else:
            log.error("%s ended (%s): %s", during, self._where, error)

    def pop_worked(self) -> None:
        seconds = self._refusals.end()
        if seconds is not None:
            log.warning("pops work again after %.1f s (%s)", seconds, self._where)


def _about(messages: Sequence[Delivery]) -> str:
    """For a batch the first message, and the count."""
    first, count = messages[0], f", first of {len(messages)}" if len(messages) > 1 else ""
    return f"(queue {first.queue}, partition {first.partition}, transaction id {first.transaction_id}{count})"

"""Retry policy. Pure: time and randomness are arguments."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime

from .errors import NetworkError, QueenError, RateLimited, TimedOut


@dataclass(frozen=True)
class Retry:
    #: Maximum of the first backoff; each further one doubles.
    delay: float = 0.1
    max_delay: float = 30.0
    on_429: bool = True
    honor_retry_after: bool = True

    def again(self, error: QueenError) -> bool:
        """Whether the same request may succeed later."""
        if isinstance(error, RateLimited):
            return self.on_429
        if isinstance(error, (NetworkError, TimedOut)):
            return True
        return error.status is not None and error.status >= 500

    def wait(self, error: QueenError, backoffs: int, chance: float) -> float:
        """Seconds until the next attempt after this many backoffs; `chance` is between 0 and 1."""
        if self.honor_retry_after and error.retry_after:
            return min(error.retry_after, self.max_delay)
        # Above 2**30 it is `max_delay` anyway, and a float would overflow.
        return chance * min(self.delay * 2.0 ** min(backoffs, 30), self.max_delay)


def parse_retry_after(text: str | None, now: datetime) -> float | None:
    """Whole seconds or a date; anything else is ignored."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    try:
        date = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError):
        return None
    if date.tzinfo is None:
        date = date.replace(tzinfo=timezone.utc)
    return max(0.0, (date - now).total_seconds())

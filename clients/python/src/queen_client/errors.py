"""All errors, as one class hierarchy. `kind` has the same values in all Queen clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

if TYPE_CHECKING:
    from .push import NewMessage


class QueenError(Exception):
    """Base class of all errors of this package."""

    kind: str = "server"

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        retry_after: float | None = None,
        attempts: int = 0,
    ) -> None:
        super().__init__(message)
        self.message = message
        #: The HTTP status, if a broker responded.
        self.status = status
        #: The broker's error code, such as `rate_limited`.
        self.code = code
        #: Seconds after which the broker suggests to retry.
        self.retry_after = retry_after
        #: Number of attempts.
        self.attempts = attempts
        #: Id of the deferred operation whose outcome is unknown or failed.
        self.operation_id: str | None = None
        #: Whether an attempt may have been executed nevertheless.
        self._uncertain = False

    def __str__(self) -> str:
        details = [self.kind]
        if self.status is not None:
            details.append(f"status {self.status}")
        if self.attempts > 1:
            details.append(f"{self.attempts} attempts")
        return f"{self.message} ({', '.join(details)})"


class BadUse(QueenError, ValueError):
    """The call is invalid; nothing was sent."""

    kind = "bad_use"


class BadRequest(QueenError):
    """The broker rejected the request, for example as malformed or too large."""

    kind = "bad_request"


class Unauthorized(QueenError):
    kind = "unauthorized"


class Forbidden(QueenError):
    kind = "forbidden"


class NotFound(QueenError):
    kind = "not_found"


class Conflict(QueenError):
    kind = "conflict"


class RateLimited(QueenError):
    """Nothing was executed; `retry_after` says when to retry."""

    kind = "rate_limited"


class Unavailable(QueenError):
    kind = "unavailable"


class ServerError(QueenError):
    kind = "server"


class NetworkError(QueenError):
    kind = "network"


class TimedOut(QueenError):
    kind = "timeout"


class Refused(QueenError):
    """The broker refused an acknowledgement, a renewal or some of the messages.

    `results` has the results of all of them.
    """

    kind = "refused"

    def __init__(self, message: str, results: Sequence[Any] = (), **more: Any) -> None:
        super().__init__(message, **more)
        self.results = list(results)


class RolledBack(QueenError):
    """The transaction was rolled back and had no effect."""

    kind = "rolled_back"


class OutcomeUnknown(QueenError):
    """The outcome is unknown: a response was lost, and retrying would do harm or was refused."""

    kind = "outcome_unknown"


class OperationFailed(QueenError):
    """A deferred operation failed or was cancelled.

    `results` has the results of everything that was sent together.
    """

    kind = "operation_failed"

    def __init__(self, message: str, operation_id: str, results: Sequence[Any] = (), **more: Any) -> None:
        super().__init__(message, **more)
        self.operation_id = operation_id
        self.results = list(results)


class BufferFull(QueenError):
    kind = "buffer_full"


class Closed(QueenError):
    """The client, the buffer or the transaction is closed."""

    kind = "closed"


class DecodeError(QueenError):
    """A payload does not fit the queue's type, or a response does not conform to the API."""

    kind = "decode"


class Undelivered(QueenError):
    """Messages that a buffer could not deliver. `messages` has each message with its reason, so that it can be saved.

    Its kind is that of the first reason.
    """

    def __init__(self, messages: Sequence[tuple[NewMessage[Any], QueenError]]) -> None:
        first = messages[0][1]
        super().__init__(f"{len(messages)} messages were not delivered: {first.message}", status=first.status)
        self.kind = first.kind
        self.messages = list(messages)


_BY_STATUS: dict[int, type[QueenError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    429: RateLimited,
    503: Unavailable,
}


def for_status(status: int, message: str, code: str | None, retry_after: float | None) -> QueenError:
    """The error for a response without success."""
    otherwise = BadRequest if 400 <= status < 500 else ServerError
    return _BY_STATUS.get(status, otherwise)(message, status=status, code=code, retry_after=retry_after)

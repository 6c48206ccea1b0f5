"""Everything that can go wrong, in one tree. `kind` is the same word in the clients of all languages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Sequence

if TYPE_CHECKING:
    from .push import NewMessage


class QueenError(Exception):
    """What every error of this package is."""

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
        #: The HTTP status, if a broker answered.
        self.status = status
        #: The broker's word for programs, such as `rate_limited`.
        self.code = code
        #: Seconds after which the broker wants to be asked again.
        self.retry_after = retry_after
        #: How often the request was sent.
        self.attempts = attempts
        #: Of what was accepted with a 202 and is not known to be done.
        self.operation_id: str | None = None
        #: Whether an attempt may have been carried out all the same.
        self._uncertain = False

    def __str__(self) -> str:
        details = [self.kind]
        if self.status is not None:
            details.append(f"status {self.status}")
        if self.attempts > 1:
            details.append(f"{self.attempts} attempts")
        return f"{self.message} ({', '.join(details)})"


class BadUse(QueenError, ValueError):
    """The call makes no sense; nothing was sent."""

    kind = "bad_use"


class BadRequest(QueenError):
    """The broker cannot understand it, or it is too large."""

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
    """Nothing was done; `retry_after` says when to come back."""

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

    `results` has what was told about each of them.
    """

    kind = "refused"

    def __init__(self, message: str, results: Sequence[Any] = (), **more: Any) -> None:
        super().__init__(message, **more)
        self.results = list(results)


class RolledBack(QueenError):
    """Nothing of the transaction happened."""

    kind = "rolled_back"


class OutcomeUnknown(QueenError):
    """An answer was lost, and to ask again would do harm or was refused: it may have happened or not."""

    kind = "outcome_unknown"


class OperationFailed(QueenError):
    """What was accepted with a 202 failed later, or was cancelled.

    `results` has what became of everything that was sent together.
    """

    kind = "operation_failed"

    def __init__(self, message: str, operation_id: str, results: Sequence[Any] = (), **more: Any) -> None:
        super().__init__(message, **more)
        self.operation_id = operation_id
        self.results = list(results)


class BufferFull(QueenError):
    kind = "buffer_full"


class Closed(QueenError):
    """The client, the buffer or the transaction was used after its end."""

    kind = "closed"


class DecodeError(QueenError):
    """A payload is not what the queue's type says, or an answer is not what the API says."""

    kind = "decode"


class Undelivered(QueenError):
    """What a buffer could not deliver. `messages` has each message with the reason, so that it can be kept.

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
    """The error of an answer that is no success."""
    otherwise = BadRequest if 400 <= status < 500 else ServerError
    return _BY_STATUS.get(status, otherwise)(message, status=status, code=code, retry_after=retry_after)

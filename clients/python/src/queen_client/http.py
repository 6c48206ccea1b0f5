"""Sends requests: choice of broker, retries and deadlines. Independent of what they mean."""

from __future__ import annotations

import asyncio
import inspect
import random
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any, Awaitable, Callable, Coroutine, Mapping, TypeVar

import httpx

from . import wire
from ._version import VERSION
from .brokers import ANYWHERE, Brokers, Route
from .errors import (
    BadUse,
    Closed,
    DecodeError,
    NetworkError,
    OutcomeUnknown,
    QueenError,
    TimedOut,
    Unavailable,
    for_status,
)
from .log import Outages, is_unanswered
from .retry import parse_retry_after
from .running import Running
from .settings import Settings, check_time, check_token
from .tasks import Owned, within

R = TypeVar("R")

#: How long cancelled requests may take to close their connections.
_CUT = 1.0


@dataclass
class Place:
    """Where a request currently is: the number of a broker, or None while it backs off."""

    broker: int | None = None


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    #: Or a function that builds it for each attempt, from the remaining seconds of the call.
    query: Mapping[str, str] | Callable[[float], Mapping[str, str]] | None = None
    body: bytes | None = None
    route: Route = ANYWHERE
    #: Time limits of the call and of an attempt in seconds; those of the settings if None.
    deadline: float | None = None
    timeout: float | None = None
    #: If not, an attempt that may have been executed is the last one.
    repeatable: bool = True
    #: Whether to retry after a 429 regardless of the settings.
    patient: bool = False
    #: Called for failures that are followed by another attempt.
    on_error: Callable[[QueenError], object] | None = None
    place: Place | None = None


@dataclass(frozen=True)
class Answer:
    status: int
    #: The parsed JSON, or None without a body.
    body: Any
    #: The broker that responded.
    broker: int
    attempts: int
    #: Whether an earlier attempt may have been executed.
    repeated: bool


class _Failure(Exception):
    """A failed attempt."""

    def __init__(
        self, error: QueenError, *, down: bool = False, carried_out: bool = False, cut: bool = False
    ) -> None:
        super().__init__(error)
        self.error = error
        #: Whether the deadline ended it.
        self.cut = cut
        #: Whether to avoid the broker for a while.
        self.down = down
        #: Whether the broker may have executed the request.
        self.carried_out = carried_out


class Http:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.brokers = Brokers(settings.urls)
        self.running = Running()
        self._outages = Outages()
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        #: Requests in progress.
        self._sending: set[Owned[httpx.Response]] = set()

    async def call(self, request: Request) -> Answer:
        """Sends a request until there is a final response or error, or the deadline would pass."""
        check_time("deadline", request.deadline, zero=False)
        client, retry = self._open_client(), self.settings.retry
        if request.patient:
            retry = replace(retry, on_429=True)
        ends = time.monotonic() + (self.settings.deadline if request.deadline is None else request.deadline)
        attempts = backoffs = hops = 0
        carried_out = False
        error: QueenError | None = None
        while True:
            self._check_open()
            broker = self.brokers.choose(request.route, time.monotonic())
            attempts += 1
            try:
                status, body = await self._attempt(client, broker, request, ends)
                self._watch(broker, None)
                return Answer(status, body, broker, attempts, carried_out)
            except _Failure as caught:
                failure = caught
            except Exception:
                self._check_open()
                raise
            # Closing the client cancels its connections.
            self._check_open()
            self._watch(broker, failure)
            # The previous error is more useful than a timeout.
            error = error if failure.cut and error is not None else failure.error
            carried_out = carried_out or failure.carried_out
            error.attempts, error._uncertain = attempts, carried_out
            now = time.monotonic()
            if failure.down:
                self.brokers.failed(broker, now)
            if not retry.again(failure.error):
                raise error
            if not request.repeatable and _may_have_happened(failure):
                raise _unknown(failure.error, attempts) from failure.error
            wait = 0.0
            # Another broker is tried at once. If all fail, the problem is not limited to one of them.
            if failure.down and self.brokers.any_healthy(now) and hops + 1 < len(self.brokers.urls):
                hops += 1
            else:
                hops = 0
                wait = retry.wait(error, backoffs, random.random())
                backoffs += 1
            if now + wait >= ends:
                raise error
            if request.on_error is not None:
                request.on_error(error)
            await asyncio.sleep(wait)

    def _watch(self, broker: int, failure: _Failure | None) -> None:
        """Tracks outages. A caller's short deadline says nothing about the broker."""
        who = f"broker {self.brokers.urls[broker]}"
        if failure is None or not is_unanswered(failure.error):
            self._outages.answered("token function")
            self._outages.answered(who)
        elif failure.down:
            self._outages.answered("token function")
            self._outages.silent(who, failure.error)
        elif not failure.cut:
            self._outages.silent("token function", failure.error)

    async def close(self) -> None:
        """Cancels requests in progress, whose callers get `Closed`, and closes all connections."""
        self._closed = True
        # Before the client: a connection established while it closes would stay open.
        sending = list(self._sending)
        for task in sending:
            task.give_up()
        if sending:
            await asyncio.wait(sending, timeout=_CUT)
        if self._client is not None:
            await self._client.aclose()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("this client is closed; create a new one")

    def _open_client(self) -> httpx.AsyncClient:
        """Created with the first request, outside of its time limit, because loading the system's certificates takes long."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        # Its connections would never respond.
        if self._loop is not loop:
            raise BadUse("this client belongs to the event loop it was first used in; create one per event loop")
        if self._client is None:
            # Every waiting pop holds a connection, and the caller decides on their number.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=100)
            self._client = httpx.AsyncClient(verify=self.settings.verify, timeout=None, limits=limits)
        return self._client

    async def _attempt(
        self, client: httpx.AsyncClient, broker: int, request: Request, ends: float
    ) -> tuple[int, Any]:
        usual = self.settings.request_timeout if request.timeout is None else request.timeout
        token = await self._token(min(usual, ends - time.monotonic()))
        left = ends - time.monotonic()
        if request.place is not None:
            request.place.broker = broker
        try:
            response = await within(min(usual, left), self._begin(client, broker, request, token, left))
        except asyncio.TimeoutError:
            error = TimedOut(f"{self.brokers.urls[broker]} did not respond within {min(usual, left):.3g} s")
            # A caller's short deadline says nothing about the broker.
            cut = left < usual
            raise _Failure(error, down=not cut, carried_out=True, cut=cut) from None
        except httpx.TransportError as error:
            never_sent = isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
            text = f"cannot reach {self.brokers.urls[broker]}: {str(error) or type(error).__name__}"
            raise _Failure(NetworkError(text), down=True, carried_out=not never_sent) from error
        except httpx.HTTPError as error:
            text = f"cannot read the response of {self.brokers.urls[broker]}: {error}"
            raise _Failure(DecodeError(text), carried_out=True) from error
        finally:
            if request.place is not None:
                request.place.broker = None
        if response.status_code != 503:
            self.brokers.answered(broker)
        if response.is_success:
            return response.status_code, _body(response)
        # A 429 is sent before anything is executed, and so are refusals.
        carried_out = response.status_code >= 500
        raise _Failure(_error(response), down=response.status_code == 503, carried_out=carried_out)

    async def _token(self, patience: float) -> str | None:
        token = self.settings.token
        if not callable(token):
            return token
        try:
            given = token()
            if inspect.isawaitable(given):
                given = await within(patience, _awaited(given))
        except Exception as error:
            # A token provider may be unavailable for a moment, like a broker. The broker is not to blame.
            late = isinstance(error, asyncio.TimeoutError)
            raise _Failure(NetworkError(f"cannot get a token: {error!r}"), cut=late) from error
        return check_token(given)

    def _begin(
        self, client: httpx.AsyncClient, broker: int, request: Request, token: str | None, left: float
    ) -> Owned[httpx.Response]:
        # It may have been closed while the token was requested.
        self._check_open()
        task = Owned(self._send(client, broker, request, token, left))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return task

    async def _send(
        self, client: httpx.AsyncClient, broker: int, request: Request, token: str | None, left: float
    ) -> httpx.Response:
        headers = {"user-agent": f"queen-client-python/{VERSION}", **self.settings.headers}
        if request.body is not None:
            headers["content-type"] = "application/json"
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        query = request.query(left) if callable(request.query) else request.query
        url = self.brokers.urls[broker] + wire.with_query(request.path, query)
        return await client.request(request.method, url, content=request.body, headers=headers)


def _may_have_happened(failure: _Failure) -> bool:
    # A 503 almost always means that nothing was executed, and starting brokers send it often.
    return failure.carried_out and not isinstance(failure.error, Unavailable)


def _unknown(error: QueenError, attempts: int) -> OutcomeUnknown:
    text = f"it may have been executed, and is therefore not retried: {error.message}"
    unknown = OutcomeUnknown(text, status=error.status, code=error.code, attempts=attempts)
    unknown._uncertain = True
    return unknown


def _body(response: httpx.Response) -> Any:
    if not response.content:
        return None
    if response.headers.get("content-type", "").startswith("text/plain"):
        return response.text
    try:
        return wire.read(response.content)
    except DecodeError as error:
        raise _Failure(error, carried_out=True) from None


def _error(response: httpx.Response) -> QueenError:
    """The error for a response without success."""
    text, code = "", None
    try:
        said = response.json()
    except ValueError:
        text = response.text[:200]
    else:
        if isinstance(said, dict):
            text, code = str(said.get("error") or ""), said.get("code")
    text = text or f"the broker responded with status {response.status_code}"
    retry_after = parse_retry_after(response.headers.get("retry-after"), datetime.now(timezone.utc))
    return for_status(response.status_code, text, code if isinstance(code, str) else None, retry_after)


def check_loop(what: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise BadUse(f"{what} needs a running event loop: start it inside a coroutine") from None


async def _awaited(awaitable: Awaitable[R]) -> R:
    return await awaitable

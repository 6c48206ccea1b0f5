"""Options of a client, and their validation."""

from __future__ import annotations

import re
import ssl
from dataclasses import dataclass, field
from typing import Awaitable, Callable, Literal, Mapping, Sequence, TypedDict, Union
from urllib.parse import urlsplit

from .errors import BadUse
from .retry import Retry

#: A token, or a function that provides one for each attempt.
Token = Union[str, Callable[[], Union[str, Awaitable[str]]]]

_TOKEN = re.compile(r"[\x21-\x7e]+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"([\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?)?")


class QueenOptions(TypedDict, total=False):
    """Options of `AsyncQueen` and `Queen` besides their URLs. Times are seconds."""

    token: Token | None
    headers: Mapping[str, str]
    #: Limit of an attempt; for a waiting pop, its wait plus 5 s.
    request_timeout: float
    #: Limit of a call with its retries; for a waiting pop, its wait plus 30 s.
    deadline: float
    #: Maximum of the first backoff. It doubles; the actual pause is random, between nothing and all of it.
    retry_delay: float
    max_retry_delay: float
    retry_on_429: bool
    honor_retry_after: bool
    #: How to treat a 202: return it, or wait until it completes.
    queued_operation_behavior: Literal["return", "poll"]
    #: Certificates to trust for https://, as in httpx.
    verify: bool | ssl.SSLContext


@dataclass(frozen=True)
class Settings:
    urls: Sequence[str]
    token: Token | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    request_timeout: float = 30.0
    deadline: float = 60.0
    retry_delay: float = 0.1
    max_retry_delay: float = 30.0
    retry_on_429: bool = True
    honor_retry_after: bool = True
    queued_operation_behavior: Literal["return", "poll"] = "return"
    verify: bool | ssl.SSLContext = True

    def __post_init__(self) -> None:
        for what in ("request_timeout", "deadline", "retry_delay", "max_retry_delay"):
            check_time(what, getattr(self, what), zero=False)
        if self.queued_operation_behavior not in ("return", "poll"):
            raise BadUse(f'queued_operation_behavior must be "return" or "poll", not {self.queued_operation_behavior!r}')
        if self.token is not None and not callable(self.token):
            check_token(self.token)
        for name, value in self.headers.items():
            check_header(name, value)

    @property
    def retry(self) -> Retry:
        return Retry(self.retry_delay, self.max_retry_delay, self.retry_on_429, self.honor_retry_after)


def check_urls(url: str | Sequence[str] | None, urls: Sequence[str] | None) -> list[str]:
    given: list[str] = []
    for some in (url, urls):
        if isinstance(some, str):
            given.append(some)
        elif some is not None:
            given.extend(some)
    if not given:
        raise BadUse('a client needs a broker URL, such as "http://localhost:6632"')
    return list(dict.fromkeys(check_url(one) for one in given))


def check_url(url: str) -> str:
    # Without the URL, because errors end up in logs.
    if isinstance(url, str) and "@" in url.split("//", 1)[-1].split("/", 1)[0]:
        raise BadUse("a broker URL must not contain user and password; use token=")
    try:
        parts = urlsplit(url)
        port_is_a_number = parts.port is None or parts.port >= 0
    except (ValueError, AttributeError):
        raise BadUse(f"{url!r} is not a URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_a_number:
        raise BadUse(f"a broker URL must start with http:// or https:// and a host, unlike {url!r}")
    if parts.query or parts.fragment:
        raise BadUse(f"a broker URL must not have a query or fragment, unlike {url!r}")
    return url.rstrip("/")


def check_token(token: object) -> str:
    # Without the token, because errors end up in logs.
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise BadUse("the token must be a non-empty string without characters that are not allowed in a header, such as line breaks")
    return token


def check_header(name: object, value: object) -> None:
    if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
        raise BadUse(f"{name!r} is not a valid header name")
    if not isinstance(value, str) or not _HEADER_VALUE.fullmatch(value):
        raise BadUse(f"the value of header {name} is not valid in a header")


def check_time(what: str, seconds: float | None, *, zero: bool = True) -> None:
    """Validates seconds. None passes: it stands for a default."""
    if seconds is None:
        return
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise BadUse(f"{what} must be a number of seconds, not {seconds!r}")
    # NaN fails both comparisons.
    if not (seconds > 0 or (zero and seconds == 0)):
        raise BadUse(f"{what} must not be {'negative' if zero else 'negative or 0'}, but is {seconds}")


def check_count(what: str, count: int | None, most: int | None = None) -> None:
    """Validates a count. None passes: it stands for a default."""
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, int):
        raise BadUse(f"{what} must be a whole number, not {count!r}")
    if count < 1 or (most is not None and count > most):
        raise BadUse(f"{what} must be at least 1{f' and at most {most}' if most else ''}, but is {count}")


def check_name(what: str, name: str) -> str:
    """The broker's limits: 255 characters, none of them NUL. It accepts an empty name, but here that is always a mistake."""
    if not isinstance(name, str):
        raise BadUse(f"the name of a {what} must be a string, not {name!r}")
    if not name:
        raise BadUse(f"the name of a {what} must not be empty")
    if len(name) > 255:
        raise BadUse(f"the name of a {what} must not be longer than 255 characters, but has {len(name)}")
    if "\0" in name:
        raise BadUse(f"the name of a {what} must not contain a NUL character")
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise BadUse(f"the name of a {what} must be valid Unicode")
    return name

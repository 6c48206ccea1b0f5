"""The wire format: paths, times and JSON."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any, Mapping
from urllib.parse import quote, urlencode

from .errors import DecodeError

#: The group of consumers without a group.
QUEUE_MODE = "__QUEUE_MODE__"

_FRACTION = re.compile(r"\.(\d+)")


def path(*segments: str) -> str:
    """A path below /api/v1. Names may contain anything, also a slash."""
    return "/api/v1/" + "/".join(_segment(segment) for segment in segments)


def _segment(name: str) -> str:
    # Unescaped, they would mean the current and the parent folder.
    if name in (".", ".."):
        return name.replace(".", "%2E")
    return quote(name, safe="")


def query(**values: Any) -> dict[str, str]:
    """Values for a query; None is omitted."""
    return {name.rstrip("_"): _text(value) for name, value in values.items() if value is not None}


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return format_time(value)
    return str(value)


def with_query(where: str, values: Mapping[str, str] | None) -> str:
    return f"{where}?{urlencode(values)}" if values else where


def body(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def given(**values: Any) -> dict[str, Any]:
    """Fields of a body; None is omitted."""
    times = {name: format_time(value) for name, value in values.items() if isinstance(value, datetime)}
    return {name.rstrip("_"): times.get(name, value) for name, value in values.items() if value is not None}


def read(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise DecodeError(f"the broker's response is not JSON: {error}") from error


def format_time(time: datetime) -> str:
    """A time without a zone is local time, as usual in Python."""
    return time.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Before 3.11, Python parses neither a Z nor fractions of other than 3 or 6 digits."""
    text = _FRACTION.sub(lambda found: "." + found[1][:6].ljust(6, "0"), text)
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith(("Z", "z")) else text)


def camel(name: str) -> str:
    """lease_time to leaseTime."""
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)

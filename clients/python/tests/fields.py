"""Parses the fields of scenarios."""

from __future__ import annotations

import re
from typing import Any, Callable, NamedTuple


class Fields:
    """The fields of a step. All of them have to be used."""

    def __init__(self, what: str, values: dict[str, Any]) -> None:
        self._what, self._left = what, dict(values)

    def take(self, name: str, default: Any = None) -> Any:
        return self._left.pop(name, default)

    def take_given(self, *names: str) -> dict[str, Any]:
        return {snake(name): self._left.pop(name) for name in names if name in self._left}

    def end(self) -> None:
        assert not self._left, f"the runner does not know {sorted(self._left)} of {self._what}"


class Check(NamedTuple):
    """An observation that need not equal the expected value."""

    seen: Any
    holds: Callable[[Any, Any], bool]


def at_least(seen: Any) -> Check:
    return Check(seen, lambda seen, wanted: bool(seen >= wanted))


def at_most(seen: Any) -> Check:
    return Check(seen, lambda seen, wanted: bool(seen <= wanted))


def unordered(seen: list[Any]) -> Check:
    return Check(seen, lambda seen, wanted: sorted(map(repr, seen)) == sorted(map(repr, wanted)))


def data_of(data: list[Any]) -> dict[str, Any]:
    return {"data": data, "dataUnordered": unordered(data), "count": len(data)}


def value_of(value: Any) -> Any:
    """A duration in seconds, or the value itself."""
    found = re.fullmatch(r"(\d+)(ms|s)", value) if isinstance(value, str) else None
    return int(found[1]) / (1000 if found[2] == "ms" else 1) if found else value


def snake(name: str) -> str:
    return re.sub(r"([A-Z]|(?<=[a-z])\d+)", lambda found: "_" + found[1].lower(), name)

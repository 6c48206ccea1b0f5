"""Payloads: from Python to JSON, and from JSON to the type of a queue. Supports pydantic models without importing pydantic."""

from __future__ import annotations

import dataclasses
import functools
import json
import typing
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from enum import Enum
from typing import Any, Callable, Union
from uuid import UUID

from .errors import BadUse, DecodeError
from .wire import parse_time


def encode(payload: Any) -> bytes:
    """The JSON of a payload."""
    try:
        text = json.dumps(payload, default=_plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, BadUse):
            raise
        raise BadUse(f"cannot serialize the payload as JSON: {error}") from error


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    raise BadUse(
        f"a {type(value).__name__} is not JSON-serializable; push a dict, a dataclass or a pydantic model, or convert it first"
    )


def decoder(wanted: Any) -> Callable[[Any], Any]:
    """The function that converts JSON to the requested type. All of its failures are DecodeError."""
    if wanted is None or wanted is Any or wanted is object or _is_dict(wanted):
        return _as_it_is
    if hasattr(wanted, "model_validate"):
        return _guarded(wanted.model_validate, wanted)
    is_dataclass = isinstance(wanted, type) and dataclasses.is_dataclass(wanted)
    if is_dataclass:
        try:
            _hints(wanted)
        except Exception as error:
            raise BadUse(f"cannot read the annotations of {wanted.__name__} at run time: {error}") from error
    if is_dataclass or _is_hint(wanted):
        return _guarded(lambda value: _build(wanted, value), wanted)
    if not callable(wanted):
        raise BadUse(f"type must be a pydantic model, a dataclass, a dict or a function, not {wanted!r}")
    return _guarded(wanted, wanted)


def _as_it_is(value: Any) -> Any:
    return value


def _guarded(convert: Callable[[Any], Any], wanted: Any) -> Callable[[Any], Any]:
    name = getattr(wanted, "__name__", repr(wanted))

    def decode(value: Any) -> Any:
        try:
            return convert(value)
        # Any exception of the type's code means that the payload does not fit.
        except Exception as error:
            raise DecodeError(f"the payload is not a valid {name}: {error}") from error

    return decode


def _is_dict(wanted: Any) -> bool:
    """dict, Dict[str, int] or a TypedDict, which is a dict at run time."""
    kind = typing.get_origin(wanted) or wanted
    return kind is dict or (isinstance(kind, type) and issubclass(kind, dict) and hasattr(kind, "__total__"))


_SCALARS = (str, int, float, bool, list, tuple, datetime, date, time, UUID, Decimal)


def _is_hint(wanted: Any) -> bool:
    return typing.get_origin(wanted) is not None or wanted in _SCALARS


def _build(hint: Any, value: Any) -> Any:
    """The value converted according to the type hint. Unknown types are passed through."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    # `int | None` of Python 3.10 has its own origin type, with the same `__args__`.
    if origin is Union or type(hint).__name__ == "UnionType":
        return _build_union(arguments, value)
    if origin in (list, tuple, set, frozenset) or hint in (list, tuple):
        return _build_sequence(origin or hint, arguments, value)
    if origin is dict and arguments:
        return {key: _build(arguments[1], item) for key, item in _expect(dict, value).items()}
    if hint is float:
        return float(_expect((int, float), value))
    if hint in (str, int, bool):
        return _expect(hint, value)
    if hint is datetime:
        return parse_time(_expect(str, value))
    if hint in (date, time):
        return hint.fromisoformat(_expect(str, value))
    if hint in (UUID, Decimal):
        return _parse(hint, value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if hasattr(hint, "model_validate"):
        return hint.model_validate(value)
    if dataclasses.is_dataclass(hint):
        return _build_dataclass(hint, value)
    return value


def _build_dataclass(kind: Any, value: Any) -> Any:
    hints, given = _hints(kind), _expect(dict, value)
    # Unknown fields are ignored, so that producers can add fields first.
    return kind(**{name: _build(hints[name], item) for name, item in given.items() if name in hints})


@functools.lru_cache(maxsize=None)
def _hints(kind: Any) -> dict[str, Any]:
    """The parameters of its constructor."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind) if field.init}


def _build_union(choices: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in choices:
        return None
    failures = []
    for choice in choices:
        if choice is type(None):
            continue
        try:
            return _build(choice, value)
        except (TypeError, ValueError, DecodeError) as error:
            failures.append(str(error))
    raise TypeError("; ".join(failures))


def _build_sequence(kind: Any, arguments: tuple[Any, ...], value: Any) -> Any:
    items = _expect(list, value)
    if not arguments:
        return kind(items)
    if kind is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(arguments) != len(items):
            raise TypeError(f"expected {len(arguments)} items, not {len(items)}")
        return tuple(_build(hint, item) for hint, item in zip(arguments, items))
    return kind(_build(arguments[0], item) for item in items)


def _parse(kind: Any, value: Any) -> Any:
    try:
        return kind(str(_expect((str, int, float), value)))
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a number") from None


def _expect(kind: Any, value: Any) -> Any:
    # True is an int in Python, but not in JSON.
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        name = getattr(kind, "__name__", "number")
        raise TypeError(f"expected {name}, not {value!r}")
    return value

"""Shared by the parts of the admin API: one request, one response."""

from __future__ import annotations

from typing import Any, Mapping, TypeVar

from . import wire
from .errors import DecodeError, Refused
from .http import Answer, Http, Request

R = TypeVar("R")


class Part:
    def __init__(self, http: Http) -> None:
        self._http = http

    async def _get(
        self,
        shape: type[R],
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        deadline: float | None = None,
    ) -> R:
        return checked(shape, await self._http.call(Request("GET", path, query, deadline=deadline)))

    async def _delete(
        self, shape: type[R], path: str, query: Mapping[str, str] | None = None, *, repeatable: bool = True
    ) -> R:
        return checked(shape, await self._http.call(Request("DELETE", path, query, repeatable=repeatable)))

    async def _post(self, shape: type[R], path: str, fields: Mapping[str, Any], *, repeatable: bool = True) -> R:
        request = Request("POST", path, body=wire.body(fields), repeatable=repeatable)
        return checked(shape, await self._http.call(request))


def checked(shape: type[R], answer: Answer) -> R:
    """The body of a response. Its shape is guaranteed by the API and not validated."""
    body: R = answer.body
    if body is None or isinstance(body, str) != (shape is str):
        raise DecodeError(f"the broker's response (status {answer.status}) does not conform to the API")
    if isinstance(body, dict) and (body.get("success") is False or body.get("error")):
        text = body.get("error") or body.get("message") or "the broker refused the request"
        raise Refused(str(text), status=answer.status, attempts=answer.attempts)
    return body

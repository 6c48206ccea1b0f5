"""A client with a fake broker."""

from __future__ import annotations

import json
from typing import Any, Awaitable, Callable, Union

import httpx

from queen_client.delivery import Delivery, Lease
from queen_client.http import Http
from queen_client.settings import Settings

Reply = Union[httpx.Response, Exception]


def http(reply: Callable[[httpx.Request], Any], *, urls: int = 1, **options: Any) -> Http:
    """Its requests are answered by a function."""

    async def answer(request: httpx.Request) -> httpx.Response:
        given = reply(request)
        if isinstance(given, Awaitable):
            given = await given
        if isinstance(given, Exception):
            raise given
        assert isinstance(given, httpx.Response)
        return given

    made = Http(Settings([f"http://broker-{number}" for number in range(urls)], **options))
    made._client = httpx.AsyncClient(transport=httpx.MockTransport(answer))
    return made


def replies(*given: Reply) -> Callable[[httpx.Request], Reply]:
    waiting = list(given)
    return lambda request: waiting.pop(0)


def payloads(request: httpx.Request) -> list[Any]:
    return [item["payload"] for item in json.loads(request.content)["items"]]


def pushed(request: httpx.Request, **more: Any) -> httpx.Response:
    """A broker's response to a push."""
    items = json.loads(request.content)["items"]
    results = [
        {
            "index": index,
            "message_id": f"id-{item['payload']}",
            "transaction_id": item["transactionId"],
            "queueName": item["queue"],
            "partition_id": item["partition"],
            "status": "queued",
            **more,
        }
        for index, item in enumerate(items)
    ]
    return httpx.Response(201, json=results)


def acks(request: httpx.Request) -> list[tuple[str, str]]:
    """The messages and statuses of an acknowledgement."""
    body = json.loads(request.content)
    return [(one["transactionId"], one["status"]) for one in body.get("acknowledgments", [body])]


def acked(request: httpx.Request, **more: Any) -> httpx.Response:
    """A broker's response to an acknowledgement."""
    results = [
        {"transactionId": name, "success": True, "leaseReleased": status in ("failed", "retry"), **more}
        for name, status in acks(request)
    ]
    return httpx.Response(200, json=results)


def delivery(name: str, lease: Lease, decode: Callable[[Any], Any] = lambda value: value) -> Delivery:
    """`a1` is the first message of partition `a`."""
    fields = {
        "id": name,
        "transactionId": name,
        "queue": "q",
        "partition": name[0],
        "partitionId": name[0],
        "data": name,
        "consumerGroup": "g",
    }
    return Delivery(fields, decode, 0, lease)

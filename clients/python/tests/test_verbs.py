"""Requests of verbs when responses are lost, or operations deferred. The broker is fake."""

from __future__ import annotations

import json
from typing import Any, Callable, Coroutine
from urllib.parse import parse_qs

import httpx
import pytest

from clock import Clock
from made_up import Reply, delivery, http, pushed, replies
from queen_client import AsyncDeadLetters, AsyncMessage, AsyncQueue, BadUse, NetworkError, OperationFailed, OutcomeUnknown
from queen_client.admin import AsyncAdmin
from queen_client.delivery import Lease
from queen_client.http import Http
from queen_client.operations import read_operation, unfolded
from queen_client.pop import Source
from queen_client.push import outgoing, push

Verb = Callable[[Http], Coroutine[Any, Any, Any]]


def queue(client: Http) -> AsyncQueue[Any]:
    return AsyncQueue(client, Source(queue="q"), lambda value: value)


def letters(client: Http) -> AsyncDeadLetters:
    return AsyncDeadLetters(client, Source(queue="q"))


ONCE: dict[str, Verb] = {
    "redrive": lambda client: letters(client).redrive(),
    "purge": lambda client: letters(client).purge(),
    "replay": lambda client: AsyncAdmin(client).messages.replay("p", "t"),
    "clear": lambda client: AsyncAdmin(client).queues.clear("q"),
    "delete a queue": lambda client: AsyncAdmin(client).queues.delete("q"),
    "delete a group": lambda client: AsyncAdmin(client).groups.delete("g"),
    "delete a message": lambda client: AsyncAdmin(client).messages.delete("p", "t"),
    "seek": lambda client: AsyncAdmin(client).groups.seek("g", "q", "end"),
    "skip a partition": lambda client: AsyncAdmin(client).groups.skip_partition("g", "q", "p"),
    "pop": lambda client: queue(client).pop(auto_ack=True),
}

async def test_a_dry_run_of_a_seek_moves_nothing_and_is_not_asked_of_a_broker_that_would() -> None:
    version, bodies = ["0.2.0"], []

    def reply(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(200, json={"version": version[0]})
        bodies.append(json.loads(request.content))
        return httpx.Response(200, json={"success": True, "messagesReplayed": 3, "messagesSkipped": 4})

    groups = AsyncAdmin(http(reply)).groups
    assert (await groups.seek("g", "q", "beginning", dry_run=True))["messagesReplayed"] == 3
    assert (await groups.skip_partition("g", "q", "p", dry_run=True))["messagesSkipped"] == 4
    moves = [{"timestamp": "1970-01-01T00:00:00Z", "dryRun": True}, {"toEnd": True, "dryRun": True}]
    assert bodies == moves
    version[0] = "0.1.9"
    with pytest.raises(BadUse, match="0.1.9 does not support dryRun"):
        await groups.seek("g", "q", "end", dry_run=True)
    assert bodies == moves


AGAIN: dict[str, Verb] = {
    "configure": lambda client: AsyncAdmin(client).queues.configure("q", lease_time=3),
    "cancel": lambda client: AsyncAdmin(client).operations.cancel("o"),
    "count": lambda client: letters(client).count(),
}


@pytest.mark.parametrize("verb", ONCE.values(), ids=ONCE.keys())
async def test_what_would_do_more_the_second_time_is_tried_again_only_if_it_was_not_done(verb: Verb) -> None:
    lost: list[Reply] = [httpx.ReadError("reset"), httpx.Response(500)]
    for first in lost:
        with pytest.raises(OutcomeUnknown):
            await verb(http(replies(first), retry_delay=0.001))
    not_done: list[Reply] = [httpx.ConnectError("no"), httpx.Response(429), httpx.Response(503)]
    answer = httpx.Response(200, json={"purged": 1, "messages": [], "leaseId": None})
    await verb(http(replies(*not_done, answer), retry_delay=0.001))


@pytest.mark.parametrize("verb", AGAIN.values(), ids=AGAIN.keys())
async def test_what_does_the_same_the_second_time_is_tried_again(verb: Verb) -> None:
    answer = httpx.Response(200, json={"total": 1})
    await verb(http(replies(httpx.ReadError("reset"), httpx.Response(500), answer), retry_delay=0.001))


@pytest.mark.parametrize("options, waits", [({}, [10_000, 6_000]), ({"deadline": 8.0}, [4_000, 2_000])])
def test_a_pop_that_is_sent_again_waits_no_longer_than_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, options: Any, waits: list[int]
) -> None:
    seen: list[int] = []

    def reply(request: httpx.Request) -> httpx.Response:
        seen.append(int(parse_qs(request.url.query.decode())["timeout"][0]))
        return httpx.Response(503, headers={"retry-after": "4"}) if len(seen) == 1 else httpx.Response(204)

    assert Clock(monkeypatch).run(queue(http(reply)).pop(wait=10.0, **options)) == []
    assert seen == waits


async def test_an_operation_whose_end_was_not_seen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(request: httpx.Request) -> Reply:
        if request.method == "GET":
            return httpx.ConnectError("gone")
        return httpx.Response(202, json=[{**one, "operationId": "o-1"} for one in pushed(request).json()])

    client = http(reply, queued_operation_behavior="poll", retry_delay=30.0, deadline=0.5)
    with pytest.raises(NetworkError, match="operation o-1 was accepted") as caught:
        await queue(client).push(1)
    assert caught.value.operation_id == "o-1"


async def test_an_operation_that_failed_says_nothing_about_the_others() -> None:
    def reply(request: httpx.Request) -> httpx.Response:
        name = request.url.path.rsplit("/", 1)[-1]
        if request.method == "GET" and name == "o-a":
            return httpx.Response(200, json={"status": "failed", "error_message": "no room"})
        if request.method == "GET":
            return httpx.Response(200, json={"status": "completed", "result": [{"status": "duplicate"}]})
        elements = pushed(request).json()
        return httpx.Response(202, json=[{**one, "operationId": f"o-{one['partition_id']}"} for one in elements])

    client = http(reply, queued_operation_behavior="poll")
    with pytest.raises(OperationFailed, match="no room") as caught:
        await push(client, [outgoing("q", partition, 1) for partition in "aba"])
    assert [result.status for result in caught.value.results] == ["failed", "duplicate", "failed"]
    assert caught.value.operation_id == "o-a"


def test_an_object_tells_the_operations_of_each_partition() -> None:
    operations = [("a1", "a"), ("a2", "a"), ("b1", "b")]
    body = {
        "operationId": "a1",
        "queuePosition": 7,
        "operations": [{"operationId": one, "queue": "q", "partition": partition} for one, partition in operations],
    }
    elements = unfolded(body, [("q", "a"), ("q", "b"), ("q", "done at once")], [{} for _ in range(3)])
    told = [read_operation(element) for element in elements]
    assert [one and (one.id, one.position) for one in told] == [("a1", 7), ("b1", 7), None]
    nameless = {"operationId": "a1", "operations": [{"operationId": "a1", "queue": "", "partition": ""}]}
    assert [one["operationId"] for one in unfolded(nameless, [("q", "a")], [{}])] == ["a1"]
    assert [one["operationId"] for one in unfolded({"operationId": "a1"}, [("q", "a")], [{}])] == ["a1"]


async def test_what_was_too_large_for_one_operation_is_done_when_all_are() -> None:
    results = {"a1": [{"message_id": "first"}], "a2": [{"message_id": "second"}]}

    def reply(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            done = results.pop(request.url.path.rsplit("/", 1)[-1])
            return httpx.Response(200, json={"status": "completed", "result": done})
        operations = [{"operationId": one, "queue": "q", "partition": "Default"} for one in ("a1", "a2")]
        return httpx.Response(202, json={"operationId": "a1", "operations": operations})

    done = await queue(http(reply, queued_operation_behavior="poll")).push_many([1, 2])
    assert [result.id for result in done] == ["first", "second"] and not results


async def test_a_nack_that_is_put_aside_has_ended_the_lease_for_all_we_know() -> None:
    message = delivery("a1", Lease("lease", 60.0, 0))
    accepted = httpx.Response(202, json={"operationId": "o", "operations": []})
    await AsyncMessage[Any](message, http(replies(accepted))).nack("no")
    assert (message.settled, message.ended, message.released) == ("failed", True, False)

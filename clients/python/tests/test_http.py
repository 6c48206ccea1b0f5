"""Requests: attempts, deadlines, and the meaning of responses. The brokers are fake."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from clock import Clock
from made_up import Reply, http, replies
from queen_client import errors
from queen_client.http import Http, Request

GET = Request("GET", "/api/v1/thing")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_an_answer_is_read() -> None:
    answer = await http(replies(httpx.Response(200, json={"a": 1}))).call(GET)
    assert (answer.status, answer.body, answer.attempts, answer.repeated) == (200, {"a": 1}, 1, False)
    assert (await http(replies(httpx.Response(204))).call(GET)).body is None


async def test_what_may_have_been_done_before_is_known() -> None:
    ok = httpx.Response(200, json=1)
    cases: list[tuple[Reply, bool]] = [
        (httpx.ConnectError("refused"), False),
        (httpx.Response(429), False),
        (httpx.ReadError("reset"), True),
        (httpx.RemoteProtocolError("closed"), True),
        (httpx.Response(500), True),
    ]
    for first, repeated in cases:
        answer = await http(replies(first, ok), retry_delay=0.001).call(GET)
        assert (answer.attempts, answer.repeated) == (2, repeated)


async def test_what_must_not_be_done_twice_is_not_sent_twice() -> None:
    once = Request("POST", "/api/v1/thing", repeatable=False)
    for lost in (httpx.ReadError("reset"), httpx.Response(500), httpx.Response(504)):
        with pytest.raises(errors.OutcomeUnknown, match="may have been executed") as caught:
            await http(replies(lost), retry_delay=0.001).call(once)
        assert (caught.value.attempts, caught.value.status) == (1, getattr(lost, "status_code", None))
    for not_done in (httpx.ConnectError("no"), httpx.Response(429), httpx.Response(503)):
        answer = await http(replies(not_done, httpx.Response(200, json=1)), retry_delay=0.001).call(once)
        assert answer.attempts == 2
    with pytest.raises(errors.BadRequest):
        await http(replies(httpx.Response(400))).call(once)


def test_what_must_not_be_done_twice_and_is_cut_by_the_deadline_may_have_been_done(clock: Clock) -> None:
    async def never() -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    calls: list[int] = []

    def reply(request: httpx.Request) -> Any:
        calls.append(1)
        return httpx.Response(503) if len(calls) == 1 else never()

    once = Request("POST", "/api/v1/thing", repeatable=False, deadline=10.0)
    with pytest.raises(errors.OutcomeUnknown) as caught:
        clock.run(http(reply).call(once))
    assert caught.value.attempts == 2


async def test_an_error_has_the_words_of_the_broker() -> None:
    reply = httpx.Response(429, json={"error": "slowly", "code": "rate_limited"}, headers={"retry-after": "5"})
    with pytest.raises(errors.RateLimited) as caught:
        await http(replies(reply), retry_on_429=False).call(GET)
    error = caught.value
    assert (error.message, error.code, error.status) == ("slowly", "rate_limited", 429)
    assert (error.retry_after, error.attempts) == (5.0, 1)


async def test_an_error_of_a_proxy_is_reported_as_well() -> None:
    with pytest.raises(errors.BadRequest, match="<html>"):
        await http(replies(httpx.Response(405, text="<html>"))).call(GET)
    with pytest.raises(errors.ServerError):
        await http(replies(httpx.Response(302, headers={"location": "/"}))).call(GET)
    with pytest.raises(errors.DecodeError):
        await http(replies(httpx.Response(200, html="<html>"))).call(GET)


def test_an_error_is_raised_at_once_if_the_deadline_would_pass(clock: Clock) -> None:
    began = clock.now
    reply = httpx.Response(503, headers={"retry-after": "20"})
    with pytest.raises(errors.Unavailable):
        clock.run(http(replies(reply)).call(Request("GET", "/", deadline=5.0)))
    assert clock.now == began


def test_an_attempt_that_is_not_answered_is_given_up_and_made_again(clock: Clock) -> None:
    async def never() -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    calls: list[int] = []

    def reply(request: httpx.Request) -> Any:
        calls.append(1)
        return never() if len(calls) == 1 else httpx.Response(200, json=1)

    answer = clock.run(http(reply).call(GET))
    assert (answer.attempts, answer.repeated) == (2, True)


def test_an_attempt_that_the_deadline_ends_hides_no_error_before_it(clock: Clock) -> None:
    async def never() -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    calls: list[int] = []

    def reply(request: httpx.Request) -> Any:
        calls.append(1)
        return httpx.Response(503) if len(calls) == 1 else never()

    with pytest.raises(errors.Unavailable) as caught:
        clock.run(http(reply).call(Request("GET", "/", deadline=10.0)))
    assert caught.value.attempts == 2
    with pytest.raises(errors.TimedOut):
        clock.run(http(reply).call(Request("GET", "/", deadline=10.0)))


async def test_another_broker_is_asked_at_once_and_the_first_left_alone() -> None:
    asked: list[str] = []

    def reply(request: httpx.Request) -> Reply:
        asked.append(request.url.host)
        return httpx.ConnectError("refused") if request.url.host == "broker-0" else httpx.Response(200, json=1)

    client = http(reply, urls=2, retry_delay=30.0)
    for _ in range(3):
        await client.call(GET)
    assert asked == ["broker-0", "broker-1", "broker-1", "broker-1"]


def test_who_was_at_all_brokers_waits_before_the_next_round_whatever_others_find_there(clock: Clock) -> None:
    asked: list[tuple[str, int]] = []
    began = clock.now

    def reply(request: httpx.Request) -> Reply:
        asked.append((request.url.host, round(clock.now - began)))
        # A pop of another caller still works there.
        for broker in range(2):
            client.brokers.answered(broker)
        return httpx.Response(503, headers={"retry-after": "7"})

    client = http(reply, urls=2)
    with pytest.raises(errors.Unavailable):
        clock.run(client.call(Request("POST", "/", deadline=10.0)))
    assert asked == [("broker-0", 0), ("broker-1", 0), ("broker-0", 7), ("broker-1", 7)]


async def test_a_token_may_be_given_for_each_attempt() -> None:
    seen: list[str] = []

    def reply(request: httpx.Request) -> Reply:
        seen.append(request.headers["authorization"])
        return httpx.Response(503 if len(seen) < 3 else 200, json=1)

    tokens = iter("abc")
    await http(reply, token=lambda: next(tokens), retry_delay=0.001).call(GET)

    async def later() -> str:
        return "d"

    await http(reply, token=later).call(GET)
    await http(reply, token="e", headers={"x-more": "1"}).call(GET)
    assert seen == ["Bearer a", "Bearer b", "Bearer c", "Bearer d", "Bearer e"]


async def test_a_cancelled_call_ends() -> None:
    began = asyncio.Event()

    async def never() -> httpx.Response:
        began.set()
        await asyncio.Event().wait()
        raise AssertionError

    call = asyncio.ensure_future(http(lambda request: never()).call(GET))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_callback_gets_failures_that_are_retried() -> None:
    heard: list[errors.QueenError] = []
    request = Request("GET", "/", on_error=heard.append)
    await http(replies(httpx.Response(503), httpx.Response(200, json=1)), retry_delay=0.001).call(request)
    assert [error.kind for error in heard] == ["unavailable"]


async def test_a_token_that_cannot_be_had_is_asked_for_again_and_is_no_fault_of_the_broker() -> None:
    tokens: list[Any] = [OSError("nobody there"), OSError("nobody there"), "secret"]
    asked: list[str] = []

    async def token() -> str:
        given = tokens.pop(0)
        if isinstance(given, Exception):
            raise given
        return str(given)

    def reply(request: httpx.Request) -> Reply:
        asked.append(request.url.host)
        return httpx.Response(200, json=1)

    client = http(reply, urls=2, token=token, retry_delay=0.001)
    answer = await client.call(Request("POST", "/", repeatable=False))
    assert (answer.attempts, answer.repeated, asked) == (3, False, ["broker-0"])


def test_a_token_that_never_comes_fails_the_call_at_its_deadline(clock: Clock) -> None:
    async def token() -> str:
        await asyncio.Event().wait()
        raise AssertionError

    began = clock.now
    with pytest.raises(errors.NetworkError, match="cannot get a token"):
        clock.run(http(replies(), token=token).call(GET))
    assert 30 <= clock.now - began <= 60


@pytest.mark.parametrize("token", ["", "secret\n", "se cret", "sécret", None])
async def test_a_token_that_no_header_can_hold_is_wrong_use_and_not_shown(token: Any) -> None:
    with pytest.raises(errors.BadUse, match="the token") as caught:
        await http(replies(), token=lambda: token).call(GET)
    assert "cret" not in str(caught.value)


async def test_closing_the_client_fails_calls_in_progress() -> None:
    began = asyncio.Event()

    async def cut() -> httpx.Response:
        began.set()
        while not client._closed:
            await asyncio.sleep(0)
        raise httpx.ReadError("cut")

    heard: list[errors.QueenError] = []
    client = http(lambda request: cut())
    call = asyncio.ensure_future(client.call(Request("GET", "/", on_error=heard.append)))
    await began.wait()
    await client.close()
    with pytest.raises(errors.Closed):
        await call
    assert heard == [], "it does not wait for another attempt"


def test_a_client_belongs_to_the_loop_it_was_first_used_in() -> None:
    client = http(replies(httpx.Response(204)))
    asyncio.run(_call(client))
    with pytest.raises(errors.BadUse, match="event loop"):
        asyncio.run(_call(client))


async def _call(client: Http) -> None:
    await client.call(GET)


async def test_an_answer_that_is_no_json_may_be_that_of_what_was_done() -> None:
    with pytest.raises(errors.DecodeError) as caught:
        await http(replies(httpx.Response(200, html="<html>"))).call(GET)
    assert (caught.value.attempts, caught.value._uncertain) == (1, True)

"""A batch of a consumer: its lease, and its acknowledgements over time. Broker and clock are fake."""

from __future__ import annotations

import asyncio
from typing import Any, Awaitable, Callable, Sequence

import httpx
import pytest

import made_up
from clock import Clock
from queen_client import AsyncMessage, OutcomeUnknown, QueenError, Refused
from queen_client.batch import Batch, Rules, Summary
from queen_client.delivery import Delivery, Lease
from queen_client.http import Http
from queen_client.pop import Popped

Handler = Callable[[AsyncMessage[Any]], Awaitable[object]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Broker:
    """Grants a lease of 30 s, and accepts nothing after its end."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.ends = clock.now + 30
        #: Replaces the response, if set.
        self.instead: Callable[[httpx.Request], Any] = lambda request: None
        self.renewals: list[float] = []
        self.acks: list[list[tuple[str, str]]] = []

    async def reply(self, request: httpx.Request) -> httpx.Response:
        renewal = "/lease/" in request.url.path
        if renewal:
            self.renewals.append(self.clock.now)
        said = self.instead(request)
        if isinstance(said, Awaitable):
            said = await said
        if isinstance(said, Exception):
            raise said
        if isinstance(said, httpx.Response):
            return said
        live = self.clock.now < self.ends
        if renewal:
            if live:
                self.ends = self.clock.now + 30
            return httpx.Response(200, json={"success": live, "expiresAt": "2030-01-01T00:00:00Z"})
        self.acks.append(made_up.acks(request))
        return made_up.acked(request, success=live)

    def away(self, request: httpx.Request) -> httpx.ConnectError:
        return httpx.ConnectError("refused")


class Batches:
    """Handles one batch, and records its acknowledgements."""

    def __init__(self, clock: Clock, **options: Any) -> None:
        self.clock, self.broker = clock, Broker(clock)
        self.http: Http = made_up.http(self.broker.reply, **options)
        self.lease = Lease("lease", 30.0, 0)
        self.told: list[Exception] = []
        self.handled: list[str] = []

    def run(self, handler: Handler, *names: str, **rules: Any) -> Summary:
        return self.clock.run(self._run(handler, [made_up.delivery(name, self.lease) for name in names], **rules))

    async def _run(
        self, handler: Handler, messages: list[Delivery], *, auto_ack: bool = True, renew: bool = True
    ) -> Summary:
        async def handle(deliveries: Sequence[Delivery]) -> None:
            self.handled += [one.id for one in deliveries]
            await handler(AsyncMessage(deliveries[0], self.http))

        aborted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        rules = Rules(
            self.http, handle, False, auto_ack, renew, asyncio.Event(), aborted, set(), self._tell
        )
        return await Batch(rules, Popped(messages, self.lease)).handle()

    def _tell(self, error: Exception, during: str, messages: Sequence[Delivery]) -> None:
        self.told.append(error)

    def kinds(self) -> list[str]:
        return [error.kind for error in self.told if isinstance(error, QueenError)]


def seconds(number: float) -> Handler:
    async def handler(message: AsyncMessage[Any]) -> None:
        await asyncio.sleep(number)

    return handler


def test_a_lease_is_renewed_whenever_a_third_of_it_has_passed(clock: Clock) -> None:
    batch, began = Batches(clock), clock.now
    did = batch.run(seconds(65), "a1")
    assert (did.handled, batch.broker.acks, batch.told) == (1, [[("a1", "completed")]], [])
    assert [round(at - began) for at in batch.broker.renewals] == [10, 20, 30, 40, 50, 60]


def test_one_renewal_that_is_not_answered_does_not_lose_the_lease(clock: Clock) -> None:
    batch = Batches(clock)

    async def never() -> None:
        await asyncio.Event().wait()

    batch.broker.instead = lambda request: never() if len(batch.broker.renewals) == 1 else None
    did = batch.run(seconds(65), "a1")
    assert (did.handled, batch.broker.acks, batch.told) == (1, [[("a1", "completed")]], [])


def test_renewals_go_on_after_a_token_could_not_be_had(clock: Clock) -> None:
    began = clock.now

    def token() -> str:
        if 9 < clock.now - began < 15:
            raise OSError("nobody there")
        return "secret"

    batch = Batches(clock, token=token)
    did = batch.run(seconds(65), "a1")
    assert (did.handled, batch.broker.acks) == (1, [[("a1", "completed")]])


def test_an_acknowledgement_waits_for_a_token_that_cannot_be_had(clock: Clock) -> None:
    began = clock.now

    def token() -> str:
        if clock.now - began < 3:
            raise OSError("nobody there")
        return "secret"

    batch = Batches(clock, token=token)
    did = batch.run(seconds(0), "a1")
    assert (did.handled, batch.broker.acks, batch.told) == (1, [[("a1", "completed")]], [])


def test_a_lease_is_kept_until_the_last_acknowledgement_has_arrived(clock: Clock) -> None:
    batch, began = Batches(clock), clock.now

    def instead(request: httpx.Request) -> Any:
        busy = "/ack" in request.url.path and clock.now - began < 40
        return httpx.Response(503, headers={"retry-after": "5"}) if busy else None

    batch.broker.instead = instead
    batch.run(seconds(1), "a1")
    assert (batch.broker.acks, batch.told) == ([[("a1", "completed")]], [])
    assert clock.now - began >= 40


def test_nothing_is_handled_with_a_lease_that_was_lost_between_two_handlers(clock: Clock) -> None:
    batch, began = Batches(clock), clock.now

    def instead(request: httpx.Request) -> Any:
        if "/lease/" in request.url.path:
            return httpx.Response(200, json={"success": False, "error": "gone"})
        return httpx.Response(503, headers={"retry-after": "5"}) if clock.now - began < 20 else None

    batch.broker.instead = instead
    did = batch.run(seconds(2), "a1", "a2")
    assert (batch.handled, did.handled, did.failed) == (["a1"], 1, 0)
    assert batch.lease.lost.is_set() and batch.kinds() == ["refused"]


def test_a_refused_acknowledgement_ends_its_partition_and_no_other(clock: Clock) -> None:
    batch = Batches(clock)

    def instead(request: httpx.Request) -> Any:
        if "/ack" not in request.url.path or ("a1", "completed") not in made_up.acks(request):
            return None
        return made_up.acked(request, success=False, error="Invalid or expired lease")

    batch.broker.instead = instead
    did = batch.run(seconds(2), "a1", "a2", "b1", renew=False)
    assert (batch.handled, did.handled) == (["a1", "b1"], 2)
    assert batch.kinds() == ["refused"]
    assert [ack for acks in batch.broker.acks for ack in acks] == [("b1", "completed"), ("a2", "retry")]


def test_an_expired_lease_is_lost_even_without_a_response(clock: Clock) -> None:
    batch, began = Batches(clock), clock.now
    batch.broker.instead = batch.broker.away
    did = batch.run(seconds(1000), "a1")
    assert batch.lease.lost.is_set() and 30 <= clock.now - began <= 40
    assert (did.handled, did.failed, batch.broker.acks) == (0, 0, [])
    assert set(batch.kinds()) == {"network"}


def test_a_lease_that_its_handler_has_ended_itself_is_not_lost(clock: Clock) -> None:
    batch = Batches(clock)

    async def handler(message: AsyncMessage[Any]) -> None:
        await message.ack()
        batch.broker.ends = clock.now
        await asyncio.sleep(100)

    did = batch.run(handler, "a1")
    assert (did.handled, batch.told, batch.lease.lost.is_set()) == (1, [], False)


def test_a_nack_of_a_handler_does_not_overtake_what_is_done_before_it(clock: Clock) -> None:
    batch = Batches(clock)

    async def handler(message: AsyncMessage[Any]) -> None:
        if message.id == "a2":
            await message.retry()

    did = batch.run(handler, "a1", "a2", "a3")
    assert (batch.broker.acks, did.handled) == ([[("a1", "completed")], [("a2", "retry")]], 2)


def test_a_handler_that_raises_fails_its_message_in_any_auto_ack_mode(clock: Clock) -> None:
    for auto_ack in (True, False):
        batch = Batches(clock)

        async def handler(message: AsyncMessage[Any]) -> None:
            raise ValueError("no")

        did = batch.run(handler, "a1", "a2", auto_ack=auto_ack)
        assert (batch.broker.acks, did.failed) == ([[("a1", "failed"), ("a2", "retry")]], 1)


def test_what_a_handler_acknowledged_before_it_raised_is_not_nacked(clock: Clock) -> None:
    batch = Batches(clock)

    async def handler(message: AsyncMessage[Any]) -> None:
        await message.ack()
        raise ValueError("no")

    did = batch.run(handler, "a1", auto_ack=False)
    assert (batch.broker.acks, did.failed) == ([[("a1", "completed")]], 1)


def test_a_nack_with_a_lost_answer_is_outcome_unknown(clock: Clock) -> None:
    batch = Batches(clock)
    answers = iter([httpx.ReadError("reset"), None, httpx.ReadError("reset"), None])

    def instead(request: httpx.Request) -> Any:
        error = next(answers)
        return error or made_up.acked(request, success=False, error="Invalid or expired lease")

    async def handler(message: AsyncMessage[Any]) -> None:
        with pytest.raises(OutcomeUnknown) as caught:
            await message.nack("no")
        assert caught.value.attempts == 2
        with pytest.raises(Refused):
            await message.ack()

    batch.broker.instead = instead
    batch.run(handler, "a1", auto_ack=False)


def test_a_batch_that_is_cancelled_gives_back_what_it_holds(clock: Clock) -> None:
    batch = Batches(clock)

    async def cancelled() -> None:
        messages = [made_up.delivery(name, batch.lease) for name in ("a1", "a2", "b1")]
        task = asyncio.ensure_future(batch._run(seconds(100), messages))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    clock.run(cancelled())
    assert batch.broker.acks == [[("a1", "retry"), ("b1", "retry")]]

"""Transactions with lost responses. The broker is fake."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from made_up import Reply, delivery, http, replies
from queen_client import AsyncMessage, AsyncTransaction, OutcomeUnknown, RolledBack, Unauthorized, Unavailable
from queen_client.delivery import Delivery, Lease

LOST = httpx.ReadError("reset")


def refused(text: str) -> httpx.Response:
    return httpx.Response(200, json={"transactionId": "t", "success": False, "error": text, "results": []})


def committed(*acks: dict[str, Any]) -> httpx.Response:
    results = [{"type": "ack", "transactionId": "a1", "success": True, **ack} for ack in acks]
    return httpx.Response(200, json={"transactionId": "t", "success": True, "results": results})


def transaction(reply: Any, status: Any = "completed") -> tuple[AsyncTransaction, Delivery]:
    client = http(reply, retry_delay=0.001)
    message = delivery("a1", Lease("lease", 60.0, 0))
    made = AsyncTransaction(client)
    made.ack(AsyncMessage(message, client), status)
    return made, message


@pytest.mark.parametrize("text", ["Invalid or expired lease", "ack refused: already committed for this group"])
async def test_what_is_refused_after_a_lost_answer_may_have_happened_whatever_the_reason(text: str) -> None:
    made, _ = transaction(replies(LOST, refused(text)))
    with pytest.raises(OutcomeUnknown, match=text):
        await made.commit()
    made, _ = transaction(replies(httpx.Response(429), refused(text)))
    with pytest.raises(RolledBack, match=text):
        await made.commit()


@pytest.mark.parametrize(
    "first, error",
    [
        ([LOST, httpx.Response(401)], Unauthorized),
        # A broker also returns it if its database went away during a commit.
        ([httpx.Response(503, headers={"retry-after": "100"})], Unavailable),
    ],
)
async def test_the_doubt_about_a_commit_lasts_until_the_next(first: list[Reply], error: Any) -> None:
    made, _ = transaction(replies(*first, refused("Invalid or expired lease")))
    with pytest.raises(error):
        await made.commit(deadline=20)
    with pytest.raises(OutcomeUnknown):
        await made.commit()


async def test_a_commit_that_never_arrived_leaves_no_doubt() -> None:
    made, _ = transaction(replies(httpx.ConnectError("no"), httpx.Response(401), refused("no")))
    with pytest.raises(Unauthorized):
        await made.commit()
    with pytest.raises(RolledBack):
        await made.commit()


async def test_a_cancelled_commit_may_have_happened_and_may_be_made_again() -> None:
    asked = asyncio.Event()

    async def never() -> httpx.Response:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    made, _ = transaction(lambda request: refused("no") if asked.is_set() else never())
    commit = asyncio.ensure_future(made.commit())
    await asked.wait()
    commit.cancel()
    with pytest.raises(asyncio.CancelledError):
        await commit
    with pytest.raises(OutcomeUnknown):
        await made.commit()


@pytest.mark.parametrize(
    "status, dead_letter, ended", [("completed", False, False), ("failed", False, True), ("failed", True, False)]
)
async def test_a_consumer_knows_whether_a_transaction_has_ended_the_lease(
    status: str, dead_letter: bool, ended: bool
) -> None:
    made, message = transaction(replies(committed({"dlq": dead_letter})), status)
    await made.commit()
    assert (message.settled, message.ended) == (status, ended)

"""The types of both clients. mypy checks this file; nothing in it runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, List, TypedDict

from pydantic import BaseModel

from queen_client import AckResult, AsyncMessage, AsyncQueen, AsyncQueue, Message, PushResult, Queen, Queue, Summary
from queen_client import shapes

if TYPE_CHECKING:
    from typing_extensions import assert_type


@dataclass
class Order:
    total: int


class Parcel(BaseModel):
    weight: int


class Line(TypedDict):
    article: str


def number(payload: Any) -> int:
    return int(payload)


async def asynchronous(queen: AsyncQueen) -> None:
    assert_type(queen.queue("q"), AsyncQueue[Any])
    assert_type(queen.queue("q", type=Parcel), AsyncQueue[Parcel])
    assert_type(queen.queue("q", type=Line), AsyncQueue[Line])
    assert_type(queen.queue("q", type=number), AsyncQueue[int])
    orders = queen.queue("q", type=Order)
    assert_type(orders.partition("p"), AsyncQueue[Order])
    messages = await orders.group("g").pop(batch=3, wait=1)
    assert_type(messages, List[AsyncMessage[Order]])
    assert_type(messages[0].data, Order)
    assert_type(await messages[0].ack(), AckResult)
    assert_type(await orders.push(Order(1), transaction_id="t"), PushResult)
    await orders.push("no order")  # type: ignore[arg-type]
    await orders.pop(size=3)  # type: ignore[call-arg]
    await orders.push(Order(1), partition="p")  # type: ignore[call-arg]

    async def handler(message: AsyncMessage[Order]) -> None: ...

    async def other(message: AsyncMessage[Parcel]) -> None: ...

    assert_type(await orders.consume(handler, batch=3), Summary)
    await orders.consume(other)  # type: ignore[arg-type]
    queen.discover("n").partition("p")  # type: ignore[attr-defined]
    orders.group("g").push(Order(1))  # type: ignore[attr-defined]
    async with orders.buffer(linger=0.1) as buffer:
        assert_type(await (await buffer.push(Order(1))), PushResult)


def synchronous(queen: Queen) -> None:
    orders = queen.queue("q", type=Order)
    assert_type(orders, Queue[Order])
    messages = orders.partition("p").group("g").pop(batch=3, wait=1)
    assert_type(messages, List[Message[Order]])
    assert_type(messages[0].data, Order)
    assert_type(messages[0].ack(), AckResult)
    assert_type(messages[0].renew(60, deadline=3), datetime)
    messages[0].renew("60")  # type: ignore[arg-type]
    orders.push("no order")  # type: ignore[arg-type]
    assert_type(orders.push(Order(1)), PushResult)

    def handler(message: Message[Order]) -> None: ...

    def other(message: Message[Parcel]) -> None: ...

    assert_type(orders.consume(handler, batch=3), Summary)
    orders.consume(other)  # type: ignore[arg-type]
    assert_type(orders.start(handler).stop(timeout=3), Summary)
    assert_type(queen.admin.queues.depth("q", "g"), shapes.Depth)
    assert_type(queen.admin.queues.configure("q", lease_time=3), shapes.Configured)
    queen.admin.queues.configure("q", lease_time="3")  # type: ignore[arg-type]
    assert_type(queen.admin.groups.list(), List[shapes.ConsumerGroup])
    with orders.buffer() as buffer:
        assert_type(buffer.push(Order(1)).result(), PushResult)

"""Tracks the outcome of a batch's messages, and computes the acknowledgements to send. Pure."""

from __future__ import annotations

from typing import Sequence

from .ack import Ack
from .delivery import Delivery


class Ledger:
    """
    - Messages of a partition are handled in order, so acknowledging the last completed one includes those before it.
    - Behind a failed message, nothing of its partition is handled: the next message is given back together with the
      failure. If the failure ends the lease, that has no effect; if it makes a dead letter, the rest becomes free at once.
    - Outcomes that a handler has reported are not reported again. Without `auto_ack`, completions are up to the handler,
      and only failed or unhandled messages are reported.
    """

    def __init__(self, messages: Sequence[Delivery], auto_ack: bool = True) -> None:
        self._auto_ack = auto_ack
        self._lanes: dict[str, list[Delivery]] = {}
        self._place: dict[Delivery, int] = {}
        for message in messages:
            lane = self._lanes.setdefault(message.partition_id, [])
            self._place[message] = len(lane)
            lane.append(message)
        #: From this index on, nothing of a partition is handled.
        self._end = {partition: len(lane) for partition, lane in self._lanes.items()}
        self._handled: set[Delivery] = set()
        self._done: dict[str, Ack] = {}
        self._others: list[Ack] = []

    def is_open(self, message: Delivery) -> bool:
        """Whether it should still be handled."""
        return message not in self._handled and self._place[message] < self._end[message.partition_id]

    def done(self, message: Delivery) -> None:
        self._close(message)
        if message.settled is None and self._auto_ack:
            self._done[message.partition_id] = Ack(message, "completed")

    def failed(self, message: Delivery, text: str | None) -> None:
        self._close(message)
        if message.settled is None:
            self._others.append(Ack(message, "failed", text))
            self._give_back(self._cut(message.partition_id, self._place[message])[1:])

    def all_failed(self, messages: Sequence[Delivery], text: str | None) -> None:
        """Fails a whole batch: each message becomes a dead letter when its retries are exhausted."""
        for message in messages:
            self._close(message)
            if message.settled is None:
                self._others.append(Ack(message, "failed", text))

    def refused(self, message: Delivery) -> None:
        """The broker refused an acknowledgement. The partition is no longer held, so the rest of it is not handled."""
        partition = message.partition_id
        self._done.pop(partition, None)
        # If the lease still exists, this releases it.
        self._give_back(self._cut(partition, self._place[message] + 1))

    def give_back(self) -> None:
        """Releases everything that is not handled yet."""
        for partition, lane in self._open_lanes().items():
            self._cut(partition, self._place[lane[0]])
            self._give_back(lane)

    def take(self) -> list[Ack]:
        """The acknowledgements to send, in one request."""
        acks, self._done, self._others = [*self._done.values(), *self._others], {}, []
        failing = {ack.delivery for ack in acks if ack.status == "failed"}
        lanes = {ack.delivery.partition_id for ack in acks}
        told = {partition: _told(self._lanes[partition]) for partition in lanes}
        held = {partition: self._first_held(partition, told[partition], failing) for partition in lanes}
        due = []
        for ack in acks:
            partition, place = ack.delivery.partition_id, self._place[ack.delivery]
            if place < told[partition]:
                continue
            # As a dead letter it would complete earlier messages that its handler has not acknowledged yet.
            due.append(Ack(ack.delivery, "retry") if ack.delivery in failing and place > held[partition] else ack)
        return due

    def put_back(self, acks: Sequence[Ack]) -> None:
        """Sending failed, so the acknowledgements stay due."""
        for ack in acks:
            if ack.status == "completed":
                self._done.setdefault(ack.delivery.partition_id, ack)
            else:
                self._others.append(ack)

    def is_settled(self) -> bool:
        """Whether handlers have acknowledged everything themselves, so that there is no lease left to lose."""
        return all(
            any(one.ended for one in lane) or _told(lane) == len(lane) for lane in self._open_lanes().values()
        )

    def _open_lanes(self) -> dict[str, list[Delivery]]:
        lanes = {name: [one for one in lane if self.is_open(one)] for name, lane in self._lanes.items()}
        return {partition: lane for partition, lane in lanes.items() if lane}

    def _close(self, message: Delivery) -> None:
        self._handled.add(message)
        if message.ended:
            behind = self._cut(message.partition_id, self._place[message])[1:]
            if not message.released:
                self._give_back(behind)

    def _cut(self, partition: str, place: int) -> list[Delivery]:
        """Nothing from this index on is to be handled. Returns these messages."""
        lane = self._lanes[partition][place : self._end[partition]]
        self._end[partition] = min(place, self._end[partition])
        return lane

    def _give_back(self, messages: Sequence[Delivery]) -> None:
        """Released by the first of these messages whose outcome no handler has reported."""
        told = _told(messages)
        if told < len(messages):
            self._others.append(Ack(messages[told], "retry"))

    def _first_held(self, partition: str, told: int, failing: set[Delivery]) -> float:
        """Index of the first message that its handler still has to acknowledge."""
        if self._auto_ack:
            return float("inf")
        lane = self._lanes[partition]
        for place in range(told, len(lane)):
            if lane[place] in self._handled and lane[place] not in failing:
                return place
        return float("inf")


def _told(lane: Sequence[Delivery]) -> int:
    """How many of these messages are acknowledged: an acknowledgement includes those before it."""
    if any(message.released for message in lane):
        return len(lane)
    settled = (place for place in reversed(range(len(lane))) if lane[place].settled is not None)
    return next(settled, -1) + 1

"""What became of the messages of one batch, and what the broker has still to be told. Pure."""

from __future__ import annotations

from typing import Sequence

from .ack import Ack
from .delivery import Delivery


class Ledger:
    """
    - Messages of a partition are handled in order, so the last one that is done speaks for all before it.
    - Behind a message that failed nothing of its partition is handled: the next one is given back together with the
      failure. If the failure ends the lease, that changes nothing; if it makes a dead letter, the rest is free at once.
    - What a handler has told the broker itself is not told again. Without `auto_ack` what is done is left to it, and
      only what failed or was not handled is told.
    """

    def __init__(self, messages: Sequence[Delivery], auto_ack: bool = True) -> None:
        self._auto_ack = auto_ack
        self._lanes: dict[str, list[Delivery]] = {}
        self._place: dict[Delivery, int] = {}
        for message in messages:
            lane = self._lanes.setdefault(message.partition_id, [])
            self._place[message] = len(lane)
            lane.append(message)
        #: From this place on nothing of a partition is handled.
        self._end = {partition: len(lane) for partition, lane in self._lanes.items()}
        self._handled: set[Delivery] = set()
        self._done: dict[str, Ack] = {}
        self._others: list[Ack] = []

    def is_open(self, message: Delivery) -> bool:
        """Whether it is still to be handled."""
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
        """Of a batch that failed as a whole: each of them becomes a dead letter when retries are spent."""
        for message in messages:
            self._close(message)
            if message.settled is None:
                self._others.append(Ack(message, "failed", text))

    def refused(self, message: Delivery) -> None:
        """The broker does not want to hear of it. The partition is somebody else's, so no more of it is handled."""
        partition = message.partition_id
        self._done.pop(partition, None)
        # If it is not, it is free then.
        self._give_back(self._cut(partition, self._place[message] + 1))

    def give_back(self) -> None:
        """Whatever is not handled yet is for somebody else."""
        for partition, lane in self._open_lanes().items():
            self._cut(partition, self._place[lane[0]])
            self._give_back(lane)

    def take(self) -> list[Ack]:
        """What to tell the broker, in one request."""
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
            # As a dead letter it would take those along that its handler has not acknowledged yet.
            due.append(Ack(ack.delivery, "retry") if ack.delivery in failing and place > held[partition] else ack)
        return due

    def put_back(self, acks: Sequence[Ack]) -> None:
        """They could not be told, and stay due."""
        for ack in acks:
            if ack.status == "completed":
                self._done.setdefault(ack.delivery.partition_id, ack)
            else:
                self._others.append(ack)

    def is_settled(self) -> bool:
        """Whether handlers have acknowledged all that is open themselves, so that there is no lease left to lose."""
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
        """Nothing from this place on is to be handled. Returns what is there."""
        lane = self._lanes[partition][place : self._end[partition]]
        self._end[partition] = min(place, self._end[partition])
        return lane

    def _give_back(self, messages: Sequence[Delivery]) -> None:
        """By the first of them that no handler has told anything of."""
        told = _told(messages)
        if told < len(messages):
            self._others.append(Ack(messages[told], "retry"))

    def _first_held(self, partition: str, told: int, failing: set[Delivery]) -> float:
        """The place of the first message whose handler is to acknowledge it, and has not yet."""
        if self._auto_ack:
            return float("inf")
        lane = self._lanes[partition]
        for place in range(told, len(lane)):
            if lane[place] in self._handled and lane[place] not in failing:
                return place
        return float("inf")


def _told(lane: Sequence[Delivery]) -> int:
    """How many of these messages the broker knows about: an acknowledgement speaks for all before it."""
    if any(message.released for message in lane):
        return len(lane)
    settled = (place for place in reversed(range(len(lane))) if lane[place].settled is not None)
    return next(settled, -1) + 1

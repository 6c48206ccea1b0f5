"""Which of several brokers a request goes to. Pure: the time comes in as an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

DOWN_FIRST = 1.0
DOWN_MAX = 30.0


@dataclass(frozen=True)
class Route:
    """What a request concerns: the broker that delivered its messages, or a key that stays on one broker."""

    key: tuple[str, ...] | None = None
    broker: int | None = None


ANYWHERE = Route()


class Brokers:
    """The addresses, and which of them are down.

    - A broker is down for 1 s after a failure, and twice as long after each further one, up to 30 s.
    - While one is healthy no other is asked.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(urls)
        self._down_until = [0.0] * len(self.urls)
        self._pauses = [0.0] * len(self.urls)
        self._hashes = [key_hash((url,)) for url in self.urls]

    def choose(self, route: Route, now: float) -> int:
        """The first healthy one in the order of preference, or the one that is due first."""
        for broker in self._preferred(route):
            if self.healthy(broker, now):
                return broker
        return min(range(len(self.urls)), key=self._down_until.__getitem__)

    def healthy(self, broker: int, now: float) -> bool:
        return now >= self._down_until[broker]

    def any_healthy(self, now: float) -> bool:
        return any(self.healthy(broker, now) for broker in range(len(self.urls)))

    def failed(self, broker: int, now: float) -> None:
        # Requests that were under way together fail together, and are one failure. Whoever failed last is due last, so that
        # brokers take turns while all are down.
        if self.healthy(broker, now):
            self._pauses[broker] = min(max(DOWN_FIRST, self._pauses[broker] * 2), DOWN_MAX)
        self._down_until[broker] = now + self._pauses[broker]

    def answered(self, broker: int) -> None:
        self._pauses[broker] = 0.0
        self._down_until[broker] = 0.0

    def _preferred(self, route: Route) -> list[int]:
        order = list(range(len(self.urls)))
        if len(order) == 1:
            return order
        if route.key is not None:
            # Rendezvous hashing: a broker that leaves moves its own keys only.
            key = key_hash(route.key)
            order.sort(key=lambda broker: mix(self._hashes[broker] ^ key), reverse=True)
        if route.broker is not None:
            order.remove(route.broker)
            order.insert(0, route.broker)
        return order


def key_hash(parts: Sequence[str]) -> int:
    """FNV-1a over the parts, with line breaks between them. The same in Queen's other clients, so that the producers and
    consumers of a partition meet at one broker whatever they are written in."""
    value = 0x811C9DC5
    for byte in "\n".join(parts).encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def mix(value: int) -> int:
    """The end of MurmurHash3: FNV alone would favour brokers by the last character of their address."""
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16

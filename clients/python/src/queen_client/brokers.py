"""Chooses the broker for a request. Pure: the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Sequence

DOWN_FIRST = 1.0
DOWN_MAX = 30.0


@dataclass(frozen=True)
class Route:
    """The affinity of a request: the broker that delivered its messages, or a key that maps to one broker."""

    key: tuple[str, ...] | None = None
    broker: int | None = None


ANYWHERE = Route()


class Brokers:
    """The brokers' URLs, and which brokers are down.

    - A broker is down for 1 s after a failure, doubling with each further one, up to 30 s.
    - Brokers that are down are only used if none is healthy.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self.urls = list(urls)
        self._down_until = [0.0] * len(self.urls)
        self._pauses = [0.0] * len(self.urls)
        self._hashes = [key_hash((url,)) for url in self.urls]

    def choose(self, route: Route, now: float) -> int:
        """The first healthy broker in order of preference, or the one that is due first."""
        for broker in self._preferred(route):
            if self.healthy(broker, now):
                return broker
        return min(range(len(self.urls)), key=self._down_until.__getitem__)

    def healthy(self, broker: int, now: float) -> bool:
        return now >= self._down_until[broker]

    def any_healthy(self, now: float) -> bool:
        return any(self.healthy(broker, now) for broker in range(len(self.urls)))

    def failed(self, broker: int, now: float) -> None:
        # Concurrent requests fail together and count as one failure. The broker that failed last is due last, so that brokers
        # take turns while all are down.
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
            # Rendezvous hashing: losing a broker moves only its own keys.
            key = key_hash(route.key)
            order.sort(key=lambda broker: mix(self._hashes[broker] ^ key), reverse=True)
        if route.broker is not None:
            order.remove(route.broker)
            order.insert(0, route.broker)
        return order


def key_hash(parts: Sequence[str]) -> int:
    """FNV-1a over the parts, separated by line breaks. All Queen clients use it, so that the producers and consumers of a
    partition use the same broker whatever language they are written in."""
    value = 0x811C9DC5
    for byte in "\n".join(parts).encode():
        value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def mix(value: int) -> int:
    """The finalizer of MurmurHash3: FNV alone would favor brokers by the last character of their address."""
    value = (value ^ value >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return value ^ value >> 16

"""Decisions without a network: retries, choice of broker, format of ids."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone

import pytest

from queen_client import errors, wire
from queen_client.brokers import ANYWHERE, Brokers, Route, key_hash, mix
from queen_client.ids import uuid7
from queen_client.retry import Retry, parse_retry_after

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)


def test_a_backoff_doubles_up_to_its_limit() -> None:
    retry = Retry(delay=0.1, max_delay=1.0)
    error = errors.ServerError("oh", status=500)
    assert [retry.wait(error, tries, 1.0) for tries in range(5)] == [0.1, 0.2, 0.4, 0.8, 1.0]
    assert retry.wait(error, 10_000, 1.0) == 1.0
    assert retry.wait(error, 3, 0.0) == 0.0


def test_retry_after_is_honoured_up_to_the_limit_and_only_if_wanted() -> None:
    error = errors.RateLimited("slowly", status=429, retry_after=7.0)
    assert Retry(max_delay=30.0).wait(error, 0, 0.5) == 7.0
    assert Retry(max_delay=5.0).wait(error, 0, 0.5) == 5.0
    assert Retry(honor_retry_after=False).wait(error, 0, 1.0) == 0.1


@pytest.mark.parametrize(
    ("status", "again"),
    [(400, False), (401, False), (404, False), (408, False), (409, False), (429, True), (500, True), (503, True)],
)
def test_what_is_tried_again(status: int, again: bool) -> None:
    assert Retry().again(errors.for_status(status, "oh", None, None)) is again


def test_the_network_is_tried_again_and_429_only_if_wanted() -> None:
    assert Retry().again(errors.NetworkError("away")) and Retry().again(errors.TimedOut("late"))
    assert not Retry(on_429=False).again(errors.RateLimited("slowly", status=429))
    assert not Retry().again(errors.DecodeError("not JSON"))


def test_retry_after_is_read_as_seconds_or_as_a_date() -> None:
    assert parse_retry_after("3", NOW) == 3.0
    assert parse_retry_after("Thu, 01 Jan 2026 00:00:09 GMT", NOW) == 9.0
    assert parse_retry_after("Wed, 31 Dec 2025 23:59:00 GMT", NOW) == 0.0
    assert parse_retry_after(None, NOW) is None
    for nonsense in ("", "soon", "-1", "1.5", "²"):
        assert parse_retry_after(nonsense, NOW) is None


def test_a_key_stays_with_its_broker_and_keys_spread() -> None:
    brokers = Brokers(["http://a", "http://b", "http://c"])
    chosen = {name: brokers.choose(Route(("orders", name)), 0.0) for name in map(str, range(300))}
    assert {name: brokers.choose(Route(("orders", name)), 5.0) for name in chosen} == chosen
    for broker in range(3):
        assert 60 < list(chosen.values()).count(broker) < 140


def test_the_hash_is_that_of_the_other_clients() -> None:
    # Test vectors of FNV-1a and of the finalizer of MurmurHash3.
    assert key_hash(("foobar",)) == 0xBF9CF968
    assert key_hash(("a", "b")) == key_hash(("a\nb",))
    assert mix(0) == 0 and mix(1) == 0x514E28B7


def test_a_broker_that_is_down_moves_its_own_keys_only() -> None:
    brokers = Brokers(["http://a", "http://b", "http://c"])
    routes = [Route(("orders", str(number))) for number in range(100)]
    before = [brokers.choose(route, 0.0) for route in routes]
    brokers.failed(1, 0.0)
    after = [brokers.choose(route, 0.5) for route in routes]
    assert all(old == new or old == 1 for old, new in zip(before, after)) and 1 not in after
    assert [brokers.choose(route, 1.0) for route in routes] == before


def test_a_broker_is_left_alone_longer_each_time_until_it_answers() -> None:
    brokers = Brokers(["http://a"])
    now, pauses = 100.0, []
    for _ in range(7):
        brokers.failed(0, now)
        pauses.append(next(second for second in range(1, 60) if brokers.healthy(0, now + second)))
        now += pauses[-1]
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    brokers.answered(0)
    assert brokers.healthy(0, now)
    brokers.failed(0, now)
    assert brokers.healthy(0, now + 1)


def test_requests_that_fail_together_are_one_failure() -> None:
    brokers = Brokers(["http://a"])
    for _ in range(10):
        brokers.failed(0, 100.0)
    assert not brokers.healthy(0, 100.9) and brokers.healthy(0, 101.0)


def test_when_all_are_down_the_one_that_is_due_first_is_asked() -> None:
    brokers = Brokers(["http://a", "http://b"])
    brokers.failed(0, 10.0)
    brokers.failed(1, 10.2)
    assert not brokers.any_healthy(10.5)
    assert brokers.choose(ANYWHERE, 10.5) == 0
    assert brokers.choose(Route(broker=1), 10.5) == 0


def test_messages_are_acknowledged_where_they_came_from_while_it_is_well() -> None:
    brokers = Brokers(["http://a", "http://b", "http://c"])
    assert brokers.choose(Route(("orders", "p"), broker=2), 0.0) == 2
    brokers.failed(2, 0.0)
    assert brokers.choose(Route(("orders", "p"), broker=2), 0.5) != 2


def test_an_id_is_a_uuid_of_version_7_of_now() -> None:
    made = [uuid.UUID(uuid7()) for _ in range(1_000)]
    assert len(set(made)) == 1_000
    assert {(one.version, one.variant) for one in made} == {(7, uuid.RFC_4122)}
    age = datetime.now(timezone.utc).timestamp() - (made[0].int >> 80) / 1000
    assert -1 < age < 10


def test_any_name_fits_into_a_path() -> None:
    assert wire.path("pop", "queue", "a/b c?d#%2Fü") == "/api/v1/pop/queue/a%2Fb%20c%3Fd%23%252F%C3%BC"
    assert wire.path("pop", "queue", "..") == "/api/v1/pop/queue/%2E%2E"


def test_times_are_read_as_brokers_write_them_and_written_as_brokers_read_them() -> None:
    exact = datetime(2026, 11, 15, 11, 4, 39, 777_270, tzinfo=timezone.utc)
    for text in ("2026-11-15T11:04:39.77727Z", "2026-11-15T11:04:39.777270Z", "2026-11-15T12:04:39.77727+01:00"):
        assert wire.parse_time(text) == exact
    assert wire.parse_time("2026-11-15T11:04:39Z") == exact.replace(microsecond=0)
    assert wire.format_time(exact.astimezone(timezone(timedelta(hours=2)))) == "2026-11-15T11:04:39.777270Z"


def test_an_error_says_what_it_is() -> None:
    error = errors.for_status(429, "too many operations", "rate_limited", 5.0)
    error.attempts = 3
    assert isinstance(error, errors.RateLimited) and error.kind == "rate_limited"
    assert str(error) == "too many operations (rate_limited, status 429, 3 attempts)"
    assert isinstance(errors.for_status(504, "slow", None, None), errors.ServerError)
    assert isinstance(errors.for_status(413, "large", None, None), errors.BadRequest)

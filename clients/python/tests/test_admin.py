"""The admin API of both clients with a real broker: every verb once."""

from __future__ import annotations

import inspect
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from conftest import Api
from queen_client import NotFound, sync_admin
from queen_client import admin as async_admin
from queen_client.dead_letters import AsyncDeadLetters
from queen_client.loop import Facade
from queen_client.traces import AsyncTraces


async def test_queues(api: Api, queue: str) -> None:
    queues = api.queen.admin.queues
    configured = await api.do(queues.configure, queue, lease_time=7, retry_limit=1, namespace=queue, task="t")
    assert (configured["options"]["leaseTime"], configured["options"]["retryLimit"]) == (7, 1)
    configured = await api.do(queues.configure, queue, lease_time=None)
    assert (configured["options"]["leaseTime"], configured["options"]["retryLimit"]) == (300, 1)
    configured = await api.do(queues.configure, queue, replace=True, lease_time=9)
    assert (configured["options"]["leaseTime"], configured["options"]["retryLimit"]) == (9, 3)
    await api.do(api.queen.queue(queue).partition("p").push_many, [1, 2])
    assert [one["name"] for one in (await api.do(queues.list, search=queue))["queues"]] == [queue]
    assert (await api.do(queues.get, queue))["partitions"][0]["name"] == "p"
    depth = await api.do(queues.depth, queue, "g")
    assert (depth["pending"], depth["partitions"]) == (2, [{"partition": "p", "pending": 2}])
    assert (await api.do(queues.partitions, queue))["partitions"][0]["partition"] == "p"
    assert "namespaces" in await api.do(queues.namespaces)
    assert "tasks" in await api.do(queues.tasks)
    assert (await api.do(queues.clear, queue, partition="p"))["deleted"] == 2
    assert (await api.do(queues.delete, queue))["existed"] is True
    assert (await api.do(queues.delete, queue))["existed"] is False
    with pytest.raises(NotFound):
        await api.do(queues.get, queue)


async def test_groups(api: Api, queue: str) -> None:
    handle, groups, group = api.queen.queue(queue), api.queen.admin.groups, f"g-{queue}"[-200:]
    await api.do(handle.partition("p").push_many, [1, 2])
    reader = handle.group(group)
    assert len(await api.do(reader.pop, batch=2, auto_ack=True)) == 2
    assert group in [one["name"] for one in await api.do(groups.list, limit=1000)]
    assert [one["partition"] for one in (await api.do(groups.get, group))[queue]["partitions"]] == ["p"]
    assert isinstance(await api.do(groups.lagging, min_lag_seconds=1, limit=5), list)
    for to, pending in (("beginning", 2), ("end", 0), (datetime.now(timezone.utc) - timedelta(hours=1), 2)):
        assert (await api.do(groups.seek, group, queue, to))["success"]
        assert (await api.do(api.queen.admin.queues.depth, queue, group))["pending"] == pending
    forecast = await api.do(groups.seek, group, queue, "end", dry_run=True)
    assert (forecast["partitionsUpdated"], forecast["messagesReplayed"], forecast["messagesSkipped"]) == (1, 0, 2)
    assert (await api.do(groups.skip_partition, group, queue, "p", dry_run=True))["messagesSkipped"] == 2
    assert (await api.do(api.queen.admin.queues.depth, queue, group))["pending"] == 2
    assert (await api.do(groups.skip_partition, group, queue, "p"))["updated"]
    assert await api.do(reader.pop) == []
    assert (await api.do(groups.subscription, group, datetime(2020, 1, 1, tzinfo=timezone.utc)))["success"]
    with pytest.raises(NotFound, match="pass create=True"):
        await api.do(groups.seek, f"{group}-new", queue, "end")
    with pytest.raises(NotFound, match="pass create=True"):
        await api.do(groups.seek, f"{group}-new", queue, "end", dry_run=True)
    assert (await api.do(groups.seek, f"{group}-new", queue, "end", create=True))["partitionsUpdated"] == 1
    assert (await api.do(groups.delete, group, queue))["deletedPartitions"] == 1
    assert (await api.do(groups.delete, group, delete_metadata=False))["metadataDeleted"] is False
    assert len(await api.do(reader.pop, batch=2)) == 2


async def test_messages(api: Api, queue: str) -> None:
    handle, messages = api.queen.queue(queue).partition("p"), api.queen.admin.messages
    first = await api.do(handle.push, 1, traceparent="00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
    second = await api.do(handle.push, 2)
    since = datetime.now(timezone.utc) - timedelta(minutes=5)
    listed = await api.do(messages.list, queue=queue, partition="p", status="pending", since=since, limit=10)
    assert [one["data"] for one in listed["messages"]] == [2, 1]
    ids = (first.partition_id, first.transaction_id)
    assert (await api.do(messages.get, *ids))["payload"] == 1
    assert (await api.do(messages.life, *ids))["push"]["queue"] == queue
    assert (await api.do(messages.dead_letter, *ids, group="g", error="by hand"))["dlq"]
    assert (await api.do(messages.replay, *ids))["success"]
    assert (await api.do(messages.delete, second.partition_id, second.transaction_id))["success"]
    with pytest.raises(NotFound):
        await api.do(messages.get, second.partition_id, "unknown")


async def test_dead_letters(api: Api, queue: str) -> None:
    handle = api.queen.queue(queue).partition("p")
    await api.do(handle.push_many, [1, 2, 3])
    popped = await api.do(handle.group("g").pop, batch=3)
    await api.do(api.queen.ack, popped, "dlq", "hopeless")
    letters = handle.group("g").dead_letters()
    page = await api.do(letters.list, limit=2, error="hope")
    assert (page["total"], len(page["messages"])) == (3, 2)
    assert await api.do(letters.count) == 3
    assert await api.do(letters.count, until=datetime(2020, 1, 1, tzinfo=timezone.utc)) == 0
    slow = await api.do(letters.redrive, per_second=1, target_queue=f"{queue}-again")
    assert (await api.do(letters.progress, slow))["id"] == slow["id"]
    cancelled = await api.do(letters.cancel, slow["id"])
    assert cancelled["status"] in ("running", "cancelled")
    assert (await api.do(letters.finished, slow, pause=0.05))["status"] == "cancelled"
    assert slow["id"] in [one["id"] for one in (await api.do(letters.redrives, limit=100))["redrives"]]
    remaining = await api.do(letters.count)
    assert await api.do(letters.purge, error="other") == 0
    assert await api.do(letters.purge) == remaining
    assert (await api.do(letters.list))["total"] == 0


async def test_operations(api: Api, queue: str) -> None:
    operations = api.queen.admin.operations
    unknown = "01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01"
    assert (await api.do(operations.list, status="pending", queue=queue, limit=5))["operations"] == []
    assert "systemHealth" in await api.do(operations.stats)
    for verb in (operations.get, operations.retry, operations.cancel):
        with pytest.raises(NotFound):
            await api.do(verb, unknown)


async def test_the_broker(api: Api) -> None:
    admin = api.queen.admin
    assert (await api.do(admin.health, deadline=10))["status"] == "healthy"
    assert "messages" in await api.do(admin.overview)
    since = datetime.now(timezone.utc) - timedelta(minutes=5)
    assert "throughput" in await api.do(admin.status, since=since)
    assert "findings" in await api.do(admin.doctor, fresh=True)
    assert "uptime" in await api.do(admin.metrics)
    assert "queen_uptime_seconds" in await api.do(admin.prometheus)
    assert isinstance(await api.do(admin.refresh_statistics), dict)


async def test_maintenance(api: Api, queue: str) -> None:
    maintenance = api.queen.admin.maintenance
    assert (await api.do(maintenance.push))["maintenanceMode"] is False
    try:
        assert (await api.do(maintenance.push, True))["maintenanceMode"] is True
        assert (await api.do(maintenance.pop, True))["popMaintenanceMode"] is True
        assert (await api.do(api.queen.queue(queue).push, 1)).status == "buffered"
        assert await api.do(api.queen.queue(queue).pop, wait=5) == []
    finally:
        await api.do(maintenance.push, False)
        await api.do(maintenance.pop, False)
    (message,) = await api.do(api.queen.queue(queue).pop, wait=20)
    assert message.data == 1


def test_the_client_without_a_loop_has_every_verb_of_the_other() -> None:
    pairs: list[tuple[Any, Any]] = [
        (sync_admin.DeadLetters, AsyncDeadLetters),
        (sync_admin.Traces, AsyncTraces),
        *((getattr(sync_admin, name), getattr(async_admin, f"Async{name}")) for name in (
            "Admin", "Queues", "Groups", "Messages", "Operations", "Maintenance"
        )),
    ]  # fmt: skip
    for plain, other in pairs:
        assert issubclass(plain, Facade)
        verbs = {name for name, _ in inspect.getmembers(other, inspect.iscoroutinefunction) if name[0] != "_"}
        assert verbs and verbs == {name for name in vars(plain) if name[0] != "_"}

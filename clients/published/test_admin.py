"""The admin API of the published client: all of its read calls."""

from datetime import datetime, timedelta, timezone


async def filled(queen, queue):
    """Five messages in two partitions, some of which a group has read."""
    for partition, numbers in (("a", range(3)), ("b", range(2))):
        await queen.queue(queue).partition(partition).push([{"data": {"n": n}} for n in numbers])
    popped = await queen.queue(queue).partition("a").group("readers").batch(2).wait(False).pop()
    await queen.ack(popped, True, {"group": "readers"})
    return popped


async def test_resources_follow_what_was_pushed(queen, queue):
    await filled(queen, queue)
    overview = await queen.admin.get_overview()
    assert overview["queues"] >= 1 and overview["messages"]["total"] >= 5
    [listed] = (await queen.admin.list_queues(search=queue))["queues"]
    assert (listed["name"], listed["partitions"], listed["messages"]["total"]) == (queue, 2, 5)
    detail = await queen.admin.get_queue(queue)
    assert [partition["name"] for partition in detail["partitions"]] == ["a", "b"]
    assert detail["totals"]["total"] == 5
    labels = [label["namespace"] for label in (await queen.admin.get_namespaces())["namespaces"]]
    assert listed["namespace"] in labels
    assert (await queen.admin.get_tasks())["tasks"]
    partitions = (await queen.admin.get_partitions(queue=queue))["partitions"]
    assert {partition["partition"] for partition in partitions} == {"a", "b"}


async def test_a_cleared_queue_is_empty(queen, queue):
    await filled(queen, queue)
    assert (await queen.admin.clear_queue(queue, "b"))["deleted"] == 2
    assert (await queen.admin.clear_queue(queue))["deleted"] == 3
    assert (await queen.admin.get_queue(queue))["totals"]["total"] == 0


async def test_consumer_groups_tell_where_they_stand(queen, queue):
    await filled(queen, queue)
    groups = await queen.admin.list_consumer_groups()
    [group] = [group for group in groups if group["queueName"] == queue and group["name"] == "readers"]
    assert group["members"] == 1 and group["totalLag"] >= 1
    detail = await queen.admin.get_consumer_group("readers")
    assert {partition["partition"] for partition in detail[queue]["partitions"]} >= {"a"}
    assert isinstance(await queen.admin.get_lagging_consumers(0), list)
    assert (await queen.admin.refresh_consumer_stats())["success"] is True


async def test_status_and_analytics_have_what_just_happened(queen, queue):
    await filled(queen, queue)
    since = (datetime.now(timezone.utc) - timedelta(minutes=30)).isoformat()
    status = await queen.admin.get_status(**{"from": since, "queue": queue})
    assert sum(point["ingested"] for point in status["throughput"]) == 5
    assert (status["messages"]["total"], [listed["name"] for listed in status["queues"]]) == (5, [queue])
    assert (await queen.admin.get_queue_stats(limit=1000))["queues"]
    detail = await queen.admin.get_queue_detail(queue)
    assert (detail["queue"]["name"], detail["totals"]["total"]) == (queue, 5)
    assert (await queen.admin.get_analytics(queue=queue))["dataPoints"]
    workers = await queen.admin.get_worker_metrics(queue=queue)
    assert workers["summary"]["totalPushMessages"] == 5
    # A broker that has just started has no measurements yet.
    assert "replicas" in await queen.admin.get_system_metrics()
    assert (await queen.admin.get_postgres_stats())["databaseCache"]["cacheHitRatio"] >= 0


async def test_metrics_are_told_as_json(queen):
    metrics = await queen.admin.metrics()
    assert metrics["sidecar"]["operations"]["push"]["count"] >= 0 and metrics["uptime"] > 0

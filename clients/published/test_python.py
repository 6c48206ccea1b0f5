"""What users of the published Python client rely on."""

import asyncio
import time
import uuid
from collections import defaultdict
from datetime import datetime, timedelta, timezone

import httpx
import pytest

HOUR = timedelta(hours=1)


# Queues


async def test_a_queue_is_created_and_deleted(queen, queue):
    created = await queen.queue(queue).namespace("shop").task("billing").create()
    assert created["configured"] is True
    assert (created["queue"], created["namespace"], created["task"]) == (queue, "shop", "billing")
    deleted = await queen.queue(queue).delete()
    assert (deleted["deleted"], deleted["existed"]) == (True, True)
    deleted = await queen.queue(queue).delete()
    assert (deleted["deleted"], deleted["existed"]) == (False, False)


async def test_configure_echoes_every_option(queen, queue):
    options = {
        "lease_time": 11,
        "retry_limit": 5,
        "retry_delay": 2500,
        "ttl": 36,
        "max_size": 1000,
        "priority": 7,
        "delayed_processing": 12,
        "window_buffer": 100,
        "dead_letter_queue": True,
        "dlq_after_max_retries": True,
        "retention_enabled": True,
        "retention_seconds": 3600,
        "completed_retention_seconds": 1800,
        "max_wait_time_seconds": 600,
        "encryption_enabled": True,
    }
    echo = (await queen.queue(queue).config(options).create())["options"]
    sent = queen.queue(queue)._convert_config_to_camel_case(options)
    assert {name: echo[name] for name in sent} == sent
    again = await queen.queue(queue).config({"lease_time": 22}).create()
    assert again["options"]["leaseTime"] == 22


async def test_a_deleted_queue_takes_its_messages_along(queen, queue):
    await queen.queue(queue).push({"data": 1})
    await queen.queue(queue).delete()
    assert await at_once(queen, queue) == []
    await queen.queue(queue).push({"data": 2})
    assert data(await at_once(queen, queue)) == [2]


async def test_an_encrypted_queue_answers_in_plain(queen, queue):
    await queen.queue(queue).config({"encryption_enabled": True}).create()
    await queen.queue(queue).push({"data": {"secret": "rose"}})
    assert data(await at_once(queen, queue)) == [{"secret": "rose"}]


# Push


async def test_a_push_is_echoed_with_its_own_transaction_id(queen, queue):
    [pushed] = await queen.queue(queue).push({"data": 1, "transactionId": "mine"})
    assert (pushed["index"], pushed["status"], pushed["transaction_id"]) == (0, "queued", "mine")
    [message] = await at_once(queen, queue)
    assert (message["transactionId"], message["id"]) == ("mine", pushed["message_id"])
    assert await queen.queue(queue).push([]) == []


async def test_a_repeated_transaction_id_is_a_duplicate_in_its_partition_only(queen, queue):
    item = {"data": "first", "transactionId": "once"}
    [first] = await queen.queue(queue).push(item)
    heard = []

    async def duplicate(items, _error):
        heard.extend(item["transactionId"] for item in items)

    [second] = await queen.queue(queue).push({**item, "data": "second"}).on_duplicate(duplicate)
    assert (second["status"], second["message_id"]) == ("duplicate", first["message_id"])
    assert heard == ["once"]
    [elsewhere] = await queen.queue(queue).partition("other").push(item)
    assert elsewhere["status"] == "queued"
    assert data(await at_once(queen, queue, partitions=2)) == ["first", "first"]


async def test_equal_ids_in_one_push_are_stored_once(queen, queue):
    results = await queen.queue(queue).push([{"data": n, "transactionId": "same"} for n in range(3)])
    assert [result["status"] for result in results] == ["queued", "duplicate", "duplicate"]
    assert len({result["message_id"] for result in results}) == 1
    assert data(await at_once(queen, queue)) == [0]


async def test_of_concurrent_pushes_with_one_id_one_wins(queen, queue):
    pushes = [execute(queen.queue(queue).push({"data": n, "transactionId": "race"})) for n in range(8)]
    results = [result for [result] in await asyncio.gather(*pushes)]
    assert sorted(result["status"] for result in results) == ["duplicate"] * 7 + ["queued"]
    assert len({result["message_id"] for result in results}) == 1


async def test_pushes_during_maintenance_arrive_in_order_once_it_is_over(queen, queue, broker):
    async with httpx.AsyncClient(base_url=broker) as http:

        async def switch(on):
            reply = await http.post("/api/v1/system/maintenance", json={"enabled": on})
            assert (reply.status_code, reply.json()["maintenanceMode"]) == (200, on)

        await queen.queue(queue).push({"data": 0})
        await switch(True)
        try:
            for n in (1, 2):
                [result] = await queen.queue(queue).push({"data": n})
                assert result["status"] == "buffered"
            assert data(await at_once(queen, queue)) == [0]
        finally:
            await switch(False)
    found = []
    while len(found) < 3:
        found = data(await at_once(queen, queue, group=f"group {uuid.uuid4()}"))
    assert found == [0, 1, 2]


async def test_a_large_payload_arrives_intact(queen, queue):
    payload = {"text": "queen 👑 " * 200_000}
    assert len(payload["text"].encode()) > 2_000_000
    await queen.queue(queue).push({"data": payload})
    assert data(await at_once(queen, queue)) == [payload]


async def test_any_json_is_a_payload(queen, queue):
    payloads = [None, {}, [], "", 0, False, 1e-7, 2**53 + 1, "\u0000 é 👑", {"nested": [{"null": None}]}]
    await queen.queue(queue).push([{"data": payload} for payload in payloads])
    assert data(await at_once(queen, queue)) == payloads


async def test_names_may_be_awkward(queen, queue):
    queue, partition, group = f"{queue} é: 👑", "a b+c", "a group?"
    await queen.queue(queue).partition(partition).push({"data": 1})
    [message] = await queen.queue(queue).partition(partition).group(group).wait(False).pop()
    assert (message["queue"], message["partition"], message["consumerGroup"]) == (queue, partition, group)
    assert (await queen.ack(message, True, {"group": group}))["success"]
    assert (await queen.delete_consumer_group(group))["deletedPartitions"] == 1


# Pop


async def test_a_pop_right_after_a_push_finds_it(queen, queue):
    assert await at_once(queen, queue) == []
    for n in range(30):
        await queen.queue(queue).partition(f"p{n % 4}").push({"data": n})
        [message] = await at_once(queen, queue)
        assert (message["data"], message["queue"], message["partition"]) == (n, queue, f"p{n % 4}")
        assert (await queen.ack(message))["success"]
    assert await at_once(queen, queue) == []


async def test_a_waiting_pop_gets_what_is_pushed_a_second_later(queen, queue):
    began = time.monotonic()
    waiting = asyncio.create_task(soon(queen, queue))
    await asyncio.sleep(1)
    assert not waiting.done()
    await queen.queue(queue).push({"data": "late"})
    assert data(await waiting) == ["late"]
    assert time.monotonic() - began < 4


async def test_a_waiting_pop_ends_empty_at_its_timeout(queen, queue):
    began = time.monotonic()
    assert await queen.queue(queue).wait(True).timeout_millis(500).pop() == []
    assert 0.5 <= time.monotonic() - began < 3


async def test_several_partitions_come_under_one_lease(queen, queue):
    for partition in "abc":
        await queen.queue(queue).partition(partition).push([{"data": f"{partition}{n}"} for n in range(2)])
    messages = await at_once(queen, queue, partitions=3)
    assert sorted(data(messages)) == ["a0", "a1", "b0", "b1", "c0", "c1"]
    assert len({message["partitionId"] for message in messages}) == 3
    assert len({message["leaseId"] for message in messages}) == 1
    [renewed] = await queen.renew(messages)
    assert instant(renewed["newExpiresAt"]) > now()
    results = (await queen.ack(messages))["results"]
    assert len(results) == 6 and all(result["success"] for result in results)
    assert await at_once(queen, queue, partitions=3) == []


async def test_a_batch_is_shared_by_the_partitions(queen, queue):
    for partition in range(10):
        await queen.queue(queue).partition(f"p{partition}").push([{"data": n} for n in range(5)])
    messages = await at_once(queen, queue, batch=12, partitions=5)
    assert len(messages) == 12
    assert len({message["partition"] for message in messages}) <= 5
    alone = await at_once(queen, queue)
    assert data(alone) == [0, 1, 2, 3, 4]
    assert len({message["partition"] for message in alone}) == 1


async def test_namespace_and_task_find_queues(queen, queue):
    labels = {"a": ("one", "x"), "b": ("one", "y"), "c": ("two", "x")}
    for name, (namespace, task) in labels.items():
        builder = queen.queue(f"{queue}-{name}").namespace(f"{queue}-{namespace}").task(f"{queue}-{task}")
        await builder.create()
        await builder.push({"data": name})

    async def found(group, namespace=None, task=None):
        builder = queen.queue().group(group).batch(10).partitions(10).wait(False)
        if namespace:
            builder.namespace(f"{queue}-{namespace}")
        if task:
            builder.task(f"{queue}-{task}")
        messages = await builder.pop()
        assert all(message["queue"] == f"{queue}-{message['data']}" for message in messages)
        return sorted(data(messages))

    assert await found("by-namespace", namespace="one") == ["a", "b"]
    assert await found("by-task", task="x") == ["a", "c"]
    assert await found("by-both", namespace="one", task="x") == ["a"]
    assert await found("by-neither", namespace="two", task="y") == []


async def test_consumers_may_follow_a_namespace(queen, queue):
    for name in "ab":
        await queen.queue(f"{queue}-{name}").namespace(queue).create()
        await queen.queue(f"{queue}-{name}").push([{"data": f"{name}{n}"} for n in range(3)])
    seen = []

    async def handle(message):
        seen.append(message["data"])

    await queen.queue().namespace(queue).limit(6).consume(handle)
    assert sorted(seen) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert [n for n in seen if n[0] == "a"] == ["a0", "a1", "a2"]


# Consume


async def test_a_consumer_gets_single_messages_in_order(queen, queue):
    await queen.queue(queue).push([{"data": n} for n in range(10)])
    seen = []

    async def handle(message):
        seen.append(message["data"])

    await queen.queue(queue).limit(10).consume(handle)
    assert seen == list(range(10))
    assert await at_once(queen, queue) == []


async def test_a_consumer_gets_batches(queen, queue):
    await queen.queue(queue).push([{"data": n} for n in range(25)])
    seen = []

    async def handle(messages):
        seen.append(data(messages))

    await queen.queue(queue).batch(10).limit(25).consume(handle)
    assert seen == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert await at_once(queen, queue) == []


async def test_a_batch_may_be_handled_one_by_one(queen, queue):
    await queen.queue(queue).push([{"data": n} for n in range(10)])
    seen = []

    async def handle(message):
        seen.append(message["data"])

    await queen.queue(queue).batch(10).each().limit(10).consume(handle)
    assert seen == list(range(10))
    assert await at_once(queen, queue) == []


async def test_each_of_several_workers_has_its_own_limit(queen, queue):
    for n in range(10):
        await queen.queue(queue).partition(f"p{n}").push({"data": n})
    seen = []

    async def handle(message):
        seen.append(message["data"])

    await queen.queue(queue).concurrency(2).limit(5).consume(handle)
    assert sorted(seen) == list(range(10))


async def test_an_idle_consumer_ends(queen, queue):
    await queen.queue(queue).push([{"data": n} for n in range(3)])
    seen = []

    async def handle(messages):
        seen.extend(data(messages))

    await queen.queue(queue).batch(10).timeout_millis(200).idle_millis(500).consume(handle)
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("partitions", [1, 10])
async def test_concurrent_workers_keep_the_order_of_a_partition(queen, queue, partitions):
    total = 1_000
    for first in range(0, total, 100):
        for partition in range(partitions):
            numbers = range(first, first + 100)
            items = [{"data": n} for n in numbers if n % partitions == partition]
            await queen.queue(queue).partition(f"p{partition}").push(items)
    seen = defaultdict(list)
    stop = asyncio.Event()

    async def handle(messages):
        for message in messages:
            seen[message["partition"]].append(message["data"])
            await asyncio.sleep(0)
        if sum(map(len, seen.values())) >= total:
            stop.set()

    await queen.queue(queue).concurrency(10).batch(20).timeout_millis(300).consume(handle, signal=stop)
    assert seen == {f"p{p}": list(range(p, total, partitions)) for p in range(partitions)}
    assert await at_once(queen, queue, partitions=partitions) == []


# Consumer groups


async def test_every_group_gets_everything(queen, queue):
    await queen.queue(queue).push([{"data": n} for n in range(100)])

    async def consumed(builder):
        seen = []

        async def handle(messages):
            seen.extend(data(messages))

        await builder.batch(10).limit(100).consume(handle)
        return seen

    groups = [queen.queue(queue).group("a"), queen.queue(queue).group("b"), queen.queue(queue)]
    for seen in await asyncio.gather(*map(consumed, groups)):
        assert seen == list(range(100))
    for group in "a", "b", None:
        assert await at_once(queen, queue, group=group) == []


@pytest.mark.parametrize("start", [{"subscription_mode": "new"}, {"subscription_from": "now"}])
async def test_a_new_subscription_skips_history(queen, queue, start):
    await queen.queue(queue).push({"data": "old"})
    assert await at_once(queen, queue, group="g", **start) == []
    await queen.queue(queue).push({"data": "young"})
    await queen.queue(queue).partition("late").push({"data": "young too"})
    messages = await at_once(queen, queue, group="g", partitions=2)
    assert sorted(data(messages)) == ["young", "young too"]


async def test_a_new_subscription_to_an_empty_queue_misses_nothing(queen, queue):
    assert await at_once(queen, queue, group="g", subscription_mode="new") == []
    await queen.queue(queue).push({"data": "first"})
    assert data(await at_once(queen, queue, group="g")) == ["first"]


@pytest.mark.parametrize("start", [{}, {"subscription_mode": "all"}, {"subscription_mode": "from_beginning"}])
async def test_a_full_subscription_gets_history(queen, queue, start):
    await queen.queue(queue).push([{"data": n} for n in range(3)])
    assert data(await at_once(queen, queue, group="g", **start)) == [0, 1, 2]


async def test_a_subscription_may_start_at_a_time(queen, queue):
    for n in range(4):
        await queen.queue(queue).push({"data": n})
    second = (await at_once(queen, queue))[1]["createdAt"]
    assert data(await at_once(queen, queue, group="g", subscription_from=second)) == [2, 3]
    future = (now() + HOUR).isoformat()
    assert await at_once(queen, queue, group="future", subscription_from=future) == []
    past = (now() - HOUR).isoformat()
    assert data(await at_once(queen, queue, group="past", subscription_from=past)) == [0, 1, 2, 3]


async def test_a_group_seeks(queen, queue):
    for n in range(4):
        await queen.queue(queue).push({"data": n})
    second = (await at_once(queen, queue, group="g"))[1]["createdAt"]
    sought = await queen.admin.seek_consumer_group("g", queue, {"timestamp": second})
    assert (sought["success"], sought["partitionsUpdated"]) == (True, 1)
    assert data(await at_once(queen, queue, group="g")) == [2, 3]
    assert (await queen.admin.seek_consumer_group("g", queue, {"toEnd": True}))["seekToEnd"] is True
    assert await at_once(queen, queue, group="g") == []
    await queen.admin.seek_consumer_group("g", queue, {"timestamp": (now() - HOUR).isoformat()})
    assert data(await at_once(queen, queue, group="g")) == [0, 1, 2, 3]


async def test_a_seek_to_nowhere_is_refused(queen, queue, refusals):
    await queen.queue(queue).push({"data": 1})
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await queen.admin.seek_consumer_group("g", queue, {"position": "beginning"})
    assert refused.value.response.status_code == 400
    refusals.clear()


async def test_a_deleted_group_starts_afresh(queen, queue):
    group, other = f"{queue}-group", f"{queue}-other"
    for name in queue, other:
        await queen.queue(name).push({"data": name})
        assert await at_once(queen, name, group=group, subscription_mode="new") == []
    deleted = await queen.admin.delete_consumer_group_for_queue(group, queue)
    assert (deleted["success"], deleted["queueName"], deleted["metadataDeleted"]) == (True, queue, True)
    assert await at_once(queen, other, group=group) == []
    assert data(await at_once(queen, queue, group=group)) == [queue]
    deleted = await queen.delete_consumer_group(group)
    assert (deleted["success"], deleted["metadataDeleted"]) == (True, True)
    for name in queue, other:
        assert data(await at_once(queen, name, group=group)) == [name]


async def test_a_registration_outlives_its_cursors_and_can_be_moved(queen, queue):
    group = f"{queue}-group"
    await queen.queue(queue).push({"data": "old"})
    assert await at_once(queen, queue, group=group, subscription_mode="new") == []
    assert (await queen.delete_consumer_group(group, delete_metadata=False))["metadataDeleted"] is False
    assert await at_once(queen, queue, group=group) == []
    await queen.delete_consumer_group(group, delete_metadata=False)
    past = (now() - HOUR).isoformat()
    moved = await queen.update_consumer_group_timestamp(group, past)
    assert (moved["success"], moved["newTimestamp"], moved["rowsUpdated"]) == (True, past, 1)
    assert data(await at_once(queen, queue, group=group)) == ["old"]


# Acknowledgements and dead letters


async def test_acknowledging_the_last_finishes_the_batch(queen, queue):
    await queen.queue(queue).push([{"data": n} for n in range(5)])
    messages = await at_once(queen, queue)
    for index, released, noop in [(2, False, False), (1, False, True), (4, True, False)]:
        acked = await queen.ack(messages[index])
        assert (acked["success"], acked["leaseReleased"], acked["noop"]) == (True, released, noop)
    assert await at_once(queen, queue) == []
    await queen.queue(queue).push({"data": 5})
    assert data(await at_once(queen, queue)) == [5]


async def test_an_unknown_message_cannot_be_acknowledged(queen, queue):
    await queen.queue(queue).push({"data": 1})
    [message] = await at_once(queen, queue)
    acked = await queen.ack({**message, "transactionId": "nobody"})
    assert acked["success"] is False and "Message not found" in acked["error"]
    assert (await queen.ack(message))["success"]


async def test_a_failing_message_is_retried_and_then_a_dead_letter(queen, queue):
    await queen.queue(queue).config({"retry_limit": 2}).create()
    await queen.queue(queue).push([{"data": {"n": 1}, "transactionId": "poison"}, {"data": {"n": 2}}])
    for attempt in range(3):
        [message] = await at_once(queen, queue, batch=1, group="g")
        assert (message["transactionId"], message["retryCount"]) == ("poison", attempt)
        acked = await queen.ack(message, False, {"group": "g", "error": f"no luck {attempt}"})
        assert (acked["success"], acked["dlq"]) == (True, attempt == 2)

    found = await queen.queue(queue).dlq("g").get()
    assert found["total"] == 1
    [letter] = found["messages"]
    assert (letter["transactionId"], letter["data"]) == ("poison", {"n": 1})
    assert (letter["queue"], letter["partition"], letter["consumerGroup"]) == (queue, "Default", "g")
    assert "no luck 2" in letter["errorMessage"]
    assert (await queen.queue(queue).dlq("other").get())["total"] == 0

    assert data(await at_once(queen, queue, group="g")) == [{"n": 2}]
    assert data(await at_once(queen, queue, group="other")) == [{"n": 1}, {"n": 2}]


async def test_dead_letters_are_listed_by_page_partition_and_time(queen, queue):
    for partition in "ab":
        await queen.queue(queue).partition(partition).push([{"data": f"{partition}{n}"} for n in range(3)])
        messages = await queen.queue(queue).partition(partition).batch(10).wait(False).pop()
        await queen.ack(messages, "dlq", {"error": "unreadable"})
    everything = await queen.queue(queue).dlq().get()
    assert everything["total"] == 6
    assert sorted(data(everything["messages"])) == ["a0", "a1", "a2", "b0", "b1", "b2"]
    page = await queen.queue(queue).dlq().limit(2).offset(3).get()
    assert (page["total"], page["messages"]) == (6, everything["messages"][3:5])
    in_a = (await queen.queue(queue).partition("a").dlq().get())["messages"]
    assert sorted(data(in_a)) == ["a0", "a1", "a2"]
    past, future = (now() - HOUR).isoformat(), (now() + HOUR).isoformat()
    assert len((await queen.queue(queue).dlq().from_(past).to(future).get())["messages"]) == 6
    assert (await queen.queue(queue).dlq().from_(future).get())["messages"] == []


async def test_messages_of_a_batch_may_fare_differently(queen, queue):
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await queen.queue(queue).push([{"data": n} for n in range(3)])
    good, bad, last = await at_once(queen, queue)
    judged = [good, {**bad, "_status": False, "_error": "spoilt"}, last]
    results = (await queen.ack(judged))["results"]
    assert [result["success"] for result in results] == [True, True, True]
    assert [result["dlq"] for result in results] == [False, True, False]
    [letter] = (await queen.queue(queue).dlq().get())["messages"]
    assert (letter["data"], letter["errorMessage"]) == (1, "spoilt")
    assert await at_once(queen, queue) == []


async def test_a_handler_that_raises_sees_its_batch_again(queen, queue):
    await queen.queue(queue).config({"retry_limit": 3}).create()
    await queen.queue(queue).push([{"data": n} for n in range(5)])
    calls = []
    stop = asyncio.Event()

    async def handle(messages):
        calls.append(data(messages))
        if len(calls) < 3:
            raise RuntimeError("not yet")
        stop.set()

    await queen.queue(queue).group("g").batch(10).consume(handle, signal=stop)
    assert calls == [[0, 1, 2, 3, 4]] * 3
    assert await at_once(queen, queue, group="g") == []
    assert (await queen.queue(queue).dlq().get())["total"] == 0


# Leases


async def test_a_renewed_lease_holds(queen, queue):
    await queen.queue(queue).config({"lease_time": 2}).create()
    await queen.queue(queue).push({"data": 1})
    [message] = await at_once(queen, queue)
    renewed = await queen.renew(message)
    assert renewed["success"] and instant(renewed["newExpiresAt"]) > now() + timedelta(seconds=30)
    assert await queen.queue(queue).wait(True).timeout_millis(2_500).pop() == []
    assert (await queen.ack(message))["success"]


async def test_an_unknown_lease_has_no_new_expiry(queen):
    assert (await queen.renew(str(uuid.uuid4())))["newExpiresAt"] is None


async def test_a_consumer_renews_while_its_handler_works(queen, queue):
    await queen.queue(queue).config({"lease_time": 2}).create()
    await queen.queue(queue).push({"data": 1})
    acks = []

    async def handle(message):
        assert await queen.queue(queue).wait(True).timeout_millis(4_000).pop() == []
        acks.append(await queen.ack(message))

    await queen.queue(queue).auto_ack(False).renew_lease(True, 500).limit(1).consume(handle)
    assert [ack["success"] for ack in acks] == [True]
    assert await at_once(queen, queue) == []


async def test_an_expired_lease_is_refused_politely(queen, queue):
    await queen.queue(queue).config({"lease_time": 1, "retry_limit": 0}).create()
    await queen.queue(queue).push({"data": 1})
    [late] = await at_once(queen, queue)
    assert await at_once(queen, queue) == []
    [again] = await soon(queen, queue)
    assert (again["transactionId"], again["retryCount"]) == (late["transactionId"], 0)
    refused = await queen.ack(late)
    assert refused["success"] is False and "lease" in refused["error"]
    refused = await queen.ack([late])
    assert [result["success"] for result in refused["results"]] == [False]
    assert (await queen.ack({**late, "leaseId": None}))["success"]
    assert await at_once(queen, queue) == []


# Transactions


async def test_a_transaction_acknowledges_and_pushes_at_once(queen, queue):
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    messages = await at_once(queen, queue)
    transaction = queen.transaction().ack(messages)
    transaction.queue(f"{queue}-a").partition("p").push([{"data": n} for n in range(5)])
    transaction.queue(f"{queue}-b").push({"data": "x" * 100_000})
    committed = await transaction.commit()
    assert committed["success"] and all(result["success"] for result in committed["results"])
    assert [result["type"] for result in committed["results"]] == ["ack"] * 2 + ["push"] * 6
    assert await at_once(queen, queue) == []
    forwarded = await at_once(queen, f"{queue}-a")
    assert [(message["partition"], message["data"]) for message in forwarded] == [("p", n) for n in range(5)]
    assert data(await at_once(queen, f"{queue}-b")) == ["x" * 100_000]


async def test_a_transaction_with_a_bogus_acknowledgement_does_nothing(queen, queue):
    await queen.queue(queue).push({"data": 1})
    [message] = await at_once(queen, queue)
    transaction = queen.transaction().queue(f"{queue}-target").push({"data": "never"}).ack(message)
    transaction.ack({"transactionId": "nobody", "partitionId": message["partitionId"]})
    with pytest.raises(Exception, match="Message not found"):
        await transaction.commit()
    assert await at_once(queen, f"{queue}-target") == []
    acked = await queen.ack(message)
    assert (acked["success"], acked["noop"]) == (True, False)


async def test_a_transaction_needs_its_leases(queen, queue):
    await queen.queue(queue).config({"lease_time": 1}).create()
    await queen.queue(queue).push({"data": 1})
    [late] = await at_once(queen, queue)
    [again] = await soon(queen, queue)
    with pytest.raises(Exception, match=late["leaseId"]):
        await queen.transaction().ack(late).queue(f"{queue}-target").push({"data": "never"}).commit()
    assert await at_once(queen, f"{queue}-target") == []
    await queen.transaction().ack(again).commit()


async def test_a_transaction_moves_only_its_group(queen, queue):
    await queen.queue(queue).push([{"data": 1}, {"data": 2}])
    messages = await at_once(queen, queue, group="a")
    await queen.transaction().ack(messages, context={"consumer_group": "a"}).commit()
    assert await at_once(queen, queue, group="a") == []
    assert data(await at_once(queen, queue, group="b")) == [1, 2]


async def test_a_transaction_may_give_up_on_a_message(queen, queue):
    await queen.queue(queue).config({"retry_limit": 0}).create()
    await queen.queue(queue).push({"data": 1})
    await queen.transaction().ack(await at_once(queen, queue), "failed").commit()
    assert await at_once(queen, queue) == []
    assert data((await queen.queue(queue).dlq().get())["messages"]) == [1]


async def test_a_chain_of_consumers_forwards_in_transactions(queen, queue):
    await queen.queue(f"{queue}-0").push([{"data": n} for n in range(10)])

    async def forward(step):
        async def handle(message):
            transaction = queen.transaction().ack(message)
            await transaction.queue(f"{queue}-{step + 1}").push({"data": message["data"] * 10}).commit()

        await queen.queue(f"{queue}-{step}").auto_ack(False).limit(10).consume(handle)

    await asyncio.gather(forward(0), forward(1))
    assert data(await at_once(queen, f"{queue}-2")) == [n * 100 for n in range(10)]
    for step in range(2):
        assert await at_once(queen, f"{queue}-{step}") == []


# Time


async def test_a_delayed_message_comes_when_it_is_old_enough(queen, queue):
    await queen.queue(queue).config({"delayed_processing": 2}).create()
    began = time.monotonic()
    await queen.queue(queue).push({"data": 1})
    assert await at_once(queen, queue) == []
    assert data(await soon(queen, queue)) == [1]
    assert 2 <= time.monotonic() - began < 5


async def test_a_window_collects_and_delivers_together(queen, queue):
    await queen.queue(queue).config({"window_buffer": 2}).create()
    began = time.monotonic()
    for n in range(3):
        await queen.queue(queue).push({"data": n})
    assert await at_once(queen, queue) == []
    assert data(await soon(queen, queue)) == [0, 1, 2]
    assert 2 <= time.monotonic() - began < 5


@pytest.mark.parametrize(
    "options", [{"retention_enabled": True, "retention_seconds": 1}, {"max_wait_time_seconds": 1}]
)
async def test_old_messages_leave(queen, queue, options):
    await queen.queue(queue).config(options).create()
    await queen.queue(queue).push([{"data": n} for n in range(5)])
    assert len(await at_once(queen, queue, group="early")) == 5
    deadline = time.monotonic() + 10
    # A new group sees everything that is stored.
    while await at_once(queen, queue, group=uuid.uuid4().hex):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)


# Single messages


async def test_messages_are_listed_and_looked_at(queen, queue):
    pushed = await queen.queue(queue).push([{"data": {"n": n}, "transactionId": f"{queue}-{n}"} for n in range(3)])
    page = await queen.admin.list_messages(queue=queue, limit=2)
    assert (data(page["messages"]), page["total"]) == ([{"n": 2}, {"n": 1}], 2)
    rest = await queen.admin.list_messages(queue=queue, limit=2, offset=2)
    assert data(rest["messages"]) == [{"n": 0}]
    [leased] = await at_once(queen, queue, batch=1)
    found = await queen.admin.list_messages(queue=queue, status="processing")
    assert [message["id"] for message in found["messages"]] == [leased["id"]]
    partition = pushed[0]["partition_id"]
    message = await queen.admin.get_message(partition, f"{queue}-0")
    assert (message["payload"], message["status"], message["mode"]["type"]) == ({"n": 0}, "processing", "queue")


async def test_a_message_is_deleted(queen, queue, refusals):
    pushed = await queen.queue(queue).push([{"data": n} for n in range(3)])
    place = pushed[1]["partition_id"], pushed[1]["transaction_id"]
    assert (await queen.admin.delete_message(*place))["success"] is True
    with pytest.raises(httpx.HTTPStatusError) as refused:
        await queen.admin.get_message(*place)
    assert refused.value.response.status_code == 404
    refusals.clear()
    seen = []

    async def handle(message):
        seen.append(message["data"])

    await queen.queue(queue).limit(2).consume(handle)
    assert seen == [0, 2]
    assert await at_once(queen, queue) == []


async def test_a_message_is_given_up_by_hand_and_replayed(queen, queue):
    pushed = await queen.queue(queue).push([{"data": n} for n in range(3)])
    place = pushed[1]["partition_id"], pushed[1]["transaction_id"]
    assert (await queen.admin.move_message_to_dlq(*place))["dlq"] is True
    assert data((await queen.queue(queue).dlq().get())["messages"]) == [1]
    again = await queen.admin.retry_message(*place)
    assert (again["success"], again["queue"], again["dlqRowRemoved"]) == (True, queue, True)
    assert (await queen.queue(queue).dlq().get())["total"] == 0
    seen = []

    async def handle(message):
        seen.append(message["data"])

    await queen.queue(queue).limit(3).consume(handle)
    assert seen == [0, 2, 1]


async def test_a_handler_leaves_a_trace(queen, queue):
    pushed = await queen.queue(queue).push({"data": {"n": 1}})

    async def handle(message):
        traced = await message["trace"]({"traceName": [queue, f"{queue}/2"], "data": {"step": "done"}})
        assert traced["success"], traced

    await queen.queue(queue).group("g").limit(1).each().consume(handle)
    named = await queen.admin.get_traces_by_name(queue)
    assert named["total"] == 1
    [trace] = named["traces"]
    assert (trace["data"], trace["message_payload"]) == ({"step": "done"}, {"n": 1})
    assert (trace["queue_name"], trace["consumer_group"]) == (queue, "g")
    names = [name["trace_name"] for name in (await queen.admin.get_trace_names(limit=1000))["trace_names"]]
    assert {queue, f"{queue}/2"} <= set(names)
    place = pushed[0]["partition_id"], pushed[0]["transaction_id"]
    [same] = (await queen.admin.get_traces_for_message(*place))["traces"]
    assert (same["id"], same["event_type"]) == (trace["id"], "info")


# Buffering in the client


async def test_a_buffered_push_appears_when_its_time_is_up(queen, queue):
    pushed = await queen.queue(queue).buffer({"message_count": 100, "time_millis": 1_000}).push({"data": 1})
    assert pushed == {"buffered": True, "count": 1}
    assert await at_once(queen, queue) == []
    assert data(await soon(queen, queue)) == [1]


async def test_a_buffer_can_be_flushed(queen, queue):
    options = {"message_count": 1_000, "time_millis": 60_000}
    for n in range(250):
        await queen.queue(queue).buffer(options).push({"data": n})
        await queen.queue(queue).partition("other").buffer(options).push({"data": -n})
    assert queen.get_buffer_stats()["totalBufferedMessages"] == 500
    assert await at_once(queen, queue) == []
    await queen.queue(queue).flush_buffer()
    assert data(await at_once(queen, queue, batch=500, partitions=2)) == list(range(250))
    await queen.flush_all_buffers()
    assert queen.get_buffer_stats()["totalBufferedMessages"] == 0
    assert data(await at_once(queen, queue, batch=500)) == [-n for n in range(250)]


async def test_a_full_buffer_is_sent(queen, queue):
    for n in range(10):
        await queen.queue(queue).buffer({"message_count": 10, "time_millis": 60_000}).push({"data": n})
    assert data(await soon(queen, queue)) == list(range(10))


async def test_the_broker_is_healthy(queen):
    assert (await queen.admin.health())["status"] == "healthy"


def data(messages):
    return [message["data"] for message in messages]


def now():
    return datetime.now(timezone.utc)


def instant(text):
    assert text.endswith("Z")
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


async def execute(builder):
    return await builder


async def at_once(queen, queue, *, group=None, batch=100, partitions=1, **subscription):
    """The result of a pop that does not wait."""
    builder = queen.queue(queue).batch(batch).partitions(partitions).wait(False)
    if group:
        builder.group(group)
    for option, value in subscription.items():
        getattr(builder, option)(value)
    return await builder.pop()


async def soon(queen, queue):
    """The result of a pop that waits."""
    return await queen.queue(queue).batch(100).wait(True).timeout_millis(10_000).pop()

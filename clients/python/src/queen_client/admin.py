"""The admin plane. Answers come as the broker sends them; docs/http-api.md tells what the fields mean.

What is not `repeatable` would do more the second time: it would take along what has come since the first.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Dict, List, Literal

from . import shapes, wire
from .errors import BadUse, NotFound
from .http import Http
from .part import Part
from .queue_options import QueueOptions
from .settings import check_name

if TYPE_CHECKING:
    from typing_extensions import Unpack

#: Before everything that was ever stored.
_BEGINNING = datetime(1970, 1, 1, tzinfo=timezone.utc)


class AsyncQueues(Part):
    async def list(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        search: str | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> shapes.Queues:
        """Queues, the newest first."""
        chosen = wire.query(namespace=namespace, task=task, search=search, limit=limit, offset=offset)
        return await self._get(shapes.Queues, wire.path("resources", "queues"), chosen)

    async def get(self, queue: str, *, limit: int | None = None, after: str | None = None) -> shapes.QueueDetail:
        """One queue with a page of its partitions; `after` is the partition the last page ended with."""
        where = wire.path("resources", "queues", check_name("queue", queue))
        return await self._get(shapes.QueueDetail, where, wire.query(limit=limit, after=after))

    async def configure(
        self, queue: str, *, replace: bool = False, **options: Unpack[QueueOptions]
    ) -> shapes.Configured:
        """Creates a queue or changes options. Others stay as they are, or with `replace` return to their defaults."""
        unknown = set(options) - set(QueueOptions.__annotations__)
        if unknown:
            raise BadUse(f"a queue has no option {', '.join(sorted(unknown))}")
        fields = {wire.camel(name): value for name, value in options.items()}
        body = wire.given(queue=check_name("queue", queue), options=fields, mode="replace" if replace else None)
        return await self._post(shapes.Configured, wire.path("configure"), body)

    async def delete(self, queue: str) -> shapes.QueueDeleted:
        where = wire.path("resources", "queues", check_name("queue", queue))
        return await self._delete(shapes.QueueDeleted, where, repeatable=False)

    async def clear(self, queue: str, *, partition: str | None = None) -> shapes.QueueCleared:
        """Removes the messages, and keeps the queue, its options and its groups."""
        where = wire.path("queues", check_name("queue", queue), "clear")
        return await self._delete(shapes.QueueCleared, where, wire.query(partition=partition), repeatable=False)

    async def depth(self, queue: str, group: str | None = None, *, limit: int | None = None) -> shapes.Depth:
        """What a group has still to read, with what it holds under a lease. Made to be asked often."""
        where = wire.path("resources", "queues", check_name("queue", queue), "depth")
        return await self._get(shapes.Depth, where, wire.query(group=group, limit=limit))

    async def partitions(self, queue: str | None = None, *, limit: int | None = None) -> shapes.BusyPartitions:
        """The partitions with the most unread messages."""
        where = wire.path("resources", "partitions")
        return await self._get(shapes.BusyPartitions, where, wire.query(queue=queue, limit=limit))

    async def namespaces(self) -> shapes.Namespaces:
        return await self._get(shapes.Namespaces, wire.path("resources", "namespaces"))

    async def tasks(self) -> shapes.Tasks:
        return await self._get(shapes.Tasks, wire.path("resources", "tasks"))


class AsyncGroups(Part):
    async def list(self, *, limit: int | None = None, offset: int | None = None) -> List[shapes.ConsumerGroup]:
        """Groups, an entry for each queue they read."""
        chosen = wire.query(limit=limit, offset=offset)
        return await self._get(List[shapes.ConsumerGroup], wire.path("consumer-groups"), chosen)

    async def get(self, group: str, *, limit: int | None = None) -> Dict[str, shapes.GroupInQueue]:
        """Where a group stands, by queue and partition."""
        where = wire.path("consumer-groups", check_name("consumer group", group))
        return await self._get(Dict[str, shapes.GroupInQueue], where, wire.query(limit=limit))

    async def lagging(
        self, *, min_lag_seconds: int | None = None, limit: int | None = None
    ) -> List[shapes.LaggingPartition]:
        """What has waited longest."""
        chosen = wire.query(minLagSeconds=min_lag_seconds, limit=limit)
        return await self._get(List[shapes.LaggingPartition], wire.path("consumer-groups", "lagging"), chosen)

    async def delete(
        self, group: str, queue: str | None = None, *, delete_metadata: bool = True
    ) -> shapes.GroupDeleted:
        """Forgets a group, in one queue or everywhere: a group of the same name starts afresh."""
        where = ["consumer-groups", check_name("consumer group", group)]
        if queue is not None:
            where += ["queues", check_name("queue", queue)]
        chosen = wire.query(deleteMetadata=delete_metadata)
        return await self._delete(shapes.GroupDeleted, wire.path(*where), chosen, repeatable=False)

    async def seek(
        self,
        group: str,
        queue: str,
        to: Literal["beginning", "end"] | datetime,
        *,
        create: bool = False,
        dry_run: bool = False,
    ) -> shapes.Sought:
        """Sends a group to the beginning, to the end, or behind a time, in every partition. Its leases there end.

        A group that does not read the queue is an error, unless `create` is set. With `dry_run` nothing moves:
        `messagesReplayed` and `messagesSkipped` say what would.
        """
        if not isinstance(to, datetime) and to not in ("beginning", "end"):
            raise BadUse(f'a group seeks "beginning", "end" or a datetime, not {to!r}')
        where = wire.path("consumer-groups", check_name("consumer group", group), "queues", check_name("queue", queue))
        time = _BEGINNING if to == "beginning" else to
        fields = wire.given(timestamp=time) if isinstance(time, datetime) else {"toEnd": True}
        if create:
            fields["create"] = True
        if dry_run:
            await self._check_forecasts()
            fields["dryRun"] = True
        try:
            return await self._post(shapes.Sought, f"{where}/seek", fields, repeatable=dry_run)
        except NotFound as error:
            # The broker names the field of its request.
            error.message = error.message.replace('send "create": true', "pass create=True")
            raise

    async def skip_partition(
        self, group: str, queue: str, partition: str, *, dry_run: bool = False
    ) -> shapes.PartitionSought:
        """Sends a group to the end of one partition. With `dry_run` it only says how many messages that would skip."""
        where = wire.path(
            "consumer-groups", check_name("consumer group", group), "queues", check_name("queue", queue),
            "partitions", check_name("partition", partition), "seek",
        )  # fmt: skip
        if dry_run:
            await self._check_forecasts()
            return await self._post(shapes.PartitionSought, where, {"toEnd": True, "dryRun": True})
        return await self._post(shapes.PartitionSought, where, {}, repeatable=False)

    async def _check_forecasts(self) -> None:
        """A broker of the release before does not know `dryRun`, and would move the group."""
        health = await self._get(shapes.Health, "/health")
        if health["version"].startswith("0.1."):
            raise BadUse(f"broker version {health['version']} does not support dryRun for seeks")

    async def subscription(self, group: str, since: datetime) -> shapes.Subscribed:
        """Changes where the group starts in partitions it has not met yet."""
        where = wire.path("consumer-groups", check_name("consumer group", group), "subscription")
        return await self._post(shapes.Subscribed, where, wire.given(subscriptionTimestamp=since))


class AsyncMessages(Part):
    async def list(
        self,
        *,
        queue: str | None = None,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        status: Literal["pending", "processing", "completed", "dead_letter"] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> shapes.Messages:
        """Messages, the newest first; those of the last hour if no time is given."""
        chosen = wire.query(
            queue=queue, partition=partition, namespace=namespace, task=task, status=status, from_=since, to=until,
            limit=limit, offset=offset,
        )  # fmt: skip
        return await self._get(shapes.Messages, wire.path("messages"), chosen)

    async def get(self, partition_id: str, transaction_id: str) -> shapes.MessageDetail:
        return await self._get(shapes.MessageDetail, wire.path("messages", partition_id, transaction_id))

    async def life(self, partition_id: str, transaction_id: str) -> shapes.MessageLife:
        """What happened to it; events only if it carried a trace."""
        return await self._get(shapes.MessageLife, wire.path("messages", partition_id, transaction_id, "life"))

    async def delete(self, partition_id: str, transaction_id: str) -> shapes.MessageDeleted:
        """Never delivers it again, to nobody."""
        where = wire.path("messages", partition_id, transaction_id)
        return await self._delete(shapes.MessageDeleted, where, repeatable=False)

    async def dead_letter(
        self, partition_id: str, transaction_id: str, *, group: str | None = None, error: str | None = None
    ) -> shapes.MessageBuried:
        """Makes it a dead letter of a group that has not read it yet."""
        where = wire.path("messages", partition_id, transaction_id, "dlq")
        return await self._post(shapes.MessageBuried, where, wire.given(consumerGroup=group, error=error))

    async def replay(self, partition_id: str, transaction_id: str) -> shapes.MessageReplayed:
        """Pushes a dead letter again, under a new transaction id."""
        where = wire.path("messages", partition_id, transaction_id, "retry")
        # Sent twice it would be two messages.
        return await self._post(shapes.MessageReplayed, where, {}, repeatable=False)


class AsyncOperations(Part):
    """What was accepted with a 202."""

    async def list(
        self,
        *,
        status: Literal["pending", "processing", "completed", "failed", "cancelled"] | None = None,
        queue: str | None = None,
        older_than_seconds: int | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> shapes.Operations:
        """The oldest first."""
        chosen = wire.query(
            status=status, queue=queue, olderThanSeconds=older_than_seconds, limit=limit, offset=offset
        )
        return await self._get(shapes.Operations, wire.path("operations"), chosen)

    async def get(self, operation_id: str) -> shapes.DeferredOperation:
        return await self._get(shapes.DeferredOperation, wire.path("operations", operation_id))

    async def stats(self) -> shapes.OperationsStats:
        return await self._get(shapes.OperationsStats, wire.path("operations", "stats"))

    async def retry(self, operation_id: str) -> shapes.OperationChanged:
        """Tries a failed one again, behind all that was accepted since."""
        return await self._post(shapes.OperationChanged, wire.path("operations", operation_id, "retry"), {})

    async def cancel(self, operation_id: str) -> shapes.OperationChanged:
        """Takes back a pending one, or gives up a failed one."""
        return await self._delete(shapes.OperationChanged, wire.path("operations", operation_id))


class AsyncMaintenance(Part):
    """Switches for all brokers: pushes that go to their disks, and pops that find nothing."""

    async def push(self, enabled: bool | None = None) -> shapes.Maintenance:
        """How it is, or with an argument how it shall be."""
        where = wire.path("system", "maintenance")
        if enabled is None:
            return await self._get(shapes.Maintenance, where)
        return await self._post(shapes.Maintenance, where, {"enabled": enabled})

    async def pop(self, enabled: bool | None = None) -> shapes.PopMaintenance:
        """How it is, or with an argument how it shall be."""
        where = wire.path("system", "maintenance", "pop")
        if enabled is None:
            return await self._get(shapes.PopMaintenance, where)
        return await self._post(shapes.PopMaintenance, where, {"enabled": enabled})


class AsyncAdmin(Part):
    def __init__(self, http: Http) -> None:
        super().__init__(http)
        self.queues = AsyncQueues(http)
        self.groups = AsyncGroups(http)
        self.messages = AsyncMessages(http)
        self.operations = AsyncOperations(http)
        self.maintenance = AsyncMaintenance(http)

    async def overview(self) -> shapes.Overview:
        return await self._get(shapes.Overview, wire.path("resources", "overview"))

    async def status(self, *, since: datetime | None = None, until: datetime | None = None) -> shapes.StatusPage:
        return await self._get(shapes.StatusPage, wire.path("status"), wire.query(from_=since, to=until))

    async def doctor(self, *, fresh: bool = False) -> shapes.DoctorReport:
        """What is wrong, in words."""
        chosen = wire.query(fresh=True if fresh else None)
        return await self._get(shapes.DoctorReport, wire.path("system", "doctor"), chosen)

    async def refresh_statistics(self) -> shapes.StatisticsRefreshed:
        """Measures now what has changed."""
        return await self._post(shapes.StatisticsRefreshed, wire.path("stats", "refresh"), {})

    async def health(self, *, deadline: float | None = None) -> shapes.Health:
        """Of one broker. One that is not well answers 503, which is retried until the deadline and then raised."""
        return await self._get(shapes.Health, "/health", deadline=deadline)

    async def metrics(self) -> shapes.Metrics:
        return await self._get(shapes.Metrics, "/metrics")

    async def prometheus(self) -> str:
        return await self._get(str, "/metrics/prometheus")

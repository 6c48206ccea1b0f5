"""The admin API. Responses are returned as the broker sends them; docs/http-api.md describes their fields.

Calls that are not `repeatable` could do more the second time, because of what was added since the first.
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

#: Earlier than any message.
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
        """Lists queues, newest first."""
        chosen = wire.query(namespace=namespace, task=task, search=search, limit=limit, offset=offset)
        return await self._get(shapes.Queues, wire.path("resources", "queues"), chosen)

    async def get(self, queue: str, *, limit: int | None = None, after: str | None = None) -> shapes.QueueDetail:
        """Gets a queue with a page of its partitions; `after` is the last partition of the previous page."""
        where = wire.path("resources", "queues", check_name("queue", queue))
        return await self._get(shapes.QueueDetail, where, wire.query(limit=limit, after=after))

    async def configure(
        self, queue: str, *, replace: bool = False, **options: Unpack[QueueOptions]
    ) -> shapes.Configured:
        """Creates a queue or changes options. Other options stay as they are, or are reset to their defaults with `replace`."""
        unknown = set(options) - set(QueueOptions.__annotations__)
        if unknown:
            raise BadUse(f"unknown queue option {', '.join(sorted(unknown))}")
        fields = {wire.camel(name): value for name, value in options.items()}
        body = wire.given(queue=check_name("queue", queue), options=fields, mode="replace" if replace else None)
        return await self._post(shapes.Configured, wire.path("configure"), body)

    async def delete(self, queue: str) -> shapes.QueueDeleted:
        where = wire.path("resources", "queues", check_name("queue", queue))
        return await self._delete(shapes.QueueDeleted, where, repeatable=False)

    async def clear(self, queue: str, *, partition: str | None = None) -> shapes.QueueCleared:
        """Deletes the messages, and keeps the queue, its options and its groups."""
        where = wire.path("queues", check_name("queue", queue), "clear")
        return await self._delete(shapes.QueueCleared, where, wire.query(partition=partition), repeatable=False)

    async def depth(self, queue: str, group: str | None = None, *, limit: int | None = None) -> shapes.Depth:
        """Gets a group's backlog, including leased messages. Cheap enough to poll frequently."""
        where = wire.path("resources", "queues", check_name("queue", queue), "depth")
        return await self._get(shapes.Depth, where, wire.query(group=group, limit=limit))

    async def partitions(self, queue: str | None = None, *, limit: int | None = None) -> shapes.BusyPartitions:
        """Lists the partitions with the most unread messages."""
        where = wire.path("resources", "partitions")
        return await self._get(shapes.BusyPartitions, where, wire.query(queue=queue, limit=limit))

    async def namespaces(self) -> shapes.Namespaces:
        return await self._get(shapes.Namespaces, wire.path("resources", "namespaces"))

    async def tasks(self) -> shapes.Tasks:
        return await self._get(shapes.Tasks, wire.path("resources", "tasks"))


class AsyncGroups(Part):
    async def list(self, *, limit: int | None = None, offset: int | None = None) -> List[shapes.ConsumerGroup]:
        """Lists groups, one entry per group and queue."""
        chosen = wire.query(limit=limit, offset=offset)
        return await self._get(List[shapes.ConsumerGroup], wire.path("consumer-groups"), chosen)

    async def get(self, group: str, *, limit: int | None = None) -> Dict[str, shapes.GroupInQueue]:
        """Gets a group's position in each queue and partition."""
        where = wire.path("consumer-groups", check_name("consumer group", group))
        return await self._get(Dict[str, shapes.GroupInQueue], where, wire.query(limit=limit))

    async def lagging(
        self, *, min_lag_seconds: int | None = None, limit: int | None = None
    ) -> List[shapes.LaggingPartition]:
        """Lists the partitions that have waited longest."""
        chosen = wire.query(minLagSeconds=min_lag_seconds, limit=limit)
        return await self._get(List[shapes.LaggingPartition], wire.path("consumer-groups", "lagging"), chosen)

    async def delete(
        self, group: str, queue: str | None = None, *, delete_metadata: bool = True
    ) -> shapes.GroupDeleted:
        """Deletes a group, in one queue or in all. A new group of the same name starts over."""
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
        """Moves a group to the beginning, to the end, or to a time, in every partition. Its leases there end.

        Fails if the group does not read the queue, unless `create` is set. With `dry_run` nothing moves:
        `messagesReplayed` and `messagesSkipped` show the effect.
        """
        if not isinstance(to, datetime) and to not in ("beginning", "end"):
            raise BadUse(f'to must be "beginning", "end" or a datetime, not {to!r}')
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
            # The broker's message uses the field names of its API.
            error.message = error.message.replace('send "create": true', "pass create=True")
            raise

    async def skip_partition(
        self, group: str, queue: str, partition: str, *, dry_run: bool = False
    ) -> shapes.PartitionSought:
        """Moves a group to the end of one partition. With `dry_run`, only returns how many messages that would skip."""
        where = wire.path(
            "consumer-groups", check_name("consumer group", group), "queues", check_name("queue", queue),
            "partitions", check_name("partition", partition), "seek",
        )  # fmt: skip
        if dry_run:
            await self._check_forecasts()
            return await self._post(shapes.PartitionSought, where, {"toEnd": True, "dryRun": True})
        return await self._post(shapes.PartitionSought, where, {}, repeatable=False)

    async def _check_forecasts(self) -> None:
        """Brokers of the previous release do not know `dryRun` and would move the group."""
        health = await self._get(shapes.Health, "/health")
        if health["version"].startswith("0.1."):
            raise BadUse(f"broker version {health['version']} does not support dryRun for seeks")

    async def subscription(self, group: str, since: datetime) -> shapes.Subscribed:
        """Changes where the group starts in partitions that are new to it."""
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
        """Lists messages, newest first; by default those of the last hour."""
        chosen = wire.query(
            queue=queue, partition=partition, namespace=namespace, task=task, status=status, from_=since, to=until,
            limit=limit, offset=offset,
        )  # fmt: skip
        return await self._get(shapes.Messages, wire.path("messages"), chosen)

    async def get(self, partition_id: str, transaction_id: str) -> shapes.MessageDetail:
        return await self._get(shapes.MessageDetail, wire.path("messages", partition_id, transaction_id))

    async def life(self, partition_id: str, transaction_id: str) -> shapes.MessageLife:
        """Gets the history of a message; it has events only if the message is traced."""
        return await self._get(shapes.MessageLife, wire.path("messages", partition_id, transaction_id, "life"))

    async def delete(self, partition_id: str, transaction_id: str) -> shapes.MessageDeleted:
        """Deletes a message, so that it is not delivered to any group."""
        where = wire.path("messages", partition_id, transaction_id)
        return await self._delete(shapes.MessageDeleted, where, repeatable=False)

    async def dead_letter(
        self, partition_id: str, transaction_id: str, *, group: str | None = None, error: str | None = None
    ) -> shapes.MessageBuried:
        """Dead-letters a message for a group that has not read it yet."""
        where = wire.path("messages", partition_id, transaction_id, "dlq")
        return await self._post(shapes.MessageBuried, where, wire.given(consumerGroup=group, error=error))

    async def replay(self, partition_id: str, transaction_id: str) -> shapes.MessageReplayed:
        """Pushes a dead letter again, with a new transaction id."""
        where = wire.path("messages", partition_id, transaction_id, "retry")
        # Executed twice, it would push two messages.
        return await self._post(shapes.MessageReplayed, where, {}, repeatable=False)


class AsyncOperations(Part):
    """Deferred operations."""

    async def list(
        self,
        *,
        status: Literal["pending", "processing", "completed", "failed", "cancelled"] | None = None,
        queue: str | None = None,
        older_than_seconds: int | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> shapes.Operations:
        """Lists operations, oldest first."""
        chosen = wire.query(
            status=status, queue=queue, olderThanSeconds=older_than_seconds, limit=limit, offset=offset
        )
        return await self._get(shapes.Operations, wire.path("operations"), chosen)

    async def get(self, operation_id: str) -> shapes.DeferredOperation:
        return await self._get(shapes.DeferredOperation, wire.path("operations", operation_id))

    async def stats(self) -> shapes.OperationsStats:
        return await self._get(shapes.OperationsStats, wire.path("operations", "stats"))

    async def retry(self, operation_id: str) -> shapes.OperationChanged:
        """Retries a failed operation, behind everything accepted since."""
        return await self._post(shapes.OperationChanged, wire.path("operations", operation_id, "retry"), {})

    async def cancel(self, operation_id: str) -> shapes.OperationChanged:
        """Cancels an operation that is pending or has failed."""
        return await self._delete(shapes.OperationChanged, wire.path("operations", operation_id))


class AsyncMaintenance(Part):
    """Maintenance switches of all brokers: spooling pushes to disk, and returning no messages from pops."""

    async def push(self, enabled: bool | None = None) -> shapes.Maintenance:
        """Gets the state, or sets it."""
        where = wire.path("system", "maintenance")
        if enabled is None:
            return await self._get(shapes.Maintenance, where)
        return await self._post(shapes.Maintenance, where, {"enabled": enabled})

    async def pop(self, enabled: bool | None = None) -> shapes.PopMaintenance:
        """Gets the state, or sets it."""
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
        """Examines the database for problems."""
        chosen = wire.query(fresh=True if fresh else None)
        return await self._get(shapes.DoctorReport, wire.path("system", "doctor"), chosen)

    async def refresh_statistics(self) -> shapes.StatisticsRefreshed:
        """Updates the counts now."""
        return await self._post(shapes.StatisticsRefreshed, wire.path("stats", "refresh"), {})

    async def health(self, *, deadline: float | None = None) -> shapes.Health:
        """Gets the health of a broker. An unhealthy one returns 503, which is retried until the deadline and then raised."""
        return await self._get(shapes.Health, "/health", deadline=deadline)

    async def metrics(self) -> shapes.Metrics:
        return await self._get(shapes.Metrics, "/metrics")

    async def prometheus(self) -> str:
        return await self._get(str, "/metrics/prometheus")

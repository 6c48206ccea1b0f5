"""The synchronous admin API."""

from __future__ import annotations

from .admin import AsyncAdmin, AsyncGroups, AsyncMaintenance, AsyncMessages, AsyncOperations, AsyncQueues
from .dead_letters import AsyncDeadLetters
from .loop import Facade, LoopThread, blocking
from .traces import AsyncTraces


class DeadLetters(Facade[AsyncDeadLetters]):
    """The dead letters of a queue, or of one of its partitions or groups."""

    list = blocking(AsyncDeadLetters.list)
    count = blocking(AsyncDeadLetters.count)
    redrive = blocking(AsyncDeadLetters.redrive)
    progress = blocking(AsyncDeadLetters.progress)
    finished = blocking(AsyncDeadLetters.finished)
    cancel = blocking(AsyncDeadLetters.cancel)
    redrives = blocking(AsyncDeadLetters.redrives)
    purge = blocking(AsyncDeadLetters.purge)


class Traces(Facade[AsyncTraces]):
    add = blocking(AsyncTraces.add)
    of = blocking(AsyncTraces.of)
    by_name = blocking(AsyncTraces.by_name)
    names = blocking(AsyncTraces.names)


class Queues(Facade[AsyncQueues]):
    list = blocking(AsyncQueues.list)
    get = blocking(AsyncQueues.get)
    configure = blocking(AsyncQueues.configure)
    delete = blocking(AsyncQueues.delete)
    clear = blocking(AsyncQueues.clear)
    depth = blocking(AsyncQueues.depth)
    partitions = blocking(AsyncQueues.partitions)
    namespaces = blocking(AsyncQueues.namespaces)
    tasks = blocking(AsyncQueues.tasks)


class Groups(Facade[AsyncGroups]):
    list = blocking(AsyncGroups.list)
    get = blocking(AsyncGroups.get)
    lagging = blocking(AsyncGroups.lagging)
    delete = blocking(AsyncGroups.delete)
    seek = blocking(AsyncGroups.seek)
    skip_partition = blocking(AsyncGroups.skip_partition)
    subscription = blocking(AsyncGroups.subscription)


class Messages(Facade[AsyncMessages]):
    list = blocking(AsyncMessages.list)
    get = blocking(AsyncMessages.get)
    life = blocking(AsyncMessages.life)
    delete = blocking(AsyncMessages.delete)
    dead_letter = blocking(AsyncMessages.dead_letter)
    replay = blocking(AsyncMessages.replay)


class Operations(Facade[AsyncOperations]):
    """Deferred operations."""

    list = blocking(AsyncOperations.list)
    get = blocking(AsyncOperations.get)
    stats = blocking(AsyncOperations.stats)
    retry = blocking(AsyncOperations.retry)
    cancel = blocking(AsyncOperations.cancel)


class Maintenance(Facade[AsyncMaintenance]):
    """Maintenance switches of all brokers: spooling pushes to disk, and returning no messages from pops."""

    push = blocking(AsyncMaintenance.push)
    pop = blocking(AsyncMaintenance.pop)


class Admin(Facade[AsyncAdmin]):
    def __init__(self, inner: AsyncAdmin, loop: LoopThread) -> None:
        super().__init__(inner, loop)
        self.queues = Queues(inner.queues, loop)
        self.groups = Groups(inner.groups, loop)
        self.messages = Messages(inner.messages, loop)
        self.operations = Operations(inner.operations, loop)
        self.maintenance = Maintenance(inner.maintenance, loop)

    overview = blocking(AsyncAdmin.overview)
    status = blocking(AsyncAdmin.status)
    doctor = blocking(AsyncAdmin.doctor)
    refresh_statistics = blocking(AsyncAdmin.refresh_statistics)
    health = blocking(AsyncAdmin.health)
    metrics = blocking(AsyncAdmin.metrics)
    prometheus = blocking(AsyncAdmin.prometheus)

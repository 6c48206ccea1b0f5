"""Performs scenarios with the public API. clients/scenarios/README.md describes their format."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
import uuid
from datetime import datetime
from typing import Any, Callable, Iterator

import httpx

from conftest import Api
from consume_step import ConsumeStep
from fields import Check, Fields, at_least, at_most, data_of, snake, unordered, value_of
from queen_client import NewMessage, QueenError, Undelivered


class Runner:
    def __init__(self, scenario: dict[str, Any], urls: list[str], control: str, sync: bool) -> None:
        self._fields = Fields("a scenario", scenario)
        self._name = self._fields.take("name")
        self._urls = urls[: self._fields.take("urls", 1)]
        self._control = httpx.AsyncClient(base_url=control, timeout=60)
        self._sync = sync
        self._names: dict[str, str] = {}
        self.saved: dict[str, list[Any]] = {}

    async def run(self) -> None:
        async with self._control:
            await self._ask("POST", "/reset")
            options = {snake(name): value_of(value) for name, value in self._fields.take("client", {}).items()}
            self.api = Api(self._urls, self._sync, **options)
            try:
                await self._steps(self._fields.take("steps"), "")
            finally:
                await self.api.close()
            self._fields.end()

    async def _steps(self, steps: list[dict[str, Any]], where: str) -> None:
        for number, step in enumerate(steps):
            place = f"{where}{number}"
            if "parallel" in step:
                lists = enumerate(step["parallel"])
                await asyncio.gather(*(self._steps(list_, f"{place}.{index}.") for index, list_ in lists))
                continue
            await self._step(Fields("a step", self._named(step)), place)

    async def _step(self, step: Fields, place: str) -> None:
        expect, save = dict(step.take("expect", {})), step.take("save")
        (verb,) = step._left
        given = step.take(verb)
        fields = Fields(verb, given if isinstance(given, dict) else {"it": given})
        began = time.monotonic()
        try:
            seen = await getattr(self, f"_{snake(verb)}")(fields)
        except QueenError as error:
            seen = {"error": error}
        fields.end()
        took = (time.monotonic() - began) * 1000
        seen = {**seen, "tookAtLeastMs": at_least(took), "tookAtMostMs": at_most(took)}
        what = f"step {place} ({verb}) of {self._name!r}"
        if save is not None:
            self.saved[save] = seen.get("messages", [])
        check_error(seen.pop("error", None), expect.pop("error", None), what)
        for name, wanted in expect.items():
            assert name in seen, f"{what}: the runner does not know {name} of {verb}"
            compare(f"{what}: {name}", seen[name], wanted)

    def _named(self, value: Any) -> Any:
        """`$queue` is a unique name."""
        if isinstance(value, str):
            return re.sub(r"\$([a-z]+)", lambda found: self._name_of(found[1]), value)
        if isinstance(value, list):
            return [self._named(one) for one in value]
        if isinstance(value, dict):
            return {name: self._named(one) for name, one in value.items()}
        return value

    def _name_of(self, word: str) -> str:
        return self._names.setdefault(word, f"{word}-{uuid.uuid4().hex[:8]}")

    def reader(self, fields: Fields, **options: Any) -> Any:
        """A queue, with or without partition and group, or queues by label."""
        queue, group = fields.take("queue"), fields.take("group")
        namespace, task, partition = fields.take("namespace"), fields.take("task"), fields.take("partition")
        if queue is None:
            handle = self.api.queen.discover(namespace, task, **options)
        else:
            handle = self.api.queen.queue(queue, **options)
        handle = handle if partition is None else handle.partition(partition)
        return handle if group is None else handle.group(group)

    async def _configure(self, fields: Fields) -> dict[str, Any]:
        options = {snake(name): value for name, value in fields.take("options").items()}
        await self.api.do(self.api.queen.admin.queues.configure, fields.take("queue"), **options)
        return {}

    async def _push(self, fields: Fields) -> dict[str, Any]:
        messages = [new(message) for message in fields.take("messages")]
        deadline, handle = value_of(fields.take("deadline")), self.reader(fields)
        if len(messages) == 1:
            results = [await self.api.do(handle.push, messages[0], deadline=deadline)]
        else:
            results = await self.api.do(handle.push_many, messages, deadline=deadline)
        operations = {result.operation is not None for result in results}
        return {
            "statuses": [result.status for result in results],
            "operation": Check(operations, lambda seen, wanted: seen == {wanted}),
        }

    async def _buffer(self, fields: Fields) -> dict[str, Any]:
        messages, after = fields.take("messages"), fields.take("afterClose", [])
        close, options = fields.take("close", False), fields.take("options", {})
        wanted = {snake(name): value_of(value) for name, value in options.items()}
        buffer = await self.api.do(self.reader(fields).buffer, **wanted)
        failures: list[QueenError] = []
        receipts = []
        with failing(failures):
            for message in messages:
                receipts.append(await self.api.do(buffer.push, new(message)))
        with failing(failures):
            await self.api.do(buffer.close if close else buffer.flush)
        statuses = [await self._status(receipt) for receipt in receipts]
        with failing(failures):
            for message in after:
                await self.api.do(buffer.push, new(message))
        with failing([]):
            await self.api.do(buffer.close)
        return {"statuses": statuses, "error": failures[0] if failures else None}

    async def _status(self, receipt: Any) -> str:
        try:
            result = await self.api.do(receipt.result) if self._sync else await receipt
        except QueenError:
            return "failed"
        return str(result.status)

    async def _pop(self, fields: Fields) -> dict[str, Any]:
        options = fields.take_given("batch", "partitions", "wait", "lease", "autoAck", "subscription")
        for name in ("wait", "lease"):
            options[name] = value_of(options.get(name))
        if options.get("subscription") not in (None, "all", "new"):
            options["subscription"] = datetime.fromisoformat(options["subscription"].replace("Z", "+00:00"))
        messages = await self.api.do(self.reader(fields).pop, **options)
        return {
            "messages": messages,
            **data_of([message.data for message in messages]),
            "partitions": unordered(list({message.partition for message in messages})),
            "traceparents": [message.traceparent for message in messages],
        }

    def chosen(self, fields: Fields) -> tuple[list[Any], str, str | None]:
        messages, index = self.saved[fields.take("messages")], fields.take("index")
        messages = messages if index is None else [messages[number] for number in index]
        return messages, fields.take("status", "completed"), fields.take("error")

    async def _ack(self, fields: Fields) -> dict[str, Any]:
        messages, status, error = self.chosen(fields)
        if len(messages) != 1:
            results = await self.api.do(self.api.queen.ack, messages, status, error)
            return {"success": [result.success for result in results]}
        verb = {"completed": "ack", "failed": "nack", "retry": "retry", "dlq": "dead_letter"}[status]
        await self.api.do(getattr(messages[0], verb), *([error] if status in ("failed", "dlq") else []))
        return {}

    async def _renew(self, fields: Fields) -> dict[str, Any]:
        await self.api.do(self.saved[fields.take("messages")][0].renew, fields.take("seconds"))
        return {}

    async def _transaction(self, fields: Fields) -> dict[str, Any]:
        acks, pushes, commits = fields.take("ack", []), fields.take("push", []), fields.take("commits", 1)
        transaction = self.api.queen.transaction()
        for ack in acks:
            of = Fields("ack", {"messages": ack} if isinstance(ack, str) else ack)
            messages, status, error = self.chosen(of)
            of.end()
            for message in messages:
                transaction.ack(message, status, error)
        for push in pushes:
            item = Fields("push", push)
            options = item.take_given("partition", "transactionId")
            transaction.push(item.take("queue"), item.take("payload"), **options)
            item.end()
        for _ in range(commits - 1):
            with failing([]):
                await self.api.do(transaction.commit)
        await self.api.do(transaction.commit)
        return {}

    async def _consume(self, fields: Fields) -> dict[str, Any]:
        return await ConsumeStep(self, fields).run()

    async def _dead_letters(self, fields: Fields) -> dict[str, Any]:
        page = await self.api.do(self.reader(fields).dead_letters().list)
        messages = page["messages"]
        return {
            **data_of([message["data"] for message in messages]),
            "errors": [message["errorMessage"] for message in messages],
        }

    async def _redrive(self, fields: Fields) -> dict[str, Any]:
        dry_run, letters = fields.take("dryRun", False), self.reader(fields).dead_letters()
        if dry_run:
            return {"count": await self.api.do(letters.count)}
        begun = await self.api.do(letters.redrive)
        return {"count": (await self.api.do(letters.finished, begun, pause=0.05))["done"]}

    async def _purge(self, fields: Fields) -> dict[str, Any]:
        return {"count": await self.api.do(self.reader(fields).dead_letters().purge)}

    async def _seek(self, fields: Fields) -> dict[str, Any]:
        seek = self.api.queen.admin.groups.seek
        await self.api.do(seek, fields.take("group"), fields.take("queue"), fields.take("to"))
        return {}

    async def _depth(self, fields: Fields) -> dict[str, Any]:
        depth = await self.api.do(self.api.queen.admin.queues.depth, fields.take("queue"), fields.take("group"))
        return {"depth": depth["pending"]}

    async def _close(self, fields: Fields) -> dict[str, Any]:
        await self.api.close()
        return {}

    async def _sleep(self, fields: Fields) -> dict[str, Any]:
        await asyncio.sleep(value_of(fields.take("it")))
        return {}

    async def _fault(self, fields: Fields) -> dict[str, Any]:
        names = ("path", "method", "broker", "times", "fault")
        await self._ask("POST", "/faults", json=fields.take_given(*names))
        return {}

    async def _kill(self, fields: Fields) -> dict[str, Any]:
        await self._ask("POST", "/kill", json=fields.take_given("broker"))
        return {}

    async def _start(self, fields: Fields) -> dict[str, Any]:
        await self._ask("POST", "/start", json=fields.take_given("broker"))
        return {}

    async def _record(self, fields: Fields) -> dict[str, Any]:
        record = await self._ask("GET", "/record", params=fields.take_given("path", "method", "broker", "clear"))
        ids = [request["transactionIds"] for request in record]
        gaps = [later["atMs"] - earlier["atMs"] for earlier, later in zip(record, record[1:])]
        return {
            "count": len(record),
            "countAtLeast": at_least(len(record)),
            "countAtMost": at_most(len(record)),
            "statuses": [request["status"] for request in record],
            "sameTransactionIds": bool(ids and ids[0]) and all(one == ids[0] for one in ids),
            "itemsAtMost": at_most(max((request["items"] or 0 for request in record), default=0)),
            "gapAtLeastMs": Check(gaps, lambda seen, wanted: pairwise(seen, wanted, lambda gap, least: gap >= least)),
            "gapAtMostMs": Check(gaps, lambda seen, wanted: pairwise(seen, wanted, lambda gap, most: gap <= most)),
            "brokersUsed": len({request["broker"] for request in record}),
            "authorization": [request["authorization"] for request in record],
        }

    async def _ask(self, method: str, path: str, **more: Any) -> Any:
        answer = await self._control.request(method, path, **more)
        assert answer.is_success, f"control server: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None


def pairwise(seen: list[int], wanted: list[int], holds: Callable[[int, int], bool]) -> bool:
    return len(seen) >= len(wanted) and all(map(holds, seen, wanted))


def compare(what: str, seen: Any, wanted: Any) -> None:
    raw = seen.seen if isinstance(seen, Check) else seen
    fits = seen.holds(raw, wanted) if isinstance(seen, Check) else raw == wanted
    assert fits, f"{what}: {raw!r}, expected {wanted!r}"


def check_error(error: QueenError | None, expected: dict[str, Any] | None, what: str) -> None:
    if expected is None:
        if error is not None:
            raise AssertionError(f"{what} failed: {error!r}") from error
        return
    assert error is not None, f"{what} did not fail, expected {expected}"
    results = [getattr(result, "status", None) for result in getattr(error, "results", [])]
    seen = {
        "kind": error.kind,
        "status": error.status,
        "contains": Check(str(error), lambda seen, wanted: wanted in seen),
        "attempts": error.attempts,
        "attemptsAtLeast": at_least(error.attempts),
        "statuses": results,
        "undelivered": len(error.messages) if isinstance(error, Undelivered) else 0,
    }
    for name, wanted in expected.items():
        assert name in seen, f"{what}: the runner does not know {name} of an error"
        compare(f"{what}: {name} of {error!r}", seen[name], wanted)


@contextlib.contextmanager
def failing(failures: list[QueenError]) -> Iterator[None]:
    try:
        yield
    except QueenError as error:
        failures.append(error)


def new(message: Any) -> Any:
    if not (isinstance(message, dict) and "payload" in message):
        return message
    fields = Fields("a message", message)
    made = NewMessage(fields.take("payload"), **fields.take_given("partition", "transactionId", "traceparent"))
    fields.end()
    return made

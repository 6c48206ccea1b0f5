"""Transactions: acknowledgements and pushes, all or nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import wire
from .ack import Ack, AckResult, AckStatus, ack_item, check_ackable, tell_ahead
from .brokers import Route
from .delivery import Delivered
from .errors import BadUse, DecodeError, OutcomeUnknown, QueenError, RolledBack
from .http import Answer, Http, Request
from .message import text_of
from .push import MessageOptions, Outgoing, PushResult, new_message, outgoing
from .settings import check_name

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass(frozen=True)
class Committed:
    """In the order in which they were added."""

    transaction_id: str
    pushed: list[PushResult]
    acked: list[AckResult]


class AsyncTransaction:
    """Collects operations, which `commit()` or the end of `async with` sends. After an exception nothing is sent."""

    def __init__(self, http: Http) -> None:
        self._http = http
        self._acks: list[Ack] = []
        self._pushes: list[Outgoing] = []
        self._ended = False
        #: Whether a commit with an unknown outcome may have been executed.
        self._unsure = False

    def ack(
        self, message: Delivered[Any], status: AckStatus = "completed", error: str | BaseException | None = None
    ) -> None:
        """Adds an acknowledgement. If it is refused, the whole transaction is rolled back."""
        self._check_open()
        check_ackable(message._delivery)
        if status not in ("completed", "failed", "retry", "dlq"):
            raise BadUse(f'status must be "completed", "failed", "retry" or "dlq", not {status!r}')
        self._acks.append(Ack(message._delivery, status, text_of(error)))

    def push(
        self, queue: str, payload: Any, *, partition: str | None = None, **options: Unpack[MessageOptions]
    ) -> str:
        """Adds a message. Returns its transaction id."""
        self._check_open()
        message = outgoing(check_name("queue", queue), None, new_message(payload, partition, options))
        self._pushes.append(message)
        return message.transaction_id

    async def commit(self, *, deadline: float | None = None) -> Committed:
        """Commits all operations or none. After a missing response it may be called again.

        Raises RolledBack if nothing was executed, and OutcomeUnknown if a response was lost: if it was executed its messages
        are not redelivered, otherwise they are.
        """
        self._check_open()
        if not self._acks and not self._pushes:
            raise BadUse("the transaction is empty: add an ack or a push before the commit")
        request = Request("POST", wire.path("transaction"), body=self._body(), route=self._route(), deadline=deadline)
        self._ended, before = True, self._unsure
        try:
            await tell_ahead(self._acks)
            # Also if this is cancelled.
            self._unsure = True
            answer = await self._http.call(request)
        except BaseException as error:
            # Its ids stay the same, so it may be committed again.
            self._ended = False
            if isinstance(error, QueenError):
                self._unsure = before or error._uncertain
            raise
        self._unsure = before or answer.repeated
        if not isinstance(answer.body, dict):
            raise DecodeError("the broker's response to a transaction is not an object")
        if not answer.body.get("success"):
            raise self._failure(answer)
        try:
            committed = self._read(answer.body)
        except (KeyError, TypeError) as error:
            raise DecodeError(f"the broker's response to a transaction has no {error}") from error
        for ack, result in zip(self._acks, committed.acked):
            ack.delivery.settle(ack.status, dead_letter=result.dead_letter)
        return committed

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._ended = True
        elif not self._ended:
            await self.commit()

    def _check_open(self) -> None:
        if self._ended:
            raise BadUse("this transaction has ended; start a new one")

    def _body(self) -> bytes:
        operations = []
        if self._pushes:
            items = b",".join(message.item for message in self._pushes)
            operations.append(b'{"type":"push","items":[' + items + b"]}")
        for ack in self._acks:
            fields = {"type": "ack", **ack_item(ack), "consumerGroup": ack.delivery.group}
            operations.append(wire.body(fields))
        leases = dict.fromkeys(ack.delivery.lease.id for ack in self._acks if ack.delivery.lease)
        return b'{"operations":[' + b",".join(operations) + b'],"requiredLeases":' + wire.body(list(leases)) + b"}"

    def _route(self) -> Route:
        if self._acks:
            first = self._acks[0].delivery
            return Route((first.queue, first.partition), first.broker)
        return Route((self._pushes[0].queue, self._pushes[0].partition))

    def _failure(self, answer: Answer) -> RolledBack | OutcomeUnknown:
        text = str(answer.body.get("error") or "no reason given")
        # A lost attempt may have ended the lease, which would explain the refusal.
        if self._unsure and self._acks:
            return OutcomeUnknown(
                f"a response was lost, and the transaction may have been committed: {text}",
                status=answer.status,
                attempts=answer.attempts,
            )
        return RolledBack(f"the transaction was rolled back: {text}", status=answer.status, attempts=answer.attempts)

    def _read(self, body: dict[str, Any]) -> Committed:
        results = body["results"]
        pushed = [_read_push(result) for result in results if result["type"] == "push"]
        acked = [
            AckResult(
                transaction_id=result["transactionId"],
                success=result["success"],
                error=result.get("error"),
                queue=ack.delivery.queue,
                partition=ack.delivery.partition,
                lease_released=ack.status in ("failed", "retry") and not result.get("dlq"),
                dead_letter=bool(result.get("dlq")),
                noop=bool(result.get("noop")),
                operation=None,
            )
            for ack, result in zip(self._acks, (one for one in results if one["type"] == "ack"))
        ]
        return Committed(body["transactionId"], pushed, acked)


def _read_push(result: dict[str, Any]) -> PushResult:
    return PushResult(
        id=result["messageId"],
        transaction_id=result["transactionId"],
        queue=result["queueName"],
        status="duplicate" if result.get("duplicate") else "queued",
        partition_id=result["partitionId"],
        trace_id=None,
        error=None,
        operation=None,
    )

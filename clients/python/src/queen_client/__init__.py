"""Queen, a partitioned message queue on PostgreSQL: its client for Python.

`AsyncQueen` is for asyncio, `Queen` for all other programs. Both have the same verbs:

    with Queen("http://localhost:6632") as queen:
        orders = queen.queue("orders")
        orders.partition("customer-7").push({"total": 10})
        for message in orders.group("billing").pop(batch=10, wait=5.0):
            message.ack()
"""

from . import shapes
from ._version import VERSION as __version__
from .ack import AckResult, AckStatus
from .batch import Summary
from .buffer import AsyncBuffer, AsyncReceipt, BufferOptions
from .client import AsyncQueen
from .consume import AsyncConsumer, ConsumeOptions
from .dead_letters import AsyncDeadLetters
from .delivery import Delivered
from .errors import (
    BadRequest,
    BadUse,
    BufferFull,
    Closed,
    Conflict,
    DecodeError,
    Forbidden,
    NetworkError,
    NotFound,
    OperationFailed,
    OutcomeUnknown,
    QueenError,
    RateLimited,
    Refused,
    RolledBack,
    ServerError,
    TimedOut,
    Unauthorized,
    Unavailable,
    Undelivered,
)
from .message import AsyncMessage
from .operations import Operation
from .pop import PopOptions, Subscription
from .push import MessageOptions, NewMessage, PushResult, PushStatus
from .queue import AsyncQueue, AsyncReader
from .queue_options import QueueOptions
from .settings import QueenOptions
from .sync import Buffer, Consumer, Message, Queen, Queue, Reader, Receipt, Transaction
from .sync_admin import DeadLetters
from .transaction import AsyncTransaction, Committed

__all__ = [
    "AckResult",
    "AckStatus",
    "AsyncBuffer",
    "AsyncConsumer",
    "AsyncDeadLetters",
    "AsyncMessage",
    "AsyncQueen",
    "AsyncQueue",
    "AsyncReader",
    "AsyncReceipt",
    "AsyncTransaction",
    "BadRequest",
    "BadUse",
    "Buffer",
    "BufferFull",
    "BufferOptions",
    "Closed",
    "Committed",
    "Conflict",
    "ConsumeOptions",
    "Consumer",
    "DeadLetters",
    "DecodeError",
    "Delivered",
    "Forbidden",
    "Message",
    "MessageOptions",
    "NetworkError",
    "NewMessage",
    "NotFound",
    "Operation",
    "OperationFailed",
    "OutcomeUnknown",
    "PopOptions",
    "PushResult",
    "PushStatus",
    "QueenError",
    "QueenOptions",
    "Queen",
    "Queue",
    "QueueOptions",
    "RateLimited",
    "Reader",
    "Receipt",
    "Refused",
    "RolledBack",
    "ServerError",
    "Subscription",
    "Summary",
    "TimedOut",
    "Transaction",
    "Unauthorized",
    "Unavailable",
    "Undelivered",
    "__version__",
    "shapes",
]

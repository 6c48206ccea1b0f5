"""Options of a queue. Written by protocol/tests/options.rs from the table in protocol/src/options.rs."""

from __future__ import annotations

from typing import TypedDict


class QueueOptions(TypedDict, total=False):
    """Options of a queue. None returns one to its default."""

    #: How long a lease lasts if the pop does not set a time; 0 means 60 seconds. Default: 300 s.
    lease_time: int | None
    #: How many times a failed message is delivered again before it becomes a dead letter. Default: 3.
    retry_limit: int | None
    #: Deliver a message only when it is this old. Default: 0 s.
    delayed_processing: int | None
    #: Hold a partition back until it has a full batch or its oldest waiting message is this old. A pop
    #: with `batch=1` always waits for the age. Default: 0 s.
    window_buffer: int | None
    #: The order in which a pop by label tries queues, highest first. It can be negative. Default: 0.
    priority: int | None
    #: Keep dead letters. They are dropped only if `dlqAfterMaxRetries` is false as well. Default: true.
    dead_letter_queue: bool | None
    #: Keep dead letters. They are dropped only if `deadLetterQueue` is false as well. Default: true.
    dlq_after_max_retries: bool | None
    #: Enable `retentionSeconds` and `completedRetentionSeconds`. While this is false they have no effect,
    #: and messages are kept forever unless `maxWaitTimeSeconds` removes them. Default: false.
    retention_enabled: bool | None
    #: Remove messages older than this, read or not; 0 keeps them. Default: 0 s.
    retention_seconds: int | None
    #: Remove messages older than this once every group that reads the partition has passed them; 0 keeps
    #: them. Default: 0 s.
    completed_retention_seconds: int | None
    #: Remove messages that at least one group has not read by this age, also without `retentionEnabled`; 0
    #: keeps them. Default: 0 s.
    max_wait_time_seconds: int | None
    #: How long a `transactionId` is remembered; 0 turns deduplication off. Default: 3600 s.
    dedup_window_seconds: int | None
    #: Store payloads pushed from now on encrypted, if the broker has a key. Default: false.
    encryption_enabled: bool | None
    #: No effect: a failed message is available again at once. Default: 1000 ms.
    retry_delay: int | None
    #: No effect: the retention options remove old messages. Default: 3600 s.
    ttl: int | None
    #: No effect: queues have no size limit. Default: 0.
    max_size: int | None
    #: No effect: a pop waits as long as it asks to. Numbers out of range become 0 or 60000. Default: 0 ms.
    min_pop_wait_time: int | None
    #: A label, for a pop by label.
    namespace: str | None
    #: A label, for a pop by label.
    task: str | None

-- Retries are counted for messages, no longer for all that a group has still to read: the messages from `failed_from` up to
-- `failed_to` (excluded) have failed `attempts` times, each time with the first of them. The count means nothing once the
-- cursor has passed that one.
-- `lease_start` is the first offset of a lease, which its cursor leaves behind when it is acknowledged in parts. It means
-- nothing without `lease_end`.
alter table queen.consumers
    add column lease_start bigint,
    add column failed_from bigint,
    add column failed_to bigint;

-- What queen.settle works out about one (partition, group) while it holds the row. `had_*`: the count as it was found.
create type queen.settle_row as (
    ordinal int, partition_id uuid, consumer_group text, generation bigint, status int, started bigint, cursor bigint,
    head bigint, released boolean, attempts int, failed_from bigint, failed_to bigint, had_attempts int,
    had_failed_from bigint, had_failed_to bigint, kept boolean, queue_id uuid, number bigint, ack_id uuid,
    queue_name text, partition_name text
);

-- queen.settle_unlocked takes its place. It was in no release.
drop function if exists queen.ack_unlocked(uuid[], uuid[], text[], uuid[], bigint[], boolean[], bigint[], boolean[], boolean[],
                                           bigint[], boolean[], boolean[], int[], boolean[], bigint[], text[], boolean, int);

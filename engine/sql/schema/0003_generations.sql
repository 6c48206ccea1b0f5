-- A transaction held open anywhere in the database keeps every old version of a row, and a row that changes hundreds
-- of times a second is then buried under them: an index on its key alone leads through all of them. So what push, lease
-- and ack change lives in rows whose key ends in a generation, which goes up with every 16th version. Whoever looks for
-- the highest generation first finds the live row at once (procedures/newest.sql); in between, updates stay HOT.
-- There is one row per partition, and per partition and group: new ones are only added under a lock (open, readers).

-- `message_bytes_max` bounds what one pop may read. `queue_id` never changes and saves a look at the partition.
create table queen.heads (
    partition_id      uuid not null references queen.partitions (id) on delete cascade,
    queue_id          uuid not null,
    head              bigint not null default 0,
    tail              bigint not null default 0,
    last_push_at      timestamptz not null default '-infinity',
    generation        int not null default 0,
    version           int not null default 0,
    message_bytes_max int not null default 0,
    deferred_pending  int not null default 0,
    primary key (partition_id, generation),
    check (tail <= head)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);
insert into queen.heads as h (partition_id, queue_id, head, tail, last_push_at, message_bytes_max, deferred_pending)
select p.id, p.queue_id, p.head, p.tail, p.last_push_at, p.message_bytes_max, p.deferred_pending
from queen.partitions p;

drop view if exists queen.messages, queen.lag, queen.leases;
alter table queen.partitions
    drop column head, drop column tail, drop column last_push_at, drop column deferred_pending,
    drop column message_bytes_max, reset (fillfactor);

alter table queen.consumers
    add column generation int not null default 0,
    add column version int not null default 0,
    add column last_ack_to bigint,
    drop constraint consumers_pkey,
    add primary key (partition_id, consumer_group, generation);

alter type queen.ack_row add attribute generation int;

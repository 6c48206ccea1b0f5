-- A transaction held open anywhere in the database keeps every old version of a row, and a row that changes hundreds
-- of times a second is then buried under them: an index on its key alone leads through all of them. So what push, lease
-- and ack change lives in rows whose key ends in a generation, which goes up with every 16th version. Whoever looks for
-- the highest generation first finds the live row at once (procedures/newest.sql); in between, updates stay HOT.
-- There is one row per partition, and per partition and group: new ones are only added under a lock (open, readers).
-- Neither table has check constraints: their expressions are read and compiled anew for every statement.

-- `message_bytes_max` bounds what one pop may read. `queue_id` never changes and saves a look at the partition.
create table queen.heads (
    partition_id      uuid not null,
    queue_id          uuid not null,
    head              bigint not null default 0,
    tail              bigint not null default 0,
    last_push_at      timestamptz not null default '-infinity',
    generation        bigint not null default 0,
    version           bigint not null default 0,
    message_bytes_max int not null default 0,
    deferred_pending  int not null default 0,
    primary key (partition_id, generation)
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
    add column generation bigint not null default 0,
    add column version bigint not null default 0,
    add column last_ack_to bigint,
    drop constraint consumers_pkey,
    drop constraint consumers_consumer_group_check,
    drop constraint consumers_partition_id_fkey,
    add primary key (partition_id, consumer_group, generation);

-- What foreign keys would do, without a look at the partition for every row that is added: who adds one has locked it.
create function queen.forget_partition() returns trigger language plpgsql as $$
begin
    delete from queen.heads h where h.partition_id = old.id;
    delete from queen.consumers c where c.partition_id = old.id;
    return null;
end $$;
create trigger forget_partition after delete on queen.partitions
    for each row execute function queen.forget_partition();

alter type queen.ack_row add attribute generation bigint;

-- Completions have a procedure of their own.
drop function if exists queen.ack(uuid[], uuid[], text[], uuid[], bigint[], boolean[], bigint[], boolean[], boolean[],
                                  bigint[], boolean[], boolean[], int[], boolean[], bigint[], text[], boolean);

-- As procedures/extents.sql says of new ones.
do $$
declare
    v_number int;
begin
    for v_number in select e.number from queen.extents e loop
        execute format('alter table queen.segments_%s set (toast_tuple_target = 4064)', v_number);
    end loop;
end $$;

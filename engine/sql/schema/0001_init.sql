-- The whole schema of a new database. Frozen once released: later changes are new files beside this one.
--
-- queues ─┬─ partitions ─┬─ consumers      one cursor and at most one lease per (partition, group)
--         │              └─ dead_letters   snapshots that outlive retention
--         ├─ groups                        where a group starts, by queue name: a group may come before its queue
--         └─ consumer_watermarks           for published tools; decides nothing
-- extents ── segments                      the log: append-only, leaves by whole extents, no foreign keys

-- All lease and retention arithmetic asks this function for the time, so that a test can replace it.
create function queen.now() returns timestamptz language sql volatile parallel safe
    as $$ select clock_timestamp() $$;

create table queen.queues (
    id                          uuid primary key default gen_random_uuid(),
    name                        text not null unique check (char_length(name) <= 255),
    namespace                   text not null default '',
    task                        text not null default '',
    lease_time                  int not null default 300,
    retry_limit                 int not null default 3,
    retry_delay                 int not null default 1000,
    ttl                         int not null default 3600,
    max_size                    bigint not null default 0,
    priority                    int not null default 0,
    delayed_processing          int not null default 0,
    window_buffer               int not null default 0,
    dead_letter_queue           boolean not null default true,
    dlq_after_max_retries       boolean not null default true,
    retention_enabled           boolean not null default false,
    retention_seconds           int not null default 0,
    completed_retention_seconds int not null default 0,
    max_wait_time_seconds       int not null default 0,
    encryption_enabled          boolean not null default false,
    dedup_window_seconds        int not null default 3600,
    min_pop_wait_time           int not null default 0,
    created_at                  timestamptz not null default now()
);

-- One hot row per partition. No index on a column that push changes, so that its updates stay HOT.
-- `number` is the partition's share of a message id; `message_bytes_max` bounds what one pop may read.
create table queen.partitions (
    id                uuid primary key,
    queue_id          uuid not null references queen.queues (id) on delete cascade,
    number            bigint generated always as identity unique,
    head              bigint not null default 0,
    tail              bigint not null default 0,
    last_push_at      timestamptz not null default '-infinity',
    deferred_pending  int not null default 0,
    message_bytes_max int not null default 0,
    created_at        timestamptz not null default now(),
    name              text not null check (char_length(name) <= 255),
    unique (queue_id, name),
    check (tail <= head)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

create table queen.consumers (
    partition_id   uuid not null references queen.partitions (id) on delete cascade,
    cursor         bigint not null,
    lease_end      bigint,
    lease_until    timestamptz,
    lease_id       uuid,
    last_ack       uuid,
    last_ack_from  bigint,
    served_at      timestamptz,
    attempts       int not null default 0,
    consumer_group text collate "C" not null check (char_length(consumer_group) <= 255),
    primary key (partition_id, consumer_group)
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200,
        autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off);

-- `since` is null for a group that starts at the oldest message. `partition_name` is '' for the whole queue.
create table queen.groups (
    queue_name     text not null,
    consumer_group text not null,
    partition_name text not null default '',
    since          timestamptz,
    created_at     timestamptz not null default now(),
    primary key (queue_name, consumer_group, partition_name)
);

create table queen.consumer_watermarks (
    queue_name         text not null,
    consumer_group     text not null,
    last_empty_scan_at timestamptz not null default now(),
    updated_at         timestamptz not null default now(),
    primary key (queue_name, consumer_group)
);

create table queen.dead_letters (
    id             uuid primary key default gen_random_uuid(),
    queue_id       uuid not null references queen.queues (id) on delete cascade,
    partition_id   uuid not null references queen.partitions (id) on delete cascade,
    consumer_group text not null,
    message_id     uuid not null,
    message_offset bigint not null,
    attempts       int not null,
    created_at     timestamptz not null,
    failed_at      timestamptz not null,
    error          text,
    frame          text not null
);
create index dead_letters_newest on queen.dead_letters (queue_id, failed_at desc);
create index dead_letters_by_partition on queen.dead_letters (partition_id);

-- The ring of extents. The highest number is written to; see procedures/extents.sql.
create table queen.extents (
    number     int primary key,
    created_at timestamptz not null default now()
);

-- `xid` is the writer's transaction: brokers tail the log by it (procedures/discover.sql), because commit order
-- is the one order that neither a clock nor a sequence gives.
create table queen.segments (
    partition_id uuid not null,
    base_offset  bigint not null,
    created_at   timestamptz not null,
    xid          xid8 not null default pg_current_xact_id(),
    extent       int not null,
    count        int not null,
    transactions bytea not null,
    frames       text compression lz4 not null
) partition by range (extent);
alter table queen.segments alter column transactions set storage external;
create index segments_range on queen.segments (partition_id, base_offset);
create index segments_xid on queen.segments (xid);
create index segments_age on queen.segments using brin (created_at) with (pages_per_range = 16);

-- The options of every extent, explained in procedures/extents.sql.
create table queen.segments_1 partition of queen.segments for values from (1) to (2)
    with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000,
          autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off,
          toast.autovacuum_vacuum_insert_threshold = -1, toast.vacuum_truncate = off);
insert into queen.extents (number) values (1);

-- What a foreign key cannot carry, because these rows may exist before their queue does.
create function queen.forget_queue() returns trigger language plpgsql as $$
begin
    delete from queen.groups g where g.queue_name = old.name;
    delete from queen.consumer_watermarks w where w.queue_name = old.name;
    return null;
end $$;
create trigger forget_queue after delete on queen.queues for each row execute function queen.forget_queue();

-- What queen.ack works out about one (partition, group) while it holds the row.
create type queen.ack_row as (
    ordinal int, partition_id uuid, consumer_group text, status int, cursor bigint, head bigint, released boolean,
    attempts int, kept boolean, queue_id uuid, number bigint, charged int, ack_id uuid, started bigint,
    queue_name text, partition_name text
);

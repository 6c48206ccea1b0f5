-- How much a queue holds and how far its groups have come, known without a look at its partitions. Brokers add what they
-- did every second (procedures/statistics.sql: queen.count); what cannot be counted is measured.
--
-- A queue's unread messages for a group are `appended - consumed`: the sum of all heads less the sum of all cursors.

-- `removed` is the sum of all tails. `suspect`: these may be wrong until they are measured again, and `doubts`
-- is how often that was said. `replaced_at`: when they were last taken from a measurement. `partial`: a group reads only
-- some partitions, so that what is appended may be none of its business.
create table queen.queue_counts (
    queue_id     uuid primary key references queen.queues (id) on delete cascade,
    appended     bigint not null default 0,
    removed      bigint not null default 0,
    partitions   bigint not null default 0,
    dead_letters bigint not null default 0,
    changed_at   timestamptz not null default '-infinity',
    measured_at  timestamptz not null default '-infinity',
    measured_ms  real not null default 0,
    replaced_at  timestamptz not null default '-infinity',
    partial      boolean not null default false,
    suspect      boolean not null default true,
    doubts       bigint not null default 0
) with (fillfactor = 50, vacuum_truncate = off);

-- The columns after `consumed` are as of the last measurement. `members`: partitions it has a cursor in; `oldest_at`: when
-- its oldest unread message was pushed.
create table queen.group_counts (
    queue_id           uuid not null references queen.queue_counts (queue_id) on delete cascade,
    consumer_group     text collate "C" not null,
    consumed           bigint not null default 0,
    members            bigint not null default 0,
    pending_partitions bigint not null default 0,
    leased_partitions  bigint not null default 0,
    leased             bigint not null default 0,
    oldest_at          timestamptz,
    served_at          timestamptz,
    primary key (queue_id, consumer_group)
) with (fillfactor = 50, vacuum_truncate = off);

-- Of a large queue, the partitions worth a look: where groups are furthest behind, by messages and by time.
create table queen.notable_partitions (
    queue_id       uuid not null,
    consumer_group text collate "C" not null,
    partition_id   uuid not null,
    pending        bigint not null,
    oldest_at      timestamptz not null,
    primary key (queue_id, consumer_group, partition_id),
    foreign key (queue_id, consumer_group) references queen.group_counts on delete cascade
);

insert into queen.queue_counts (queue_id) select q.id from queen.queues q;

-- It can be asked for one partition now.
drop function if exists queen.seek(text, text, boolean, timestamptz);

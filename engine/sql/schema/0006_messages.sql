-- Looking at single messages, deleting them, replaying dead letters, and traces.

-- Messages that are not delivered although no cursor has passed them: to nobody (no group: deleted by hand), or not to
-- one group (dead-lettered by hand). The log itself is never changed. `heads.skips_end` is the offset behind the last of
-- them, so that a claim beyond it, which is nearly every claim, knows without a look that there are none.
create table queen.skips (
    partition_id   uuid not null references queen.partitions (id) on delete cascade,
    message_offset bigint not null,
    consumer_group text collate "C",
    unique nulls not distinct (partition_id, message_offset, consumer_group)
);
alter table queen.heads add column skips_end bigint not null default 0;

-- A dead letter is asked for by the transaction of its message, also when the message itself has left the log; and all
-- of a queue are walked in the order of their partitions and offsets when they are replayed.
alter table queen.dead_letters add column transaction_id text generated always as
    ((left(frame, position(',"payload":' in frame) - 1) || '}')::jsonb ->> 'transactionId') stored;
create index dead_letters_transaction on queen.dead_letters (partition_id, transaction_id);
create index dead_letters_place on queen.dead_letters (queue_id, partition_id, message_offset, consumer_group);
drop index queen.dead_letters_by_partition;

-- Replays of many dead letters. `next_partition` and `next_offset` are where the next step begins; a step deletes the
-- letters, appends their messages and moves this in one transaction. `worker` is the broker at work, until `held_until`.
create table queen.redrives (
    id             uuid primary key,
    queue_id       uuid not null references queen.queues (id) on delete cascade,
    queue_name     text not null,
    target_queue   text,
    partition_name text,
    consumer_group text,
    failed_from    timestamptz,
    failed_to      timestamptz not null,
    error_filter   text,
    per_second     int not null,
    status         text not null default 'running',
    total          bigint not null,
    done           bigint not null default 0,
    failed         bigint not null default 0,
    created_at     timestamptz not null,
    started_at     timestamptz,
    finished_at    timestamptz,
    error          text,
    next_partition uuid not null default '00000000-0000-0000-0000-000000000000',
    next_offset    bigint not null default 0,
    worker         uuid,
    held_until     timestamptz
);
create index redrives_running on queen.redrives (created_at) where status = 'running';
create index redrives_newest on queen.redrives (created_at desc, id desc);
create index redrives_by_queue on queen.redrives (queue_id);

-- What consumers tell about the messages they work on. `data` is the sender's JSON.
create table queen.traces (
    id             uuid primary key,
    partition_id   uuid not null references queen.partitions (id) on delete cascade,
    message_offset bigint,
    created_at     timestamptz not null,
    transaction_id text not null,
    event_type     text not null,
    consumer_group text,
    worker_id      text,
    trace_names    text[] not null,
    data           text compression lz4 not null
);
create index traces_by_message on queen.traces (partition_id, transaction_id, created_at, id);
create index traces_age on queen.traces (created_at);

create table queen.trace_names (
    name       text collate "C" not null,
    created_at timestamptz not null,
    trace_id   uuid not null references queen.traces (id) on delete cascade,
    primary key (name, created_at, trace_id)
);
create index trace_names_by_trace on queen.trace_names (trace_id);

-- They may be asked for by a part of the error.
drop function if exists queen.dead_letters(text, text, text, timestamptz, timestamptz, bigint, bigint);
drop function if exists queen.dead_letters_count(text, text, text, timestamptz, timestamptz);

-- What happened in every minute, by queue and broker, and how the brokers were. Written by procedures/history.sql, read by
-- procedures/analytics.sql. Minutes are those of the database's clock.

-- Brokers that are running, or did not say goodbye: `seen_at` says when each was last heard of. `recorded` is the number of
-- the last batch of minutes it has written, so that none is added twice. `lost`: it was noticed that it is gone.
create table queen.brokers (
    id         uuid primary key,
    hostname   text not null,
    port       int not null,
    worker_id  text not null,
    version    text not null,
    started_at timestamptz not null,
    seen_at    timestamptz not null,
    recorded   bigint not null default 0,
    lost       boolean not null default false
);

-- Days later the minutes of an hour become one row, at the start of the hour. No foreign key: a line of a minute is not
-- worth a lock on its queue.
create table queen.queue_minutes (
    minute             timestamptz not null,
    broker             uuid not null,
    push_requests      bigint not null default 0,
    push_messages      bigint not null default 0,
    pop_requests       bigint not null default 0,
    pop_messages       bigint not null default 0,
    pop_empty          bigint not null default 0,
    ack_requests       bigint not null default 0,
    ack_success        bigint not null default 0,
    ack_failed         bigint not null default 0,
    transactions       bigint not null default 0,
    dead_letters       bigint not null default 0,
    lag_us             bigint not null default 0,
    lag_count          bigint not null default 0,
    lag_us_max         bigint not null default 0,
    parked             bigint not null default 0,
    partitions_created bigint not null default 0,
    partitions_deleted bigint not null default 0,
    queue_name         text not null,
    primary key (minute, queue_name, broker)
);
create index queue_minutes_by_queue on queen.queue_minutes (queue_name, minute);

-- The counts are those of all its queues, so that what is asked about all of them reads one row a minute, and stays when a
-- queue goes. `free_slots`, `waiting` and `loop_lag_us` are sums over the samples. `metrics` holds avg, min, max and last by
-- name.
create table queen.broker_minutes (
    minute             timestamptz not null,
    broker             uuid not null,
    push_requests      bigint not null default 0,
    push_messages      bigint not null default 0,
    pop_requests       bigint not null default 0,
    pop_messages       bigint not null default 0,
    pop_empty          bigint not null default 0,
    ack_requests       bigint not null default 0,
    ack_success        bigint not null default 0,
    ack_failed         bigint not null default 0,
    transactions       bigint not null default 0,
    dead_letters       bigint not null default 0,
    lag_us             bigint not null default 0,
    lag_count          bigint not null default 0,
    lag_us_max         bigint not null default 0,
    partitions_created bigint not null default 0,
    samples            bigint not null default 0,
    loop_lag_us        bigint not null default 0,
    loop_lag_us_max    bigint not null default 0,
    free_slots         bigint not null default 0,
    free_slots_min     bigint not null default 0,
    waiting            bigint not null default 0,
    waiting_max        bigint not null default 0,
    db_connections     bigint not null default 0,
    parked             bigint not null default 0,
    flights            bigint not null default 0,
    db_errors          bigint not null default 0,
    expired_age        bigint not null default 0,
    expired_completed  bigint not null default 0,
    expired_wait       bigint not null default 0,
    expiries           bigint not null default 0,
    port               int not null,
    hostname           text not null,
    worker_id          text not null,
    metrics            jsonb not null default '{}',
    primary key (minute, broker)
);

-- What all brokers have done since the first of them started.
create table queen.totals (
    name  text primary key,
    value bigint not null
);

-- The past of a queue goes with it.
create function queen.forget_minutes() returns trigger language plpgsql as $$
begin
    delete from queen.queue_minutes m where m.queue_name = old.name;
    return null;
end $$;
create trigger forget_minutes after delete on queen.queues for each row execute function queen.forget_minutes();

-- Partitions are deleted by many; counted here none is missed. Those of a deleted queue find no queue any more.
create function queen.count_deleted_partitions() returns trigger language plpgsql as $$
begin
    insert into queen.queue_minutes as m (minute, broker, queue_name, partitions_deleted)
    select date_trunc('minute', queen.now()), '00000000-0000-0000-0000-000000000000', q.name, count(*)
    from deleted d join queen.queues q on q.id = d.queue_id
    group by q.name
    order by q.name
    on conflict (minute, queue_name, broker) do update
    set partitions_deleted = m.partitions_deleted + excluded.partitions_deleted;
    return null;
end $$;
create trigger count_deleted_partitions after delete on queen.partitions referencing old table as deleted
    for each statement execute function queen.count_deleted_partitions();

-- What happened to messages whose sender traces them. Written in the background by the brokers, in batches and without
-- a promise; read by people. `number` is the order of arrival, and old rows leave by it. A row names its message by all
-- its names, because the log may have forgotten it. `other_…` is the other message of a relation.
create table queen.life_events (
    number               bigint generated always as identity primary key,
    partition_id         uuid not null references queen.partitions (id) on delete cascade,
    message_offset       bigint not null,
    message_id           uuid not null,
    at                   timestamptz not null,
    attempt              int,
    operation            uuid,
    other_partition_id   uuid,
    other_message_id     uuid,
    event                text not null,
    transaction_id       text not null,
    consumer_group       text,
    error                text,
    other_queue          text,
    other_partition      text,
    other_transaction_id text
);
create index life_events_by_message on queen.life_events (partition_id, transaction_id, number);

-- The inbox: what applications push from SQL, inside their own transactions (procedures/inbox.sql). Unordered, because
-- nobody knows in advance who commits first; a broker moves what is committed into the log. There is no key to a queue
-- or partition and no lock on one: a transaction may stay open for an hour and hold up nobody.
--
-- `xid` is the pusher's transaction, `number` the order of its calls. `is_first` marks the row whose trigger takes the
-- transaction's place in the order of commits. `error` is set on a row that the log refused; it stays here.
create sequence queen.inbox_numbers;
create table queen.inbox (
    xid            xid8 not null default pg_current_xact_id(),
    number         bigint not null,
    message_id     uuid not null,
    trace_id       uuid,
    created_at     timestamptz not null default now(),
    is_first       boolean not null,
    queue          text not null,
    partition      text not null,
    transaction_id text,
    error          text,
    payload        text compression lz4 not null,
    primary key (xid, number)
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000,
        autovacuum_vacuum_insert_scale_factor = 0.2, vacuum_truncate = off);

-- The order of commits: `number` is drawn during the commit, so a transaction whose commit was answered before another's
-- was asked for has the lower one. Of two that commit at the same time either may be first.
create table queen.inbox_commits (
    xid    xid8 primary key,
    number bigint not null
) with (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000, vacuum_truncate = off);

-- queen.number_commit: takes a place in the order of commits, and wakes a broker that is resting.
-- The lock is the whole protocol. A broker that rests holds it alone; then this cannot have its share, and notifies.
-- Otherwise it keeps its share until its commit is visible, so that nobody can begin to rest in between: a broker that
-- got the lock sees all that was committed by those who did not notify. NOTIFY is for that one case, because it makes
-- commits wait for each other.
-- As its owner, because who may push may do nothing else.
create function queen.number_commit() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into queen.inbox_commits as c (xid, number) values (new.xid, nextval('queen.inbox_numbers'))
    on conflict (xid) do nothing;
    if not pg_try_advisory_xact_lock_shared(hashtextextended('queen.inbox.rest', 0)) then
        perform pg_notify('queen_inbox', '');
    end if;
    return null;
end $$;
create constraint trigger number_commit after insert on queen.inbox
    deferrable initially deferred
    for each row when (new.is_first) execute function queen.number_commit();

-- What was pushed to a queue goes with it. After the cascade, whose locks come first for the broker that moves rows too.
create function queen.forget_inbox() returns trigger language plpgsql as $$
begin
    delete from queen.inbox i where i.queue = old.name;
    return null;
end $$;
create trigger forget_inbox after delete on queen.queues for each row execute function queen.forget_inbox();

-- The name is for the view that people read.
alter table queen.dead_letters rename to dead_letter_rows;

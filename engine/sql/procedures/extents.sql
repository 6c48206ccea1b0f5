-- The log is a ring of tables, called extents: segments are added to the newest one and removed by dropping an old one. A
-- dedicated lock keeps two brokers from doing either at once; the second one finds nothing to do.

-- queen.rotate_extent: starts a new extent when the current one is large or old enough, and not empty.
-- in:     p_bytes bigint, p_age interval: minimum size or age; a log that has grown beyond 32 extents of that size is divided
--         into about 32 larger ones instead, because every read searches all of them
-- out:    int: the new extent's number, or null
-- locks:  a share-update lock on the log, which affects neither readers nor writers
-- raises: lock_not_available during a manual ANALYZE of the log, if the session has a lock_timeout
-- The table is attached rather than created as a partition, which would block all sessions. The copy has the columns, defaults,
-- storage, compression and indexes of the log, so attaching it finds matching indexes. Vacuum is set to run often, because it
-- then reads new pages only and summarizes them for the index on age; it need not vacuum the TOAST table, and must never
-- take the exclusive lock for truncating empty pages. Up to half a page of a segment stays in its row: out of line, it costs
-- an insertion and an index entry per 2 kB.
create or replace function queen.rotate_extent(p_bytes bigint, p_age interval)
returns int language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_last record;
    v_next int;
begin
    if not pg_try_advisory_xact_lock(hashtext('queen.extents')) then
        return null;
    end if;
    select max(e.number) as number, max(e.created_at) as created_at, v_now - min(e.created_at) as age,
           sum(pg_table_size(to_regclass('queen.segments_' || e.number))) as bytes
    into v_last from queen.extents e;
    if not ((pg_table_size(to_regclass('queen.segments_' || v_last.number)) > greatest(p_bytes, v_last.bytes / 32)
             or v_now - v_last.created_at > greatest(p_age, v_last.age / 32))
            and exists (select 1 from queen.segments s where s.extent = v_last.number)) then
        return null;
    end if;
    v_next := v_last.number + 1;
    execute format('create table queen.segments_%s (like queen.segments including all)
                    with (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 1000,
                          autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off, toast_tuple_target = 4064,
                          toast.autovacuum_vacuum_insert_threshold = -1, toast.vacuum_truncate = off)', v_next);
    execute format('alter table queen.segments attach partition queen.segments_%s for values from (%s) to (%s)',
                   v_next, v_next, v_next + 1);
    insert into queen.extents as e (number, created_at) values (v_next, v_now);
    return v_next;
end $$;

-- queen.drop_extents: drops one extent with nothing, or hardly anything, that is still stored.
-- in:     p_live_share real: if at most this share of its bytes is live, live segments are copied to the current extent
-- out:    number int, copied bigint (segments): the dropped extent; no row = nothing to do, or not now
-- locks:  a share lock on the extent while it copies; then briefly the whole log for the drop, for which it waits at most five
--         times 50 ms, and not at all if another session has been using the log for over a second
-- raises: never
-- One extent per call, oldest first, because the lock on the log lasts until the commit. The live share is estimated from about
-- 64 pages of each extent; only the dropped one is read completely. Live data cannot grow meanwhile: tails only move up, and
-- the share lock waits for writers that chose the extent before the last rotation and refuses later ones, which a minute's
-- grace makes rare. Such a push fails with check_violation and is retried. A statement whose snapshot is older than the drop,
-- but whose lock on the log is younger, sees neither the old rows nor their copies. Readers that must not have such a gap use
-- a function that is not `stable`, or lock the log first.
create or replace function queen.drop_extents(p_live_share real default 0.1)
returns table (number int, copied bigint)
language plpgsql
set lock_timeout = '50ms' set plan_cache_mode = force_custom_plan set enable_seqscan = on set jit = off as $$
declare
    v_extent int;
    v_pages bigint;
    v_share real;
begin
    if not pg_try_advisory_xact_lock(hashtext('queen.extents')) then
        return;
    end if;
    for v_extent in
        select e.number from queen.extents e
        where exists (select 1 from queen.extents n
                      where n.number > e.number and n.created_at < queen.now() - interval '1 minute')
        order by e.number
    loop
        v_pages := greatest(1, pg_relation_size(to_regclass('queen.segments_' || v_extent)) / 8192);
        select sum(pg_column_size(s.frames)) filter (where h.partition_id is not null)::real / sum(pg_column_size(s.frames))
        into v_share
        from queen.segments s tablesample system (least(100, 100 * 64.0 / v_pages))
        left join lateral queen.head_of(s.partition_id) h on h.tail < s.base_offset + s.count
        where s.extent = v_extent;
        continue when v_share > p_live_share;

        exit when exists (
            select 1 from pg_locks l join pg_stat_activity a on a.pid = l.pid
            where l.database = (select d.oid from pg_database d where d.datname = current_database())
              and l.relation = 'queen.segments'::regclass and l.pid <> pg_backend_pid()
              and a.xact_start < clock_timestamp() - interval '1 second');
        begin
            execute format('lock table queen.segments_%s in share mode', v_extent);
            insert into queen.segments as t (partition_id, base_offset, created_at, extent, count, transactions, frames)
            select s.partition_id, s.base_offset, s.created_at, (select max(e.number) from queen.extents e), s.count,
                   s.transactions, s.frames
            from queen.segments s
            cross join lateral queen.head_of(s.partition_id) h
            where s.extent = v_extent and h.tail < s.base_offset + s.count;
            get diagnostics copied = row_count;
            -- Usually succeeds at once. Retried a few times, because a failure discards the copy.
            for v_try in 1 .. 5 loop
                begin
                    execute format('drop table queen.segments_%s', v_extent);
                    exit;
                exception when lock_not_available then
                    if v_try = 5 then
                        raise;
                    end if;
                    perform pg_sleep(0.1);
                end;
            end loop;
            delete from queen.extents e where e.number = v_extent;
            number := v_extent;
            return next;
        exception when lock_not_available then
            null;
        end;
        exit;
    end loop;
end $$;

-- The log is a ring of tables, its extents: segments are added to the newest and leave by dropping an old one.
-- A lock of their own keeps two brokers from doing either at once; the second one finds nothing to do.

-- queen.rotate_extent: starts a new extent when the current one is large or old enough, and not empty.
-- in:     p_bytes bigint, p_age interval: the least of either; a log that has grown beyond 32 of them is cut into
--         about 32 extents instead, because every read looks into each
-- out:    int: the new extent's number, or null
-- locks:  a share-update lock on the log, which neither readers nor writers notice
-- raises: lock_not_available while somebody analyzes the log by hand, if the session has a lock_timeout
-- Attached rather than created as a partition: that would lock out everybody. The copy takes columns, defaults,
-- storage, compression and indexes along, and attaching finds the indexes to be those of the log. Vacuum is told to
-- come by often, as it then looks at new pages only and sums them up for the index on age; it has no business in
-- the TOAST table, and must never ask for the exclusive lock that giving back empty pages takes. Up to half a page a
-- segment stays in its row: out of line it costs an insertion and an index entry per 2 kB.
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

-- queen.drop_extents: drops one extent that holds nothing, or hardly anything, that is still stored.
-- in:     p_live_share real: up to this share of its bytes, what is live moves on into the current extent
-- out:    number int, copied bigint (segments): the extent that is gone; no row = nothing to do, or not now
-- locks:  a share lock on the extent while it copies; then, for the moment of the drop, the whole log, for which it
--         waits five times 50 ms at most, and not at all while somebody has been using it for over a second
-- raises: never
-- One extent a call, oldest first, because the lock on the log lasts until commit. The share is estimated from about
-- 64 pages of each extent; only the one that goes is read as a whole. What is live cannot grow meanwhile: tails
-- only move up, and the share lock waits for writers that chose the extent before the last rotation and refuses
-- later ones, of which a minute's grace leaves hardly any. Such a push fails with check_violation and is tried again.
-- A statement that took its snapshot before the drop but its lock on the log after it sees neither the old rows nor
-- their copies. Who cannot bear such a hole reads the log in a function that is not `stable`, or locks it first.
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
            -- Usually at once. A few tries, because a failed one throws the copy away.
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

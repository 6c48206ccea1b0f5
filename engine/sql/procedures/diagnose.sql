-- An earlier version returned text; the result type of a function cannot be changed in place.
drop function if exists queen.diagnose();

-- queen.is_own: whether a session belongs to Queen. Statements of other sessions may contain confidential data, and everyone with
-- access to a broker may read what it reports about sessions.
-- in:     p_user name, p_application text
-- out:    boolean
-- locks:  none
-- raises: never
create or replace function queen.is_own(p_user name, p_application text)
returns boolean language sql stable as $$
    select coalesce(p_user = current_user and p_application in ('queen', 'queen doctor'), false)
$$;

-- queen.diagnose: facts about the database, as numbers and names. src/doctor interprets them.
-- in:     p_thorough boolean   also read large tables; otherwise nothing above 32 MB
-- out:    jsonb: one document, described by src/doctor/facts.rs
-- locks:  none. It waits at most a second for table locks on Queen's tables, and then omits their contents
-- raises: never
-- Brokers are recognized by their application name. Without the right to see other sessions (pg_read_all_stats), some texts and
-- ages stay empty. Sizes are those of the last vacuum: current ones would wait for locks, and this must respond when nothing
-- else does. Ages use queen.now(), so that tests can make things old.
create or replace function queen.diagnose(p_thorough boolean)
returns jsonb language plpgsql
set lock_timeout = '1s' set enable_seqscan = on set enable_hashjoin = on set enable_sort = on
set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_now timestamptz := queen.now();
    v_wal pg_lsn := case when pg_is_in_recovery() then pg_last_wal_receive_lsn() else pg_current_wal_lsn() end;
    v_checkpoints jsonb;
    v_contents jsonb;
    v_leases jsonb;
begin
    -- Moved to another view in version 17.
    if to_regclass('pg_catalog.pg_stat_checkpointer') is null then
        select jsonb_build_object('timed', b.checkpoints_timed, 'requested', b.checkpoints_req)
        into v_checkpoints from pg_stat_bgwriter b;
    else
        execute 'select jsonb_build_object(''timed'', c.num_timed, ''requested'', c.num_requested) from pg_stat_checkpointer c'
        into v_checkpoints;
    end if;

    begin
        select jsonb_build_object(
            'schema', (select max(m.version) from queen.migrations m),
            'deferred', (select jsonb_build_object(
                    'open', count(*) filter (where d.status in ('pending', 'processing')),
                    'oldest_seconds', extract(epoch from v_now - min(d.created_at)
                                                                 filter (where d.status in ('pending', 'processing'))),
                    'failed', count(*) filter (where d.status = 'failed'),
                    'error', (array_agg(d.error order by d.finished_at desc) filter (where d.status = 'failed'))[1])
                from queen.deferred d),
            'inbox', (select jsonb_build_object(
                    'waiting', count(*) filter (where i.error is null),
                    'oldest_seconds', extract(epoch from v_now - min(i.created_at) filter (where i.error is null)),
                    'refused', count(*) filter (where i.error is not null),
                    'error', (array_agg(i.error order by i.created_at desc) filter (where i.error is not null))[1])
                from queen.inbox i),
            'encrypted_queues', (select coalesce(jsonb_agg(e.name), '[]') from (
                    select q.name from queen.queues q where q.encryption_enabled order by q.name limit 100) e),
            'maintenance', exists (select 1 from queen.settings s where s.name = 'maintenance' and s.value = 'true'),
            'pop_maintenance', exists (select 1 from queen.settings s where s.name = 'pop_maintenance' and s.value = 'true'),
            'extents', (select jsonb_build_object(
                    'count', count(*),
                    'oldest_seconds', extract(epoch from v_now - min(e.created_at)),
                    'tables', (select count(*) from pg_inherits i where i.inhparent = 'queen.segments'::regclass))
                from queen.extents e))
        into v_contents;
        if p_thorough or pg_relation_size('queen.consumers') < 32 << 20 then
            select jsonb_build_object(
                'live', count(*),
                'oldest_seconds', extract(epoch from v_now - min(c.served_at)),
                'oldest', (select jsonb_build_object('queue', q.name, 'partition', p.name, 'group', o.consumer_group)
                           from (select k.partition_id, k.consumer_group from queen.consumers k
                                 where k.lease_until > v_now order by k.served_at limit 1) o
                           join queen.partitions p on p.id = o.partition_id join queen.queues q on q.id = p.queue_id),
                'orphaned', count(*) filter (where queen.is_held(c.lease_until, v_now) and not exists (
                    select 1 from queen.deferred d where d.partition_id = c.partition_id
                    and d.consumer_group = c.consumer_group and d.status in ('pending', 'processing'))))
            into v_leases
            from queen.consumers c where c.lease_until > v_now;
        end if;
    exception when lock_not_available then
        v_contents := null;
    end;

    return jsonb_build_object(
        'now', extract(epoch from v_now),
        'version', current_setting('server_version_num')::int,
        'version_text', split_part(current_setting('server_version'), ' ', 1),
        'read_only', pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean,
        'sees_others', pg_has_role('pg_read_all_stats', 'usage'),
        'settings', jsonb_build_object(
            'fsync', current_setting('fsync')::boolean,
            'full_page_writes', current_setting('full_page_writes')::boolean,
            'synchronous_commit', current_setting('synchronous_commit'),
            'autovacuum', current_setting('autovacuum')::boolean and current_setting('track_counts')::boolean,
            'max_wal_bytes', pg_size_bytes(current_setting('max_wal_size')),
            'shared_buffers_bytes', pg_size_bytes(current_setting('shared_buffers')),
            'max_connections', current_setting('max_connections')::int,
            'reserved_connections', current_setting('superuser_reserved_connections')::int
                                    + coalesce(current_setting('reserved_connections', true)::int, 0),
            'freeze_max_age', current_setting('autovacuum_freeze_max_age')::bigint),
        'checkpoints', v_checkpoints,
        'wraparound', (select jsonb_build_object('transactions', age(d.datfrozenxid), 'multixacts', mxid_age(d.datminmxid))
                       from pg_database d where d.datname = current_database()),
        'sessions', (select jsonb_build_object(
                'clients', count(*) filter (where coalesce(a.backend_type, 'client backend') = 'client backend'
                                                  and a.datid is not null),
                'queen', count(*) filter (where a.application_name = 'queen' and a.datname = current_database()),
                'brokers', count(*) filter (where a.application_name = 'queen' and a.datname = current_database()
                                                  and a.query = 'listen queen'))
            from pg_stat_activity a),
        'holders', (select coalesce(jsonb_agg(h order by h.seconds desc nulls last, h.transactions desc), '[]')
            from (
                (select case when a.backend_type = 'walsender' then 'standby' else 'session' end as kind,
                        coalesce(nullif(a.application_name, ''), 'unnamed') as name, a.pid, a.usename as owner, a.state,
                        extract(epoch from v_now - a.xact_start) as seconds,
                        greatest(age(a.backend_xmin), age(a.backend_xid)) as transactions,
                        case when queen.is_own(a.usename, a.application_name) then left(a.query, 200) end as query
                 from pg_stat_activity a
                 where a.pid <> pg_backend_pid() and coalesce(a.backend_xmin, a.backend_xid) is not null
                   and (a.backend_type = 'walsender'
                        or a.datname = current_database()
                           and coalesce(a.backend_type, '') not in ('autovacuum worker', 'parallel worker'))
                 order by a.xact_start limit 5)
                union all
                (select 'prepared', x.gid, null, x.owner, null, extract(epoch from v_now - x.prepared), age(x.transaction), null
                 from pg_prepared_xacts x where x.database = current_database() order by x.prepared limit 5)) h),
        'slots', (select coalesce(jsonb_agg(jsonb_build_object(
                'name', s.slot_name, 'active', s.active, 'wal_bytes', coalesce(pg_wal_lsn_diff(v_wal, s.restart_lsn)::bigint, 0),
                'lost', coalesce(s.wal_status = 'lost', false), 'transactions', age(s.xmin)) order by s.slot_name), '[]')
            from pg_replication_slots s where not s.temporary),
        'tables', (select coalesce(jsonb_agg(t order by t.name), '[]')
            from (select case when s.relname ~ '^segments_\d+$' then 'segments' else s.relname::text end as name,
                         sum(s.n_live_tup) as live, sum(s.n_dead_tup) as dead, sum(s.n_tup_upd) as updates,
                         sum(s.n_tup_hot_upd) as hot_updates,
                         sum(c.relpages + coalesce(o.relpages, 0)
                             + (select coalesce(sum(i.relpages), 0) from pg_index x join pg_class i on i.oid = x.indexrelid
                                where x.indrelid = c.oid)) * current_setting('block_size')::bigint as bytes,
                         bool_or(exists (select 1 from pg_options_to_table(c.reloptions) r
                                         where r.option_name = 'autovacuum_enabled'
                                           and not r.option_value::boolean)) as autovacuum_off
                  from pg_stat_all_tables s join pg_class c on c.oid = s.relid left join pg_class o on o.oid = c.reltoastrelid
                  where s.schemaname = 'queen' and c.relkind = 'r'
                  group by 1) t),
        'indexes', (select coalesce(jsonb_agg(distinct i.relname), '[]')
            from pg_index x join pg_class i on i.oid = x.indexrelid join pg_class t on t.oid = x.indrelid
            where i.relnamespace = 'queen'::regnamespace and t.relname !~ '^segments_\d+$'),
        'invalid_indexes', (select coalesce(jsonb_agg(i.relname order by i.relname), '[]')
            from pg_index x join pg_class i on i.oid = x.indexrelid
            where i.relnamespace = 'queen'::regnamespace and not (x.indisvalid and x.indisready)),
        'blockers', (select coalesce(jsonb_agg(b order by b.seconds desc), '[]')
            from (select b.pid, count(distinct w.pid) as waiting, extract(epoch from max(v_now - w.query_start)) as seconds,
                         max(coalesce(nullif(s.application_name, ''), 'unnamed')) as name, max(s.state) as state,
                         extract(epoch from v_now - max(s.xact_start)) as transaction_seconds,
                         max(case when queen.is_own(s.usename, s.application_name) then left(s.query, 200) end) as query
                  from pg_stat_activity w cross join lateral unnest(pg_blocking_pids(w.pid)) b (pid)
                  left join pg_stat_activity s on s.pid = b.pid
                  where w.application_name = 'queen' and w.datname = current_database() and w.wait_event_type = 'Lock'
                  group by b.pid) b),
        'waits', (select coalesce(jsonb_agg(w order by w.waiting desc), '[]')
            from (select a.wait_event_type || '/' || a.wait_event as event, count(*) as waiting,
                         (select count(*) from pg_stat_activity q where q.application_name = 'queen'
                          and q.datname = current_database() and q.state = 'active') as active
                  from pg_stat_activity a
                  where a.application_name = 'queen' and a.datname = current_database() and a.state = 'active'
                    and a.wait_event_type not in ('Lock', 'Client', 'Activity')
                  group by 1) w),
        -- A session that uses the log for long keeps old extents from being dropped; a table lock stops all traffic.
        'log_users', (select coalesce(jsonb_agg(u order by u.seconds desc), '[]')
            from (select l.pid, max(coalesce(nullif(a.application_name, ''), 'unnamed')) as name,
                         extract(epoch from v_now - max(a.xact_start)) as seconds,
                         max(case when queen.is_own(a.usename, a.application_name) then left(a.query, 200) end) as query,
                         bool_or(l.mode = 'AccessExclusiveLock') as exclusive
                  from pg_locks l join pg_stat_activity a on a.pid = l.pid join pg_class c on c.oid = l.relation
                  where l.granted and l.database = (select d.oid from pg_database d where d.datname = current_database())
                    and c.relnamespace = 'queen'::regnamespace and l.pid <> pg_backend_pid()
                    and (c.relname = 'segments' or l.mode = 'AccessExclusiveLock' and c.relkind in ('r', 'p'))
                    and coalesce(a.backend_type, 'client backend') = 'client backend'
                  group by l.pid order by 3 desc nulls last limit 5) u),
        'contents', v_contents,
        'leases', v_leases);
end $$;

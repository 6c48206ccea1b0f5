-- queen.diagnose: what keeps this database from keeping up, in words.
-- in:     nothing
-- out:    problem boolean, finding text: a row per finding, the likeliest cause first
-- locks:  none
-- raises: never
-- Brokers are known by their application name. Without the right to see others' sessions some texts stay empty.
create or replace function queen.diagnose()
returns table (problem boolean, finding text)
language sql stable set enable_seqscan = on set enable_hashjoin = on as $$
    with sessions as materialized (select * from pg_stat_activity a where a.datname = current_database()),
    blocked as (
        select b.pid as blocker, count(distinct s.pid) as waiting, max(queen.now() - s.query_start) as longest
        from sessions s cross join lateral unnest(pg_blocking_pids(s.pid)) b (pid)
        where s.application_name = 'queen' and s.wait_event_type = 'Lock'
        group by b.pid)
    select true, format('%s statement(s) of Queen wait, the longest for %s s, for a lock of session %s: %s%s, in its transaction for %s s, last statement: %s',
                        b.waiting, round(extract(epoch from b.longest), 1), b.blocker, coalesce(nullif(s.application_name, ''), 'unnamed'),
                        coalesce(', ' || s.state, ''), round(extract(epoch from queen.now() - s.xact_start), 1), left(s.query, 200))
    from blocked b left join sessions s on s.pid = b.blocker
    where s.application_name is distinct from 'queen' or b.longest > interval '1 second'
    union all
    select d.oldest < queen.now() - interval '10 seconds',
           format('%s deferred operation(s) wait, the oldest for %s s', d.depth, round(extract(epoch from queen.now() - d.oldest), 1))
    from (select count(*) as depth, min(d.created_at) as oldest from queen.deferred d
          where d.status in ('pending', 'processing')) d
    where d.depth > 0
    union all
    select true, format('%s deferred operation(s) have failed, the last because: %s', count(*),
                        (array_agg(d.error order by d.finished_at desc))[1])
    from queen.deferred d where d.status = 'failed' having count(*) > 0
    union all
    select i.error, format(case when i.error then '%s row(s) of queen.inbox were refused by the log, the oldest %s s ago: see their error'
                                else '%s row(s) wait in queen.inbox, the oldest for %s s' end,
                           i.count, round(extract(epoch from queen.now() - i.oldest), 1))
    from (select i.error is not null as error, count(*) as count, min(i.created_at) as oldest
          from queen.inbox i group by 1) i
    where i.error or i.oldest < queen.now() - interval '10 seconds'
    union all
    select true, format('%s of %s active statements of Queen wait for %s: %s', w.count, w.active, w.event, case
               when w.event like 'IO/%' or w.event in ('LWLock/WALWrite') then 'the disk is slow or busy with other work'
               else 'see the chapter about wait events in the handbook of PostgreSQL' end)
    from (select s.wait_event_type || '/' || s.wait_event as event, count(*) as count,
                 (select count(*) from sessions a where a.application_name = 'queen' and a.state = 'active') as active
          from sessions s
          where s.application_name = 'queen' and s.state = 'active' and s.wait_event_type not in ('Lock', 'Client', 'Activity')
          group by 1) w
    where w.count >= 3 and w.count * 2 > w.active
    union all
    select true, format('session %s (%s) has been in its transaction for %s s, so that nothing old can be removed: %s', s.pid,
                        coalesce(nullif(s.application_name, ''), 'unnamed'), round(extract(epoch from queen.now() - s.xact_start)), left(s.query, 200))
    from sessions s
    where s.application_name <> 'queen' and s.xact_start < queen.now() - interval '5 minutes'
      and s.backend_type = 'client backend' and coalesce(s.backend_xid, s.backend_xmin) is not null
    union all
    select true, format('%s of %s connections of the server are in use', c.used, c.allowed)
    from (select (select count(*) from pg_stat_activity a where a.backend_type = 'client backend') as used,
                 current_setting('max_connections')::int as allowed) c
    where c.used > c.allowed * 0.9
    union all
    select false, 'maintenance mode is on: pushes wait in the spools of the brokers'
    from queen.settings s where s.name = 'maintenance' and s.value = 'true'
    union all
    select false, 'pop maintenance mode is on: pops find nothing'
    from queen.settings s where s.name = 'pop_maintenance' and s.value = 'true'
$$;

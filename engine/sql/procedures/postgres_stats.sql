-- queen.iso: a time in the format of the API.
-- in:     p_time timestamptz
-- out:    text, or null
-- locks:  none
-- raises: never
create or replace function queen.iso(p_time timestamptz)
returns text language sql stable as $$
    select to_char(p_time at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')
$$;

-- queen.hit_ratio: the share of reads that were served from memory.
-- in:     p_hits numeric, p_reads numeric
-- out:    numeric: percent, with two decimals; 0 if nothing was read
-- locks:  none
-- raises: never
create or replace function queen.hit_ratio(p_hits numeric, p_reads numeric)
returns numeric language sql immutable as $$
    select round(coalesce(100.0 * p_hits / nullif(p_hits + p_reads, 0), 0), 2)
$$;

-- queen.buffer_usage: contents of the shared buffers, if the extension for it is installed and accessible.
-- in:     p_limit int
-- out:    jsonb: an array, empty if unknown
-- locks:  none
-- raises: never
-- Called by name, because the view may not exist.
create or replace function queen.buffer_usage(p_limit int)
returns jsonb language plpgsql as $$
declare
    v_schema text;
    v_usage jsonb;
begin
    select n.nspname into v_schema from pg_extension e join pg_namespace n on n.oid = e.extnamespace
    where e.extname = 'pg_buffercache';
    if v_schema is null then
        return '[]';
    end if;
    execute format($q$
        select coalesce(jsonb_agg(jsonb_build_object('object', u.relname, 'bufferedSize', pg_size_pretty(u.buffers * 8192),
                                                     'percentOfCache', round(100.0 * u.buffers / nullif(u.total, 0), 2))
                                  order by u.buffers desc), '[]')
        from (select c.relname, count(*) as buffers,
                     (select s.setting::bigint from pg_settings s where s.name = 'shared_buffers') as total
              from %I.pg_buffercache b join pg_class c on b.relfilenode = pg_relation_filenode(c.oid)
              where b.reldatabase = (select d.oid from pg_database d where d.datname = current_database())
              group by c.relname order by 2 desc limit %s) u $q$, v_schema, p_limit)
    into v_usage;
    return v_usage;
exception when insufficient_privilege then
    return '[]';
end $$;

-- queen.postgres_stats: statistics of PostgreSQL for this database, in the format of the API.
-- in:     nothing
-- out:    jsonb: one document; every list in it has at most 20 entries
-- locks:  none
-- raises: never
-- Needs no extension and no rights: activity of other roles stays empty for a role that may not see it. The extents of the log
-- count as one table. A document, because only the API uses it.
create or replace function queen.postgres_stats()
returns jsonb language plpgsql
set enable_sort = on set enable_seqscan = on set enable_hashjoin = on set enable_bitmapscan = on
set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_limit constant int := 20;
    v_answer jsonb;
begin
    with tables as materialized (
        select regexp_replace(t.relname, '^segments_\d+$', 'segments') as name,
               sum(coalesce(i.heap_blks_read, 0)) as reads, sum(coalesce(i.heap_blks_hit, 0)) as hits,
               sum(t.n_live_tup) as live, sum(t.n_dead_tup) as dead, sum(t.n_tup_upd) as updates,
               sum(t.n_tup_hot_upd) as hot, sum(t.autovacuum_count) as autovacuums, sum(t.vacuum_count) as vacuums,
               max(t.last_vacuum) as last_vacuum, max(t.last_autovacuum) as last_autovacuum,
               max(t.last_analyze) as last_analyze, max(t.last_autoanalyze) as last_autoanalyze,
               sum(pg_total_relation_size(t.relid)) as total_bytes, sum(pg_table_size(t.relid)) as table_bytes,
               sum(pg_indexes_size(t.relid)) as index_bytes
        from pg_stat_user_tables t join pg_statio_user_tables i on i.relid = t.relid
        where t.schemaname in ('queen', 'queen_streams')
        group by 1),
    indexes as materialized (
        select regexp_replace(i.indexrelname, '^segments_\d+_', 'segments_') as name,
               regexp_replace(i.relname, '^segments_\d+$', 'segments') as table_name,
               sum(i.idx_blks_read) as reads, sum(i.idx_blks_hit) as hits
        from pg_statio_user_indexes i
        where i.schemaname in ('queen', 'queen_streams')
        group by 1, 2)
    select jsonb_build_object(
        'timestamp', queen.iso(queen.now()),
        'database', current_database(),
        'databaseCache', (
            select jsonb_build_object('database', d.datname, 'diskReads', d.blks_read, 'cacheHits', d.blks_hit,
                                      'cacheHitRatio', queen.hit_ratio(d.blks_hit, d.blks_read))
            from pg_stat_database d where d.datname = current_database()),
        'tableCache', (
            select coalesce(jsonb_agg(jsonb_build_object('table', t.name, 'diskReads', t.reads, 'cacheHits', t.hits,
                                                         'cacheHitRatio', queen.hit_ratio(t.hits, t.reads))
                                      order by t.reads desc, t.name), '[]')
            from (select * from tables order by reads desc, name limit v_limit) t),
        'indexCache', (
            select coalesce(jsonb_agg(jsonb_build_object('index', i.name, 'table', i.table_name, 'diskReads', i.reads,
                                                         'cacheHits', i.hits,
                                                         'cacheHitRatio', queen.hit_ratio(i.hits, i.reads))
                                      order by i.reads desc, i.name), '[]')
            from (select * from indexes order by reads desc, name limit v_limit) i),
        'cacheSummary', jsonb_build_object(
            'tables', (select jsonb_build_object('diskReads', coalesce(sum(t.reads), 0), 'cacheHits', coalesce(sum(t.hits), 0),
                                                 'cacheHitRatio', queen.hit_ratio(coalesce(sum(t.hits), 0), coalesce(sum(t.reads), 0)))
                       from tables t),
            'indexes', (select jsonb_build_object('diskReads', coalesce(sum(i.reads), 0), 'cacheHits', coalesce(sum(i.hits), 0),
                                                  'cacheHitRatio', queen.hit_ratio(coalesce(sum(i.hits), 0), coalesce(sum(i.reads), 0)))
                        from indexes i)),
        'deadTuples', (
            select coalesce(jsonb_agg(jsonb_build_object(
                       'table', t.name, 'liveTuples', t.live, 'deadTuples', t.dead,
                       'deadPercentage', round(100.0 * t.dead / nullif(t.live + t.dead, 0), 2),
                       'lastVacuum', queen.iso(t.last_vacuum), 'lastAutovacuum', queen.iso(t.last_autovacuum))
                       order by t.dead desc, t.name), '[]')
            from (select * from tables where dead > 0 order by dead desc, name limit v_limit) t),
        'hotUpdates', (
            select coalesce(jsonb_agg(jsonb_build_object(
                       'table', t.name, 'totalUpdates', t.updates, 'hotUpdates', t.hot,
                       'hotUpdatePercentage', round(100.0 * t.hot / nullif(t.updates, 0), 2))
                       order by t.updates desc, t.name), '[]')
            from (select * from tables where updates > 0 order by updates desc, name limit v_limit) t),
        'activeQueries', (
            select coalesce(jsonb_agg(jsonb_build_object(
                       'pid', a.pid, 'state', a.state, 'duration', round(extract(epoch from a.took), 3),
                       'waitEventType', a.wait_event_type, 'waitEvent', a.wait_event, 'user', a.usename,
                       'query', case when queen.is_own(a.usename, a.application_name) then left(a.query, 500) end)
                       order by a.took desc), '[]')
            from (select s.*, clock_timestamp() - s.query_start as took from pg_stat_activity s
                  where s.datname = current_database() and s.state <> 'idle' and s.pid <> pg_backend_pid()
                    and s.query_start < clock_timestamp() - interval '1 second'
                  order by s.query_start limit v_limit) a),
        'autovacuumStatus', (
            select coalesce(jsonb_agg(jsonb_build_object(
                       'table', t.name, 'deadTuples', t.dead, 'autovacuumCount', t.autovacuums, 'vacuumCount', t.vacuums,
                       'lastAutovacuum', queen.iso(t.last_autovacuum), 'lastAutoanalyze', queen.iso(t.last_autoanalyze))
                       order by t.dead desc, t.name), '[]')
            from (select * from tables order by dead desc, name limit v_limit) t),
        'bufferConfig', jsonb_build_object(
            'sharedBuffers', (select s.setting::bigint from pg_settings s where s.name = 'shared_buffers'),
            'sharedBuffersSize', current_setting('shared_buffers')),
        'bufferUsage', queen.buffer_usage(v_limit),
        'tableSizes', (
            select coalesce(jsonb_agg(jsonb_build_object(
                       'table', t.name, 'totalSize', pg_size_pretty(t.total_bytes), 'tableSize', pg_size_pretty(t.table_bytes),
                       'indexSize', pg_size_pretty(t.index_bytes), 'totalBytes', t.total_bytes)
                       order by t.total_bytes desc, t.name), '[]')
            from (select * from tables order by total_bytes desc, name limit v_limit) t))
    into v_answer;
    return v_answer;
end $$;

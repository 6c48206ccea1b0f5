-- Queries of the history (schema/0009_history.sql). Each takes a range, which the caller has to limit; times are grouped
-- into steps of `p_bucket` minutes, counted from midnight UTC. A filter that is null matches everything.

-- queen.bucket: the step that a minute belongs to.
-- in:     p_minute timestamptz, p_bucket int
-- out:    timestamptz: its beginning
-- locks:  none
-- raises: never
create or replace function queen.bucket(p_minute timestamptz, p_bucket int)
returns timestamptz language sql immutable as $$
    select date_bin(make_interval(mins => p_bucket), p_minute, timestamptz '2000-01-01 00:00:00+00')
$$;

-- queen.queues_like: the names of the queues that match a filter.
-- in:     p_queue text, p_namespace text, p_task text
-- out:    text[]: their names; null = all
-- locks:  none
-- raises: never
create or replace function queen.queues_like(p_queue text, p_namespace text, p_task text)
returns text[] language plpgsql stable set enable_seqscan = on as $$
begin
    if p_queue is null and p_namespace is null and p_task is null then
        return null;
    end if;
    return array(select q.name from queen.queues q
                 where (p_queue is null or q.name = p_queue) and (p_namespace is null or q.namespace = p_namespace)
                   and (p_task is null or q.task = p_task));
end $$;

-- queen.series: events and broker samples, per step.
-- in:     p_from timestamptz, p_to timestamptz, p_bucket int, p_queue text, p_namespace text, p_task text,
--         p_hostname text, p_worker_id text
-- out:    at timestamptz, sums of the counts, sums of the samples, and averages over all brokers; steps without data
--         are omitted; oldest first
-- locks:  none
-- raises: never
-- For all queues it reads one row per minute and broker; for some, the rows of those queues.
create or replace function queen.series(
    p_from timestamptz, p_to timestamptz, p_bucket int, p_queue text, p_namespace text, p_task text,
    p_hostname text, p_worker_id text)
returns table (at timestamptz, push_requests bigint, push_messages bigint, pop_requests bigint, pop_messages bigint,
               pop_empty bigint, ack_requests bigint, ack_success bigint, ack_failed bigint, transactions bigint,
               dead_letters bigint, lag_us bigint, lag_count bigint, lag_us_max bigint, samples bigint, loop_lag_us bigint,
               loop_lag_us_max bigint, free_slots bigint, free_slots_min bigint, waiting bigint, waiting_max bigint,
               parked bigint, flights bigint, db_errors bigint, expired_age bigint, expired_completed bigint,
               expired_wait bigint, expiries bigint, db_connections double precision, cpu_user double precision,
               cpu_system double precision, rss_bytes double precision, pool_active double precision,
               pool_idle double precision, pool_size double precision)
language plpgsql stable
set enable_sort = on set enable_seqscan = on set enable_bitmapscan = on set enable_indexonlyscan = on set enable_hashjoin = on
set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_from timestamptz := queen.bucket(p_from, 1);
    v_queues text[] := queen.queues_like(p_queue, p_namespace, p_task);
begin
    return query
    with brokers as (
        select queen.bucket(b.minute, p_bucket) as step, b.*
        from queen.broker_minutes b
        where b.minute >= v_from and b.minute <= p_to
          and (p_hostname is null or b.hostname = p_hostname) and (p_worker_id is null or b.worker_id = p_worker_id)),
    samples as (
        select b.step, sum(b.samples)::bigint as samples, sum(b.loop_lag_us)::bigint as loop_lag_us,
               max(b.loop_lag_us_max) as loop_lag_us_max, sum(b.free_slots)::bigint as free_slots,
               min(b.free_slots_min) as free_slots_min, sum(b.waiting)::bigint as waiting,
               max(b.waiting_max) as waiting_max, max(b.parked) as parked, sum(b.flights)::bigint as flights,
               sum(b.db_errors)::bigint as db_errors, sum(b.expired_age)::bigint as expired_age,
               sum(b.expired_completed)::bigint as expired_completed, sum(b.expired_wait)::bigint as expired_wait,
               sum(b.expiries)::bigint as expiries
        from brokers b group by b.step),
    -- A broker that was restarted within a minute has two rows for it: each is weighted by its share of the minute.
    shares as (
        select b.step, b.minute, b.metrics, b.db_connections,
               b.samples / nullif(sum(b.samples) over (partition by b.minute, b.worker_id), 0)::double precision as share
        from brokers b),
    averages as (
        select w.step, sum(w.db_connections * w.share) / count(distinct w.minute) as db_connections,
               sum((w.metrics #>> '{cpu.user_us,avg}')::double precision * w.share) / count(distinct w.minute) as cpu_user,
               sum((w.metrics #>> '{cpu.system_us,avg}')::double precision * w.share) / count(distinct w.minute) as cpu_system,
               sum((w.metrics #>> '{memory.rss_bytes,avg}')::double precision * w.share) / count(distinct w.minute) as rss_bytes,
               sum((w.metrics #>> '{database.pool_active,avg}')::double precision * w.share) / count(distinct w.minute) as pool_active,
               sum((w.metrics #>> '{database.pool_idle,avg}')::double precision * w.share) / count(distinct w.minute) as pool_idle,
               sum((w.metrics #>> '{database.pool_size,avg}')::double precision * w.share) / count(distinct w.minute) as pool_size
        from shares w group by w.step),
    lines as (
        select b.step, b.push_requests, b.push_messages, b.pop_requests, b.pop_messages, b.pop_empty, b.ack_requests,
               b.ack_success, b.ack_failed, b.transactions, b.dead_letters, b.lag_us, b.lag_count, b.lag_us_max
        from brokers b where v_queues is null
        union all
        select queen.bucket(m.minute, p_bucket), m.push_requests, m.push_messages, m.pop_requests, m.pop_messages, m.pop_empty, m.ack_requests,
               m.ack_success, m.ack_failed, m.transactions, m.dead_letters, m.lag_us, m.lag_count, m.lag_us_max
        from queen.queue_minutes m
        where m.minute >= v_from and m.minute <= p_to and m.queue_name = any (v_queues)
          and (p_hostname is null and p_worker_id is null or m.broker in (select b.broker from brokers b))),
    counts as (
        select l.step, sum(l.push_requests)::bigint as push_requests, sum(l.push_messages)::bigint as push_messages,
               sum(l.pop_requests)::bigint as pop_requests, sum(l.pop_messages)::bigint as pop_messages,
               sum(l.pop_empty)::bigint as pop_empty, sum(l.ack_requests)::bigint as ack_requests,
               sum(l.ack_success)::bigint as ack_success, sum(l.ack_failed)::bigint as ack_failed,
               sum(l.transactions)::bigint as transactions, sum(l.dead_letters)::bigint as dead_letters,
               sum(l.lag_us)::bigint as lag_us, sum(l.lag_count)::bigint as lag_count, max(l.lag_us_max) as lag_us_max
        from lines l group by l.step)
    select coalesce(c.step, s.step), coalesce(c.push_requests, 0), coalesce(c.push_messages, 0), coalesce(c.pop_requests, 0),
           coalesce(c.pop_messages, 0), coalesce(c.pop_empty, 0), coalesce(c.ack_requests, 0), coalesce(c.ack_success,
           0), coalesce(c.ack_failed, 0), coalesce(c.transactions, 0), coalesce(c.dead_letters, 0), coalesce(c.lag_us,
           0), coalesce(c.lag_count, 0), coalesce(c.lag_us_max, 0),
           coalesce(s.samples, 0), coalesce(s.loop_lag_us, 0), coalesce(s.loop_lag_us_max, 0), coalesce(s.free_slots,
           0), coalesce(s.free_slots_min, 0), coalesce(s.waiting, 0), coalesce(s.waiting_max, 0), coalesce(s.parked,
           0), coalesce(s.flights, 0), coalesce(s.db_errors, 0), coalesce(s.expired_age, 0),
           coalesce(s.expired_completed, 0), coalesce(s.expired_wait, 0), coalesce(s.expiries, 0),
           coalesce(a.db_connections, 0), coalesce(a.cpu_user, 0), coalesce(a.cpu_system, 0), coalesce(a.rss_bytes,
           0), coalesce(a.pool_active, 0), coalesce(a.pool_idle, 0), coalesce(a.pool_size, 0)
    from counts c full join samples s on s.step = c.step left join averages a on a.step = s.step
    order by 1;
end $$;

-- queen.workers: samples of each broker in a range.
-- in:     p_from timestamptz, p_to timestamptz, p_hostname text, p_worker_id text
-- out:    hostname text, port int, worker_id text, sums over its samples, messages bigint (pushed, delivered, acknowledged)
-- locks:  none
-- raises: never
-- A restarted broker counts as the same broker.
create or replace function queen.workers(p_from timestamptz, p_to timestamptz, p_hostname text, p_worker_id text)
returns table (hostname text, port int, worker_id text, samples bigint, loop_lag_us bigint, loop_lag_us_max bigint,
               free_slots bigint, waiting bigint, db_connections bigint, messages bigint)
language plpgsql stable
set enable_sort = on set enable_seqscan = on set enable_bitmapscan = on set plan_cache_mode = force_custom_plan
set jit = off as $$
begin
    return query
    select b.hostname, b.port, b.worker_id, sum(b.samples)::bigint, sum(b.loop_lag_us)::bigint, max(b.loop_lag_us_max),
           sum(b.free_slots)::bigint, sum(b.waiting)::bigint, max(b.db_connections),
           sum(b.push_messages + b.pop_messages + b.ack_success + b.ack_failed)::bigint
    from queen.broker_minutes b
    where b.minute >= queen.bucket(p_from, 1) and b.minute <= p_to
      and (p_hostname is null or b.hostname = p_hostname) and (p_worker_id is null or b.worker_id = p_worker_id)
    group by b.hostname, b.port, b.worker_id
    order by b.hostname, b.port, b.worker_id;
end $$;

-- queen.broker_metrics: measurements of each broker, per step.
-- in:     p_from timestamptz, p_to timestamptz, p_bucket int, p_hostname text, p_worker_id text
-- out:    hostname text, port int, worker_id text, at timestamptz, samples bigint, name text, average, lowest, highest, latest
--         double precision, in this order
-- locks:  none
-- raises: never
create or replace function queen.broker_metrics(
    p_from timestamptz, p_to timestamptz, p_bucket int, p_hostname text, p_worker_id text)
returns table (hostname text, port int, worker_id text, at timestamptz, samples bigint, name text,
               average double precision, lowest double precision, highest double precision, latest double precision)
language plpgsql stable
set enable_sort = on set enable_seqscan = on set enable_bitmapscan = on set plan_cache_mode = force_custom_plan
set jit = off as $$
begin
    return query
    select b.hostname, b.port, b.worker_id, queen.bucket(b.minute, p_bucket), sum(b.samples)::bigint, e.key,
           coalesce(sum((e.value ->> 'avg')::double precision * b.samples) / nullif(sum(b.samples), 0), 0)::double precision,
           -- A broker of another release may report less.
           coalesce(min(coalesce(e.value ->> 'min', e.value ->> 'avg')::double precision), 0),
           coalesce(max(coalesce(e.value ->> 'max', e.value ->> 'avg')::double precision), 0),
           coalesce((array_agg(coalesce(e.value ->> 'last', e.value ->> 'avg')::double precision order by b.minute desc))[1], 0)
    from queen.broker_minutes b cross join lateral jsonb_each(b.metrics) e (key, value)
    where b.minute >= queen.bucket(p_from, 1) and b.minute <= p_to
      and (p_hostname is null or b.hostname = p_hostname) and (p_worker_id is null or b.worker_id = p_worker_id)
    group by 1, 2, 3, 4, e.key
    order by 1, 2, 3, 4, e.key;
end $$;

-- queen.queue_series: events of each queue, per step.
-- in:     p_from timestamptz, p_to timestamptz, p_bucket int (null = the whole range is one step), p_queue text,
--         p_namespace text, p_task text, p_limit bigint (queues: the busiest)
-- out:    at timestamptz, queue_name text, sums of the counts, parked bigint (the maximum, summed over brokers); oldest
--         first
-- locks:  none
-- raises: never
create or replace function queen.queue_series(
    p_from timestamptz, p_to timestamptz, p_bucket int, p_queue text, p_namespace text, p_task text, p_limit bigint)
returns table (at timestamptz, queue_name text, push_requests bigint, push_messages bigint, pop_requests bigint,
               pop_messages bigint, pop_empty bigint, ack_requests bigint, ack_success bigint, ack_failed bigint,
               transactions bigint, dead_letters bigint, lag_us bigint, lag_count bigint, lag_us_max bigint, parked bigint,
               partitions_created bigint, partitions_deleted bigint)
language plpgsql stable
set enable_sort = on set enable_seqscan = on set enable_bitmapscan = on set enable_hashjoin = on
set plan_cache_mode = force_custom_plan set work_mem = '64MB' set jit = off as $$
declare
    v_from timestamptz := queen.bucket(p_from, 1);
    v_queues text[] := queen.queues_like(p_queue, p_namespace, p_task);
begin
    return query
    with busiest as materialized (
        select m.queue_name
        from queen.queue_minutes m
        where m.minute >= v_from and m.minute <= p_to and (v_queues is null or m.queue_name = any (v_queues))
        group by m.queue_name
        order by sum(m.push_messages + m.pop_messages + m.ack_success + m.ack_failed) desc, m.queue_name
        limit p_limit),
    brokers as (
        select case when p_bucket is null then v_from else queen.bucket(m.minute, p_bucket) end as step, m.queue_name,
               sum(m.push_requests) as push_requests, sum(m.push_messages) as push_messages, sum(m.pop_requests) as
               pop_requests, sum(m.pop_messages) as pop_messages, sum(m.pop_empty) as pop_empty, sum(m.ack_requests)
               as ack_requests, sum(m.ack_success) as ack_success, sum(m.ack_failed) as ack_failed,
               sum(m.transactions) as transactions, sum(m.dead_letters) as dead_letters, sum(m.lag_us) as lag_us,
               sum(m.lag_count) as lag_count, sum(m.partitions_created) as partitions_created,
               sum(m.partitions_deleted) as partitions_deleted, max(m.lag_us_max) as lag_us_max, max(m.parked) as
               parked
        from queen.queue_minutes m
        where m.minute >= v_from and m.minute <= p_to and m.queue_name = any (array(select b.queue_name from busiest b))
        group by 1, m.queue_name, m.broker)
    select b.step, b.queue_name, sum(b.push_requests)::bigint, sum(b.push_messages)::bigint, sum(b.pop_requests)::bigint,
           sum(b.pop_messages)::bigint, sum(b.pop_empty)::bigint, sum(b.ack_requests)::bigint,
           sum(b.ack_success)::bigint, sum(b.ack_failed)::bigint, sum(b.transactions)::bigint,
           sum(b.dead_letters)::bigint, sum(b.lag_us)::bigint, sum(b.lag_count)::bigint, max(b.lag_us_max),
           sum(b.parked)::bigint, sum(b.partitions_created)::bigint, sum(b.partitions_deleted)::bigint
    from brokers b
    group by b.step, b.queue_name
    order by b.step, b.queue_name;
end $$;

-- queen.partition_counts: numbers of partitions, as of the latest measurement.
-- in:     p_queues text[]
-- out:    queue_name text, partitions bigint; none for a deleted queue
-- locks:  none
-- raises: never
create or replace function queen.partition_counts(p_queues text[])
returns table (queue_name text, partitions bigint)
language plpgsql stable as $$
begin
    return query
    select q.name, coalesce(c.partitions, 0)
    from queen.queues q left join queen.queue_counts c on c.queue_id = any (array[q.id])
    where q.name = any (p_queues);
end $$;

-- queen.parked_series: parked pops per broker, queue and step.
-- in:     p_from timestamptz, p_to timestamptz, p_bucket int, p_queue text, p_namespace text, p_task text, p_hostname text,
--         p_worker_id text, p_limit bigint (rows)
-- out:    at timestamptz, queue_name text, hostname text, worker_id text, parked bigint (the maximum), where there were
--         some
-- locks:  none
-- raises: never
create or replace function queen.parked_series(
    p_from timestamptz, p_to timestamptz, p_bucket int, p_queue text, p_namespace text, p_task text, p_hostname text,
    p_worker_id text, p_limit bigint)
returns table (at timestamptz, queue_name text, hostname text, worker_id text, parked bigint)
language plpgsql stable
set enable_sort = on set enable_seqscan = on set enable_bitmapscan = on set enable_hashjoin = on
set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_from timestamptz := queen.bucket(p_from, 1);
    v_queues text[] := queen.queues_like(p_queue, p_namespace, p_task);
begin
    return query
    with brokers as materialized (
        select distinct b.broker, b.hostname, b.worker_id
        from queen.broker_minutes b
        where b.minute >= v_from and b.minute <= p_to
          and (p_hostname is null or b.hostname = p_hostname) and (p_worker_id is null or b.worker_id = p_worker_id))
    select queen.bucket(m.minute, p_bucket), m.queue_name, b.hostname, b.worker_id, max(m.parked)
    from queen.queue_minutes m join brokers b on b.broker = m.broker
    where m.minute >= v_from and m.minute <= p_to and m.parked > 0
      and (v_queues is null or m.queue_name = any (v_queues))
    group by 1, 2, 3, 4
    order by 1, 2, 3, 4
    limit p_limit;
end $$;

-- Writes and removes history (schema/0009_history.sql).

-- queen.beat: a broker's heartbeat; returns the running brokers.
-- in:     p_id uuid, p_hostname text, p_port int, p_worker_id text, p_version text, p_started_at timestamptz
-- out:    id uuid, hostname text, port int, worker_id text, version text, started_at timestamptz, seen_at timestamptz of
--         every broker with a heartbeat in the last 30 s
-- locks:  brokers rows, then queue_counts rows
-- raises: never
create or replace function queen.beat(
    p_id uuid, p_hostname text, p_port int, p_worker_id text, p_version text, p_started_at timestamptz)
returns table (id uuid, hostname text, port int, worker_id text, version text, started_at timestamptz, seen_at timestamptz)
language plpgsql set enable_seqscan = on set enable_sort = on as $$
declare
    v_gone timestamptz;
begin
    insert into queen.brokers as b (id, hostname, port, worker_id, version, started_at, seen_at)
    values (p_id, p_hostname, p_port, p_worker_id, p_version, p_started_at, queen.now())
    on conflict on constraint brokers_pkey do update set seen_at = excluded.seen_at, lost = false;
    -- A broker that is gone may have done work that it did not report.
    with gone as (
        update queen.brokers as b set lost = true
        where not b.lost and b.seen_at < queen.now() - interval '30 seconds'
        returning b.seen_at)
    select min(g.seen_at) into v_gone from gone g;
    if v_gone is not null then
        perform queen.doubt_lost();
    end if;
    return query
    select b.id, b.hostname, b.port, b.worker_id, b.version, b.started_at, b.seen_at
    from queen.brokers b where b.seen_at > queen.now() - interval '30 seconds'
    order by b.hostname, b.port, b.started_at;
end $$;

-- queen.goodbye: a broker stops regularly.
-- in:     p_id uuid
-- out:    nothing
-- locks:  its brokers row
-- raises: never
create or replace function queen.goodbye(p_id uuid)
returns void language sql as $$
    delete from queen.brokers b where b.id = p_id
$$;

-- queen.cluster_totals: recorded totals of all brokers.
-- in:     nothing
-- out:    name text, value bigint
-- locks:  none
-- raises: never
create or replace function queen.cluster_totals()
returns table (name text, value bigint) language sql stable set enable_seqscan = on as $$
    select t.name, t.value from queen.totals t
$$;

-- queen.record_minute: adds a broker's counts of a minute, for many queues at once.
-- in:     p_broker uuid, p_number bigint (of the batch: a repeated one is not added again), p_minute timestamptz,
--         p_queues text[] (each once) and as long: p_push_requests … p_partitions_created bigint[],
--         p_row text: the broker's own row as JSON, replaced whole, or null; p_names text[], p_values bigint[]: for the totals
-- out:    name text, value bigint: the totals
-- locks:  its brokers row, queue_minutes rows of its own, totals rows in name order
-- raises: never
-- Queues that do not exist are ignored. The row is passed as JSON because half of its columns are.
create or replace function queen.record_minute(
    p_broker uuid, p_number bigint, p_minute timestamptz, p_queues text[],
    p_push_requests bigint[], p_push_messages bigint[], p_pop_requests bigint[], p_pop_messages bigint[],
    p_pop_empty bigint[], p_ack_requests bigint[], p_ack_success bigint[], p_ack_failed bigint[],
    p_transactions bigint[], p_dead_letters bigint[], p_lag_us bigint[], p_lag_count bigint[], p_lag_us_max bigint[],
    p_parked bigint[], p_partitions_created bigint[], p_row text, p_names text[], p_values bigint[])
returns table (name text, value bigint)
language plpgsql set enable_sort = on as $$
begin
    update queen.brokers as b set recorded = p_number, seen_at = queen.now()
    where b.id = p_broker and b.recorded < p_number;
    if found or not exists (select 1 from queen.brokers b where b.id = p_broker) then
        insert into queen.queue_minutes as m
            (minute, broker, queue_name, push_requests, push_messages, pop_requests, pop_messages, pop_empty, ack_requests,
             ack_success, ack_failed, transactions, dead_letters, lag_us, lag_count, lag_us_max, parked, partitions_created)
        select p_minute, p_broker, a.queue, a.push_requests, a.push_messages, a.pop_requests, a.pop_messages, a.pop_empty,
               a.ack_requests, a.ack_success, a.ack_failed, a.transactions, a.dead_letters, a.lag_us, a.lag_count,
               a.lag_us_max, a.parked, a.partitions_created
        from unnest(p_queues, p_push_requests, p_push_messages, p_pop_requests, p_pop_messages, p_pop_empty,
                    p_ack_requests, p_ack_success, p_ack_failed, p_transactions, p_dead_letters, p_lag_us, p_lag_count,
                    p_lag_us_max, p_parked, p_partitions_created)
             a (queue, push_requests, push_messages, pop_requests, pop_messages, pop_empty, ack_requests, ack_success,
                ack_failed, transactions, dead_letters, lag_us, lag_count, lag_us_max, parked, partitions_created)
        where exists (select 1 from queen.queues q where q.name = any (array[a.queue]))
        order by a.queue
        on conflict (minute, queue_name, broker) do update
        set push_requests = m.push_requests + excluded.push_requests,
            push_messages = m.push_messages + excluded.push_messages,
            pop_requests = m.pop_requests + excluded.pop_requests,
            pop_messages = m.pop_messages + excluded.pop_messages,
            pop_empty = m.pop_empty + excluded.pop_empty,
            ack_requests = m.ack_requests + excluded.ack_requests,
            ack_success = m.ack_success + excluded.ack_success,
            ack_failed = m.ack_failed + excluded.ack_failed,
            transactions = m.transactions + excluded.transactions,
            dead_letters = m.dead_letters + excluded.dead_letters,
            lag_us = m.lag_us + excluded.lag_us,
            lag_count = m.lag_count + excluded.lag_count,
            lag_us_max = greatest(m.lag_us_max, excluded.lag_us_max),
            parked = greatest(m.parked, excluded.parked),
            partitions_created = m.partitions_created + excluded.partitions_created;

        if p_row is not null then
            delete from queen.broker_minutes b where b.minute = p_minute and b.broker = p_broker;
            insert into queen.broker_minutes
            select r.* from jsonb_populate_record(null::queen.broker_minutes, p_row::jsonb ||
                jsonb_build_object('minute', p_minute, 'broker', p_broker)) r;
        end if;

        insert into queen.totals as t (name, value)
        select a.name, a.value from unnest(p_names, p_values) a (name, value) where a.value <> 0 order by a.name
        on conflict on constraint totals_pkey do update set value = t.value + excluded.value;
    end if;
    return query select t.name, t.value from queen.cluster_totals() t;
end $$;

-- queen.queue_rates: counts of the busiest queues in a minute, over all brokers.
-- in:     p_minute timestamptz, p_limit bigint
-- out:    queue_name text and sums, the busiest first
-- locks:  none
-- raises: never
create or replace function queen.queue_rates(p_minute timestamptz, p_limit bigint)
returns table (queue_name text, push_messages bigint, pop_messages bigint, pop_empty bigint, acks bigint,
               transactions bigint, lag_us bigint, lag_count bigint, lag_us_max bigint, parked bigint)
language plpgsql stable set enable_sort = on set plan_cache_mode = force_custom_plan set jit = off as $$
begin
    return query
    select m.queue_name, sum(m.push_messages)::bigint, sum(m.pop_messages)::bigint, sum(m.pop_empty)::bigint,
           sum(m.ack_success + m.ack_failed)::bigint, sum(m.transactions)::bigint, sum(m.lag_us)::bigint,
           sum(m.lag_count)::bigint, max(m.lag_us_max), sum(m.parked)::bigint
    from queen.queue_minutes m
    where m.minute = p_minute
    group by m.queue_name
    order by sum(m.push_messages + m.pop_messages + m.ack_success + m.ack_failed) desc, m.queue_name
    limit p_limit;
end $$;

-- queen.fold_minutes: replaces the minutes of an old hour with one row, per queue and broker, and per broker.
-- in:     p_older_than interval
-- out:    boolean: an hour was processed, and there may be more
-- locks:  the settings row with its progress, skipped if another broker holds it; the rows of that hour
-- raises: never
-- Ranges longer than a day are shown in steps of an hour or more, so only details of the distant past are lost.
create or replace function queen.fold_minutes(p_older_than interval)
returns boolean language plpgsql
set enable_sort = on set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_name constant text := 'history_folded';
    v_from timestamptz;
    v_hour timestamptz;
begin
    insert into queen.settings as s (name, value) values (v_name, to_jsonb('-infinity'::text)) on conflict (name) do nothing;
    select (s.value #>> '{}')::timestamptz into v_from from queen.settings s where s.name = v_name
    for no key update skip locked;
    if not found then
        return false;
    end if;
    v_hour := date_trunc('hour', least(
        (select m.minute from queen.queue_minutes m where m.minute >= v_from order by m.minute limit 1),
        (select b.minute from queen.broker_minutes b where b.minute >= v_from order by b.minute limit 1)), 'UTC');
    if v_hour is null or v_hour + interval '1 hour' > queen.now() - p_older_than then
        return false;
    end if;
    with gone as (
        delete from queen.queue_minutes as m where m.minute > v_hour and m.minute < v_hour + interval '1 hour'
        returning m.*)
    insert into queen.queue_minutes as m
        (minute, broker, queue_name, push_requests, push_messages, pop_requests, pop_messages, pop_empty, ack_requests,
         ack_success, ack_failed, transactions, dead_letters, lag_us, lag_count, lag_us_max, parked, partitions_created,
         partitions_deleted)
    select v_hour, g.broker, g.queue_name, sum(g.push_requests), sum(g.push_messages), sum(g.pop_requests),
           sum(g.pop_messages), sum(g.pop_empty), sum(g.ack_requests), sum(g.ack_success), sum(g.ack_failed),
           sum(g.transactions), sum(g.dead_letters), sum(g.lag_us), sum(g.lag_count), max(g.lag_us_max), max(g.parked),
           sum(g.partitions_created), sum(g.partitions_deleted)
    from gone g
    group by g.queue_name, g.broker
    order by g.queue_name, g.broker
    on conflict (minute, queue_name, broker) do update
    set push_requests = m.push_requests + excluded.push_requests,
        push_messages = m.push_messages + excluded.push_messages,
        pop_requests = m.pop_requests + excluded.pop_requests,
        pop_messages = m.pop_messages + excluded.pop_messages,
        pop_empty = m.pop_empty + excluded.pop_empty,
        ack_requests = m.ack_requests + excluded.ack_requests,
        ack_success = m.ack_success + excluded.ack_success,
        ack_failed = m.ack_failed + excluded.ack_failed,
        transactions = m.transactions + excluded.transactions,
        dead_letters = m.dead_letters + excluded.dead_letters,
        lag_us = m.lag_us + excluded.lag_us,
        lag_count = m.lag_count + excluded.lag_count,
        lag_us_max = greatest(m.lag_us_max, excluded.lag_us_max),
        parked = greatest(m.parked, excluded.parked),
        partitions_created = m.partitions_created + excluded.partitions_created,
        partitions_deleted = m.partitions_deleted + excluded.partitions_deleted;

    with gone as materialized (
        delete from queen.broker_minutes as b where b.minute >= v_hour and b.minute < v_hour + interval '1 hour'
        returning b.*),
    leaves as (
        select g.broker, e.key,
               sum((e.value ->> 'avg')::double precision * g.samples) / nullif(sum(g.samples), 0) as average,
               min((e.value ->> 'min')::double precision) as lowest, max((e.value ->> 'max')::double precision) as highest,
               (array_agg((e.value ->> 'last')::double precision order by g.minute desc))[1] as latest
        from gone g cross join lateral jsonb_each(g.metrics) e (key, value)
        group by g.broker, e.key)
    insert into queen.broker_minutes as b
        (minute, broker, port, hostname, worker_id, metrics, push_requests, push_messages, pop_requests, pop_messages, pop_empty, ack_requests, ack_success, ack_failed,
         transactions, dead_letters, lag_us, lag_count, partitions_created, samples, loop_lag_us, free_slots, waiting,
         flights, db_errors, expired_age, expired_completed, expired_wait, expiries, lag_us_max, loop_lag_us_max,
         waiting_max, db_connections, parked, free_slots_min)
    select v_hour, g.broker, max(g.port), max(g.hostname), max(g.worker_id),
           coalesce((select jsonb_object_agg(l.key, jsonb_build_object('avg', coalesce(l.average, 0), 'min', l.lowest,
                                                                       'max', l.highest, 'last', l.latest))
                     from leaves l where l.broker = g.broker), '{}'),
           sum(g.push_requests), sum(g.push_messages), sum(g.pop_requests), sum(g.pop_messages), sum(g.pop_empty),
           sum(g.ack_requests), sum(g.ack_success), sum(g.ack_failed), sum(g.transactions), sum(g.dead_letters),
           sum(g.lag_us), sum(g.lag_count), sum(g.partitions_created), sum(g.samples), sum(g.loop_lag_us),
           sum(g.free_slots), sum(g.waiting), sum(g.flights), sum(g.db_errors), sum(g.expired_age),
           sum(g.expired_completed), sum(g.expired_wait), sum(g.expiries), max(g.lag_us_max), max(g.loop_lag_us_max),
           max(g.waiting_max), max(g.db_connections), max(g.parked), min(g.free_slots_min)
    from gone g
    group by g.broker;
    update queen.settings as s set value = to_jsonb((v_hour + interval '1 hour')::text) where s.name = v_name;
    return true;
end $$;

-- queen.sweep_minutes: removes expired history, and brokers that are gone for long.
-- in:     p_older_than interval, p_batch bigint
-- out:    bigint: the number of rows; fewer than p_batch = all are done
-- locks:  the removed rows
-- raises: never
-- Uses the key, oldest first.
create or replace function queen.sweep_minutes(p_older_than interval, p_batch bigint)
returns bigint language plpgsql set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_before timestamptz := queen.now() - p_older_than;
    v_queues bigint;
    v_brokers bigint;
begin
    delete from queen.brokers b where b.seen_at < queen.now() - interval '1 hour';
    delete from queen.queue_minutes as m
    where m.ctid = any (array(select k.ctid from queen.queue_minutes k where k.minute < v_before
                              order by k.minute limit p_batch for update skip locked));
    get diagnostics v_queues = row_count;
    delete from queen.broker_minutes as m
    where m.ctid = any (array(select k.ctid from queen.broker_minutes k where k.minute < v_before
                              order by k.minute limit p_batch for update skip locked));
    get diagnostics v_brokers = row_count;
    return greatest(v_queues, v_brokers);
end $$;

-- Deferred operations: accepted, durable, in order. Rows are always locked in this order: heads, deferred, consumers. A lane is a
-- partition and, for acknowledgements, a group. Only its oldest open operation may be executed; the worker that executes it may
-- continue with those behind it.

-- queen.is_held: whether a lease is held for deferred acknowledgements. No other lease lasts longer than a day.
-- in:     p_lease_until timestamptz, p_now timestamptz
-- out:    boolean
-- locks:  none
-- raises: never
create or replace function queen.is_held(p_lease_until timestamptz, p_now timestamptz)
returns boolean language sql stable as $$
    select coalesce(p_lease_until > p_now + interval '2 days', false)
$$;

-- queen.lock_heads: locks the heads rows of partitions before they are changed.
-- in:     p_partitions uuid[], in any order
-- out:    nothing
-- locks:  heads rows in id order
-- raises: never
create or replace function queen.lock_heads(p_partitions uuid[])
returns void language plpgsql as $$
begin
    perform 1
    from (select distinct a.id from unnest(p_partitions) a (id) order by a.id) a
    cross join lateral (
        select 1 from queen.heads h where h.partition_id = a.id
        order by h.generation desc limit 1
        for no key update) l;
end $$;

-- queen.claim_deferred: marks the oldest open operation of some lanes as being executed by a broker.
-- in:     p_worker uuid, p_limit int (at most this many lanes, highest priority and then oldest first)
-- out:    partition_id uuid, consumer_group text, kind text: the lanes. One whose oldest operation is being executed is
--         omitted, unless its worker has had it for longer than its timeout
-- locks:  deferred rows, skipping busy ones
-- raises: never
-- A closed operation never becomes the oldest of its lane again (a retry goes to the end), so what was the oldest when this began
-- still is once it is locked.
create or replace function queen.claim_deferred(p_worker uuid, p_limit int)
returns table (partition_id uuid, consumer_group text, kind text)
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
begin
    return query
    update queen.deferred as d
    set status = 'processing', worker = p_worker, started_at = v_now
    from (select l.id
          from (select f.id
                from (select distinct on (o.partition_id, o.consumer_group) o.id, o.priority, o.number, o.status, o.worker,
                             queen.may_claim(p_worker, v_now, o.status, o.worker, o.due_at, o.started_at,
                                             o.timeout_seconds) as ready
                      from queen.deferred o
                      where o.status in ('pending', 'processing')
                      order by o.partition_id, o.consumer_group, o.number) f
                where f.ready
                -- Its own operations come last, because it could not lock them before.
                order by f.status = 'processing' and f.worker = p_worker, f.priority, f.number
                limit p_limit) f
          cross join lateral (select o.id from queen.deferred o
                              where o.id = f.id
                                and queen.may_claim(p_worker, v_now, o.status, o.worker, o.due_at, o.started_at,
                                                    o.timeout_seconds)
                              for no key update skip locked) l
          offset 0) c
    where d.id = c.id
    returning d.partition_id, d.consumer_group::text, d.kind;
end $$;

-- queen.may_claim: whether an open operation is available to this worker. It may claim its own again, after a lost response.
-- in:     p_worker uuid, p_now timestamptz, and of the operation p_status text, p_holder uuid, p_due_at timestamptz,
--         p_started_at timestamptz, p_timeout int (not the whole row, which would be read with its body)
-- out:    boolean; no operation is delayed by a minute or more, so one that is due later was written before the clock went back
-- locks:  none
-- raises: never
create or replace function queen.may_claim(
    p_worker uuid, p_now timestamptz, p_status text, p_holder uuid, p_due_at timestamptz, p_started_at timestamptz,
    p_timeout int)
returns boolean language sql stable as $$
    select case p_status
        when 'pending' then p_due_at <= p_now or p_due_at > p_now + interval '1 minute'
        when 'processing' then p_holder = p_worker or p_started_at < p_now - make_interval(secs => p_timeout)
                               or p_started_at > p_now + interval '1 minute'
        else false end
$$;

-- queen.take_deferred: the operations of claimed lanes, to be executed in the same transaction.
-- in:     p_worker uuid, p_partitions uuid[], p_groups text[] (lanes), p_limit int (maximum operations per lane),
--         p_bytes bigint (maximum bytes, but at least one operation)
-- out:    the operations, in order per lane; none of a lane that another worker has taken over, or of which another session
--         has locked a row: a slow push elsewhere must not hold up other lanes
-- locks:  heads rows, then deferred rows, then for acknowledgements consumers rows, skipping busy ones
-- raises: never
-- With the partition locked, no operation can be added behind them: if these are all, the lane is empty after the commit.
create or replace function queen.take_deferred(
    p_worker uuid, p_partitions uuid[], p_groups text[], p_limit int, p_bytes bigint)
returns table (lane int, id uuid, transactions bytea, body text, queue_name text, partition_name text, number bigint,
               dedup_seconds int)
language plpgsql as $$
declare
    v_locked uuid[];
    v_whole int[];
    v_free int[];
begin
    select array_agg(l.partition_id) into v_locked
    from (select distinct a.id from unnest(p_partitions) a (id)) a
    cross join lateral (
        select h.partition_id from queen.heads h where h.partition_id = a.id
        order by h.generation desc limit 1
        for no key update skip locked) l;
    -- Lock all operations of a lane or none: if one is locked elsewhere, those behind it would overtake it.
    v_whole := array(
        select a.ordinal::int
        from unnest(p_partitions, p_groups) with ordinality a (partition_id, consumer_group, ordinal)
        cross join lateral (
            select count(*) as count, max(s.number) as last
            from (select d.number from queen.deferred d
                  where d.partition_id = a.partition_id and d.consumer_group = a.consumer_group
                    and d.status in ('pending', 'processing')
                  order by d.number limit p_limit
                  for no key update skip locked) s) locked
        cross join lateral (
            select count(*) as count, max(s.number) as last
            from (select d.number from queen.deferred d
                  where d.partition_id = a.partition_id and d.consumer_group = a.consumer_group
                    and d.status in ('pending', 'processing')
                  order by d.number limit p_limit) s) listed
        where a.partition_id = any (v_locked) and locked.count = listed.count and locked.last = listed.last);
    -- Lock cursors for acks as well: this must not wait for a cursor while it holds the other locks.
    select array_agg(a.ordinal::int) into v_free
    from unnest(p_partitions, p_groups) with ordinality a (partition_id, consumer_group, ordinal)
    where a.ordinal = any (v_whole)
      and (a.consumer_group = '' or not exists (select 1 from queen.reader_of(a.partition_id, a.consumer_group)));
    v_free := v_free || array(
        select a.ordinal::int
        from unnest(p_partitions, p_groups) with ordinality a (partition_id, consumer_group, ordinal)
        cross join lateral (
            select 1 from queen.consumers c
            where c.partition_id = a.partition_id and c.consumer_group = a.consumer_group
            order by c.generation desc limit 1
            for no key update skip locked) l
        where a.ordinal = any (v_whole) and a.consumer_group <> '');
    return query
    select a.ordinal::int, o.id, o.transactions, o.body, o.queue_name, o.partition_name, p.number,
           queen.dedup_window(q.dedup_window_seconds, q.retention_enabled, q.retention_seconds)
    from unnest(p_partitions, p_groups) with ordinality a (partition_id, consumer_group, ordinal)
    cross join lateral (
        select s.*, row_number() over w as place, sum(s.bytes) over w as total, first_value(s.worker) over w as holder
        from (select d.* from queen.deferred d
              where d.partition_id = a.partition_id and d.consumer_group = a.consumer_group
                and d.status in ('pending', 'processing')
              order by d.number limit p_limit) s
        window w as (order by s.number)) o
    join queen.partitions p on p.id = any (array[a.partition_id])
    join queen.queues q on q.id = any (array[p.queue_id])
    where a.ordinal = any (v_free) and o.holder = p_worker and (o.place = 1 or o.total <= p_bytes)
    order by a.ordinal, o.place;
end $$;

-- queen.finish_deferred: closes operations that were executed in this transaction.
-- in:     p_ids uuid[], p_results text[] (JSON, the results of the direct call)
-- out:    nothing
-- locks:  (held already)
-- raises: never
create or replace function queen.finish_deferred(p_ids uuid[], p_results text[])
returns void language plpgsql as $$
begin
    perform queen.close_deferred(p_ids, 'completed', null, p_results);
end $$;

-- queen.close_deferred: ends operations with any status; their lane continues without them.
-- in:     p_ids uuid[], p_status text, p_error text, p_results text[]
-- out:    nothing
-- locks:  heads rows of pushes must be held; then deferred rows, then consumers rows in (partition_id, consumer_group) order
-- raises: never
-- A failed operation keeps its body, so that it can be retried.
create or replace function queen.close_deferred(p_ids uuid[], p_status text, p_error text, p_results text[])
returns void language plpgsql as $$
declare
    v_closed record;
begin
    with closed as (
        update queen.deferred as d
        set status = p_status, error = coalesce(p_error, d.error), finished_at = queen.now(), result = a.result,
            transactions = case when p_status = 'failed' then d.transactions end,
            body = case when p_status = 'failed' then d.body end
        from unnest(p_ids, p_results) a (id, result)
        where d.id = a.id and d.status in ('pending', 'processing')
        returning d.partition_id, d.consumer_group)
    select array_agg(c.partition_id) as partitions, array_agg(c.consumer_group) as groups, array_agg(c.count) as counts
    into v_closed
    from (select c.partition_id, c.consumer_group, count(*)::int as count from closed c
          group by c.partition_id, c.consumer_group) c;

    update queen.heads as h
    set deferred_pending = greatest(h.deferred_pending - n.count, 0),
        version = h.version + 1, generation = queen.next_generation(h.generation, h.version)
    from (select a.count, l.ctid
          from unnest(v_closed.partitions, v_closed.groups, v_closed.counts) a (partition_id, consumer_group, count)
          cross join lateral (select k.ctid from queen.heads k where k.partition_id = a.partition_id
                              order by k.generation desc limit 1) l
          where a.consumer_group = ''
          offset 0) n
    where h.ctid = n.ctid;

    -- An unfinished lease that was held for these acks continues, at least for its usual time.
    perform queen.lock_readers(v_closed.partitions, v_closed.groups);
    update queen.consumers as c
    set deferred_pending = greatest(c.deferred_pending - n.count, 0),
        lease_until = case when c.deferred_pending <= n.count and queen.is_held(c.lease_until, queen.now())
                           then greatest(c.lease_own_until, queen.now() + make_interval(secs => n.lease_time))
                           else c.lease_until end,
        version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
    from (select a.count, l.ctid, case when q.lease_time > 0 then q.lease_time else 60 end as lease_time
          from unnest(v_closed.partitions, v_closed.groups, v_closed.counts) a (partition_id, consumer_group, count)
          join queen.partitions p on p.id = any (array[a.partition_id])
          join queen.queues q on q.id = any (array[p.queue_id])
          cross join lateral (select k.ctid from queen.consumers k
                              where k.partition_id = a.partition_id and k.consumer_group = a.consumer_group
                              order by k.generation desc limit 1) l
          where a.consumer_group <> ''
          offset 0) n
    where c.ctid = n.ctid;
end $$;

-- queen.fail_deferred: schedules a failed attempt for a retry, with growing delays, or ends it as failed.
-- in:     p_worker uuid, p_partition uuid, p_group text (the lane whose oldest operation it was), p_error text,
--         p_counts boolean (false: the operation is not to blame, so this attempt does not count)
-- out:    id uuid, for_good boolean; no row if another worker has taken the lane over
-- locks:  heads row, deferred row, then the consumers row of a deferred ack
-- raises: never
create or replace function queen.fail_deferred(
    p_worker uuid, p_partition uuid, p_group text, p_error text, p_counts boolean)
returns table (id uuid, for_good boolean) language plpgsql as $$
declare
    v_operation queen.deferred;
begin
    perform queen.lock_heads(array[p_partition]);
    select d.* into v_operation
    from queen.deferred d
    where d.partition_id = p_partition and d.consumer_group = p_group and d.status in ('pending', 'processing')
    order by d.number limit 1
    for no key update;
    if v_operation.worker is distinct from p_worker then
        return;
    end if;
    if p_counts and v_operation.attempts >= v_operation.attempts_max then
        -- Without this ack, those behind it would complete its messages. So they fail with it, and the messages are
        -- delivered again.
        perform queen.close_deferred(
            case when p_group = '' then array[v_operation.id]
                 else array(select d.id from queen.deferred d
                            where d.partition_id = p_partition and d.consumer_group = p_group
                              and d.status in ('pending', 'processing')) end,
            'failed', p_error, array[null::text]);
        return query select v_operation.id, true;
        return;
    end if;
    update queen.deferred as d
    set status = 'pending', worker = null, started_at = null, attempts = d.attempts + p_counts::int, error = p_error,
        due_at = queen.now() + case when p_counts then least(interval '30 seconds',
                                        interval '100 milliseconds' * power(2, least(d.attempts, 10)))
                                    else interval '1 second' end
    where d.id = v_operation.id;
    return query select v_operation.id, false;
end $$;

-- queen.cancel_deferred: cancels an operation that is pending or has failed.
-- in:     p_id uuid
-- out:    its status afterwards; null if the operation does not exist
-- locks:  heads row, deferred row, then the consumers row of a deferred ack
-- raises: never
create or replace function queen.cancel_deferred(p_id uuid)
returns text language plpgsql as $$
begin
    perform queen.lock_heads(array(select d.partition_id from queen.deferred d where d.id = p_id));
    perform 1 from queen.deferred d where d.id = p_id and d.status = 'pending' for no key update;
    if found then
        perform queen.close_deferred(array[p_id], 'cancelled', 'cancelled on request', array[null::text]);
    else
        update queen.deferred as d
        set status = 'cancelled', finished_at = queen.now(), transactions = null, body = null
        where d.id = p_id and d.status = 'failed';
    end if;
    return (select d.status from queen.deferred d where d.id = p_id);
end $$;

-- queen.retry_deferred: retries a failed operation, behind everything accepted since.
-- in:     p_id uuid
-- out:    its status afterwards; null if the operation does not exist or its partition was deleted
-- locks:  heads row, deferred row, then the consumers row of a deferred ack
-- raises: never
create or replace function queen.retry_deferred(p_id uuid)
returns text language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_partition uuid := (select d.partition_id from queen.deferred d where d.id = p_id);
    v_group text;
begin
    perform queen.lock_heads(array[v_partition]);
    if not exists (select 1 from queen.heads h where h.partition_id = v_partition) then
        return null;
    end if;
    update queen.deferred as d
    set status = 'pending', worker = null, started_at = null, finished_at = null, attempts = 0, due_at = v_now,
        number = nextval(pg_get_serial_sequence('queen.deferred', 'number'))
    where d.id = p_id and d.status = 'failed'
    returning d.consumer_group into v_group;
    if v_group = '' then
        update queen.heads as h
        set deferred_pending = h.deferred_pending + 1, version = h.version + 1, generation = queen.next_generation(h.generation, h.version)
        where h.partition_id = v_partition
          and h.generation = (select n.generation from queen.head_of(v_partition) n);
    elsif v_group is not null then
        perform queen.lock_readers(array[v_partition], array[v_group]);
        update queen.consumers as c
        set deferred_pending = c.deferred_pending + 1, version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
        where c.partition_id = v_partition and c.consumer_group = v_group
          and c.generation = (select n.generation from queen.reader_of(v_partition, v_group) n);
    end if;
    return (select d.status from queen.deferred d where d.id = p_id);
end $$;

-- queen.sweep_deferred: removes finished operations.
-- in:     p_older_than interval
-- out:    the number of removed operations; failed ones stay until they are retried or canceled
-- locks:  deferred rows
-- raises: never
create or replace function queen.sweep_deferred(p_older_than interval)
returns bigint language sql as $$
    with swept as (
        delete from queen.deferred d
        where d.finished_at < queen.now() - p_older_than and d.status in ('completed', 'cancelled')
        returning 1)
    select count(*) from swept
$$;

-- queen.operations: deferred operations as the API returns them.
-- in:     p_id uuid, p_status text, p_queue text (null = any), p_older_than interval (null = any),
--         p_limit bigint, p_offset bigint
-- out:    the operations, oldest first
-- locks:  none
-- raises: never
create or replace function queen.operations(
    p_id uuid, p_status text, p_queue text, p_older_than interval, p_limit bigint, p_offset bigint)
returns table (id uuid, kind text, queue_name text, partition_name text, consumer_group text, status text, priority int,
               created_at timestamptz, started_at timestamptz, finished_at timestamptz, attempts int, error text,
               latency_seconds double precision, messages int, worker uuid, result text)
language sql stable as $$
    with found as (
        select d.* from queen.deferred d where d.id = p_id
        union all
        select d.* from queen.deferred d where p_id is null)
    select d.id, d.kind, d.queue_name, d.partition_name, d.consumer_group, d.status, d.priority,
           d.created_at, d.started_at, d.finished_at, d.attempts, d.error,
           extract(epoch from coalesce(d.finished_at, queen.now()) - d.created_at)::double precision, d.count, d.worker,
           d.result
    from found d
    where (p_status is null or d.status = p_status)
      and (p_queue is null or d.queue_name = p_queue)
      and (p_older_than is null or d.created_at < queen.now() - p_older_than)
    order by d.number
    limit p_limit offset p_offset
$$;

-- queen.operations_stats: open, failed and recently completed operations (five minutes), by kind and status.
-- in:     nothing
-- out:    a row per kind, priority and status
-- locks:  none
-- raises: never
create or replace function queen.operations_stats()
returns table (kind text, priority int, status text, count bigint, oldest timestamptz, newest timestamptz,
               avg_latency_seconds double precision)
language sql stable as $$
    select d.kind, d.priority, d.status, count(*), min(d.created_at), max(d.created_at),
           avg(extract(epoch from coalesce(d.finished_at, queen.now()) - d.created_at))::double precision
    from queen.deferred d
    where d.status in ('pending', 'processing', 'failed') or d.finished_at > queen.now() - interval '5 minutes'
    group by d.kind, d.priority, d.status
    order by d.priority, d.kind, d.status
$$;

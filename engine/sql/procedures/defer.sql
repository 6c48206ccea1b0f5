-- Stores deferred operations: accepted and durable, and executed later (deferred.sql).

-- queen.defer_pushes_unlocked: defers pushes, behind those that are already deferred for their partitions.
-- in:     p_requests int[]        which request a push belongs to: those of one request are deferred together or not at all
--         p_ids uuid[]            the same when it is sent again after a lost response
--         p_partitions uuid[], p_counts int[], p_transactions bytea[], p_bodies text[]   in the order of acceptance
--         p_timeout int (seconds), p_attempts_max int, p_priority int
--         p_wait int              milliseconds to wait for locked partitions; 0 omits their requests, null waits as
--                                 long as lock_timeout allows
-- out:    gone int[] (the positions, from 1, of those whose partition was deleted), busy int[] (of those whose request was
--         omitted because another session has locked one of its partitions, or because it would overtake such a request)
-- locks:  heads rows in id order, skipping busy ones unless p_wait allows waiting
-- raises: lock_not_available when the wait times out
create or replace function queen.defer_pushes_unlocked(
    p_requests int[], p_ids uuid[], p_partitions uuid[], p_counts int[], p_transactions bytea[], p_bodies text[],
    p_timeout int, p_attempts_max int, p_priority int, p_wait int, out gone int[], out busy int[])
language plpgsql as $$
declare
    v_now timestamptz;
    v_locked uuid[];
    v_left int[];
    v_more int[];
begin
    if p_wait is distinct from 0 then
        perform queen.limit_wait(p_wait);
        perform queen.lock_heads(p_partitions);
    end if;
    v_locked := array(
        select a.id
        from (select distinct a.id from unnest(p_partitions) a (id)) a
        cross join lateral (
            select 1 from queen.heads h where h.partition_id = a.id
            order by h.generation desc limit 1
            for no key update skip locked) l);
    v_left := array(
        select a.request from unnest(p_requests, p_partitions) a (request, id)
        where a.id <> all (v_locked) and exists (select 1 from queen.head_of(a.id)));
    -- And requests that would overtake those in another partition.
    loop
        exit when v_left = '{}';
        v_more := array(
            select distinct a.request from unnest(p_requests, p_partitions) a (request, id)
            where a.request <> all (v_left)
              and exists (select 1 from unnest(p_requests, p_partitions) l (request, id)
                          where l.request = any (v_left) and l.id = a.id));
        exit when v_more = '{}';
        v_left := v_left || v_more;
    end loop;
    v_now := queen.now();
    with added as (
        insert into queen.deferred as d (id, partition_id, created_at, due_at, timeout_seconds, priority, attempts_max,
                                         count, bytes, kind, queue_name, partition_name, transactions, body)
        select a.id, a.partition_id, v_now, v_now, p_timeout, p_priority, p_attempts_max,
               a.count, octet_length(a.body), 'PUSH', q.name, p.name, a.transactions, a.body
        from unnest(p_requests, p_ids, p_partitions, p_counts, p_transactions, p_bodies)
             with ordinality a (request, id, partition_id, count, transactions, body, ordinal)
        join queen.partitions p on p.id = any (array[a.partition_id])
        join queen.queues q on q.id = any (array[p.queue_id])
        where a.request <> all (v_left)
        order by a.ordinal
        on conflict (id) do nothing
        returning d.partition_id)
    update queen.heads as h
    set deferred_pending = h.deferred_pending + n.count, version = h.version + 1, generation = queen.next_generation(h.generation, h.version)
    from (select a.count, l.ctid
          from (select d.partition_id, count(*)::int as count from added d group by d.partition_id) a
          cross join lateral (select k.ctid from queen.heads k where k.partition_id = a.partition_id
                              order by k.generation desc limit 1) l
          offset 0) n
    where h.ctid = n.ctid;

    select array_agg(a.ordinal::int) filter (where a.request <> all (v_left) and a.gone),
           array_agg(a.ordinal::int) filter (where a.request = any (v_left))
    into gone, busy
    from (select a.request, a.ordinal,
                 not exists (select 1 from queen.partitions p where p.id = a.partition_id) as gone
          from unnest(p_requests, p_partitions) with ordinality a (request, partition_id, ordinal)) a;
end $$;

-- queen.defer_pushes: queen.defer_pushes_unlocked, waiting for locked partitions. Called by brokers of 0.1.0; to be removed with
-- 0.3.0, when compatible.sql calls the other.
-- in:     as queen.defer_pushes_unlocked without p_requests and p_wait
-- out:    the positions (from 1) of those whose partition was deleted
-- locks:  heads rows in id order
-- raises: never for a single item
create or replace function queen.defer_pushes(
    p_ids uuid[], p_partitions uuid[], p_counts int[], p_transactions bytea[], p_bodies text[],
    p_timeout int, p_attempts_max int, p_priority int, out gone int[])
language sql as $$
    select d.gone
    from queen.defer_pushes_unlocked(array_fill(0, array[cardinality(p_ids)]), p_ids, p_partitions, p_counts,
                                     p_transactions, p_bodies, p_timeout, p_attempts_max, p_priority, null) d
$$;

-- queen.defer_acks_unlocked: defers acknowledgements, and holds their leases until they are applied.
-- in:     p_ids uuid[]            the same when it is sent again after a lost response
--         p_partitions uuid[], p_groups text[], p_leases uuid[] (null = no lease is claimed), p_kinds text[],
--         p_priorities int[], p_counts int[], p_bodies text[]   in the order of acceptance
--         p_timeout int (seconds), p_attempts_max int
--         p_wait int              milliseconds to wait for locked cursors; 0 omits them, null waits as long as
--                                 lock_timeout allows
-- out:    refused int[] (the positions, from 1, of those that were not deferred: the lease is not valid, or there is no
--         such reader), busy int[] (of those that were omitted because another session has locked their cursor)
-- locks:  partitions rows of new readers, then consumers rows in (partition_id, consumer_group) order, skipping busy ones
--         unless p_wait allows waiting
-- raises: lock_not_available when the wait times out
create or replace function queen.defer_acks_unlocked(
    p_ids uuid[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_kinds text[], p_priorities int[],
    p_counts int[], p_bodies text[], p_timeout int, p_attempts_max int, p_wait int, out refused int[], out busy int[])
language plpgsql as $$
declare
    v_now timestamptz;
    v_good int[];
begin
    -- Without a lease, a group may acknowledge where it has not read yet.
    busy := queen.try_new_readers(
        array(select case when a.lease_id is null then a.id end
              from unnest(p_partitions, p_leases) with ordinality a (id, lease_id, ordinal) order by a.ordinal),
        p_groups, p_wait);
    busy := busy || (select t.busy from queen.try_readers(p_partitions, p_groups, p_wait) t);
    v_now := queen.now();
    select array_agg(a.ordinal::int) filter (where a.good), array_agg(a.ordinal::int) filter (where not a.good)
    into v_good, refused
    from (select a.ordinal,
                 exists (select 1 from queen.reader_of(a.partition_id, a.consumer_group) c
                         where a.lease_id is null or c.lease_id = a.lease_id and c.lease_until > v_now)
                 or exists (select 1 from queen.deferred d where d.id = a.id) as good
          from unnest(p_ids, p_partitions, p_groups, p_leases)
               with ordinality a (id, partition_id, consumer_group, lease_id, ordinal)
          where a.ordinal <> all (busy)) a;
    with added as (
        insert into queen.deferred as d (id, partition_id, consumer_group, created_at, due_at, timeout_seconds, priority,
                                         attempts_max, count, bytes, kind, queue_name, partition_name, body)
        select a.id, a.partition_id, a.consumer_group, v_now, v_now, p_timeout, a.priority,
               p_attempts_max, a.count, octet_length(a.body), a.kind, q.name, p.name, a.body
        from unnest(p_ids, p_partitions, p_groups, p_kinds, p_priorities, p_counts, p_bodies)
             with ordinality a (id, partition_id, consumer_group, kind, priority, count, body, ordinal)
        join queen.partitions p on p.id = any (array[a.partition_id])
        join queen.queues q on q.id = any (array[p.queue_id])
        where a.ordinal = any (v_good)
        order by a.ordinal
        on conflict (id) do nothing
        returning d.partition_id, d.consumer_group)
    update queen.consumers as c
    set deferred_pending = c.deferred_pending + n.count,
        lease_own_until = case when queen.is_held(c.lease_until, v_now) then c.lease_own_until else c.lease_until end,
        lease_until = case when c.lease_until > v_now then greatest(c.lease_until, v_now + interval '30 days')
                           else c.lease_until end,
        version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
    from (select a.count, l.ctid
          from (select d.partition_id, d.consumer_group, count(*)::int as count
                from added d group by d.partition_id, d.consumer_group) a
          cross join lateral (select k.ctid from queen.consumers k
                              where k.partition_id = a.partition_id and k.consumer_group = a.consumer_group
                              order by k.generation desc limit 1) l
          offset 0) n
    where c.ctid = n.ctid;
end $$;

-- queen.defer_acks: queen.defer_acks_unlocked, waiting for locked cursors. Called by brokers of 0.1.0; to be removed with 0.3.0.
-- in:     as queen.defer_acks_unlocked without p_wait
-- out:    the positions (from 1) of those that were not deferred: the lease is not valid, or there is no such reader
-- locks:  consumers rows in (partition_id, consumer_group) order
-- raises: never for a single item
create or replace function queen.defer_acks(
    p_ids uuid[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_kinds text[], p_priorities int[],
    p_counts int[], p_bodies text[], p_timeout int, p_attempts_max int, out refused int[])
language sql as $$
    select d.refused
    from queen.defer_acks_unlocked(p_ids, p_partitions, p_groups, p_leases, p_kinds, p_priorities, p_counts, p_bodies,
                                   p_timeout, p_attempts_max, null) d
$$;

-- queen.count: adds a broker's work to the counts of queues.
-- in:     p_queues text[] (distinct), p_appended bigint[], p_doubts boolean[] (of each: measure it again);
--         p_readers int[] (which queue above, from 1), p_groups text[], p_consumed bigint[]; p_quiet interval (longer than
--         brokers delay their reports)
-- out:    nothing; deleted queues are ignored
-- locks:  queue_counts rows in queue_id order, then group_counts rows in key order
-- raises: never
create or replace function queen.count(
    p_queues text[], p_appended bigint[], p_doubts boolean[], p_readers int[], p_groups text[], p_consumed bigint[],
    p_quiet interval)
returns void language plpgsql set enable_sort = on as $$
begin
    insert into queen.queue_counts as t (queue_id, appended, changed_at, suspect)
    select q.id, a.appended, queen.now(), true
    from unnest(p_queues, p_appended, p_doubts) a (name, appended, doubt)
    join queen.queues q on q.name = any (array[a.name])
    order by q.id
    for key share of q
    on conflict (queue_id) do update
    set appended = t.appended + excluded.appended, changed_at = excluded.changed_at,
        (suspect, doubts) = (
            -- A recent measurement may already include this.
            select t.suspect or a.doubt or t.partial or t.replaced_at > excluded.changed_at - p_quiet, t.doubts + a.doubt::int from unnest(p_queues, p_doubts) a (name, doubt)
            join queen.queues q on q.name = any (array[a.name]) where q.id = t.queue_id);
    insert into queen.group_counts as t (queue_id, consumer_group, consumed)
    select q.id, a.consumer_group, a.consumed
    from unnest(p_readers, p_groups, p_consumed) a (reader, consumer_group, consumed)
    join queen.queues q on q.name = any (array[p_queues[a.reader]])
    join queen.queue_counts c on c.queue_id = any (array[q.id])
    order by q.id, a.consumer_group collate "C"
    on conflict (queue_id, consumer_group) do update set consumed = t.consumed + excluded.consumed;
    -- A group that was not measured yet.
    update queen.queue_counts as c set suspect = true, doubts = c.doubts + 1
    from unnest(p_readers, p_groups) a (reader, consumer_group)
    join queen.queues q on q.name = any (array[p_queues[a.reader]])
    join queen.group_counts g on g.queue_id = any (array[q.id]) and g.consumer_group = a.consumer_group and g.members = 0
    where c.queue_id = q.id and not c.suspect;
end $$;

-- queen.doubt: marks the counts of queues as suspect. For procedures that change what is not counted.
-- in:     p_queues uuid[]
-- out:    nothing
-- locks:  queue_counts rows in queue_id order
-- raises: never
create or replace function queen.doubt(p_queues uuid[])
returns void language plpgsql set enable_sort = on as $$
begin
    perform 1 from queen.queue_counts c
    where c.queue_id = any (p_queues)
    order by c.queue_id
    for no key update;
    update queen.queue_counts as c set suspect = true, doubts = c.doubts + 1 where c.queue_id = any (p_queues);
end $$;

-- queen.doubt_lost: marks counts as suspect because a broker is gone without reporting its latest work.
-- in:     nothing
-- out:    nothing
-- locks:  queue_counts rows
-- raises: never
create or replace function queen.doubt_lost()
returns void language plpgsql set enable_seqscan = on as $$
begin
    perform queen.doubt(array(select c.queue_id from queen.queue_counts c where not c.suspect));
end $$;

-- queen.measure: counts a queue anew by reading all of its partitions.
-- in:     p_queue uuid, p_wait boolean (for a concurrent measurement, and then measure again), p_replace boolean (the
--         counts, whether they are suspect or not), p_quiet interval (as queen.count), p_reconcile interval (after which
--         counts are replaced anyway)
-- out:    boolean: false if another session is measuring it, or the queue does not exist
-- locks:  none on the message path; queue_counts, group_counts and notable_partitions rows of the queue
-- raises: never
-- Work that a broker has not reported yet is already in the measurement and will be added once more, so a queue with reports
-- soon after its counts were replaced becomes suspect. If there are more partitions than can be examined closely, it chooses
-- those that hold most, were pushed to longest ago and were served longest ago.
create or replace function queen.measure(
    p_queue uuid, p_wait boolean, p_replace boolean, p_quiet interval, p_reconcile interval)
returns boolean language plpgsql
set enable_sort = on set enable_hashagg = on set jit = off set plan_cache_mode = force_custom_plan set work_mem = '16MB' as $$
declare
    v_now timestamptz := queen.now();
    v_began timestamptz := clock_timestamp();
    v_queue text;
    v_names text[];
    v_sinces timestamptz[];
    v_whole boolean[];
    v_named boolean[];
    v_appended numeric;
    v_removed numeric;
    v_partitions bigint;
    v_groups jsonb;
    v_notable jsonb;
    v_dead bigint;
    v_counts queen.queue_counts;
    v_replace boolean;
begin
    if p_wait then
        perform pg_advisory_xact_lock(hashtext('queen.measure'), hashtext(p_queue::text));
    elsif not pg_try_advisory_xact_lock(hashtext('queen.measure'), hashtext(p_queue::text)) then
        return false;
    end if;
    select q.name into v_queue from queen.queues q where q.id = p_queue;
    if not found then
        return false;
    end if;
    -- Before the reading: a later doubt may be about what was already read.
    select * into v_counts from queen.queue_counts c where c.queue_id = p_queue;
    -- Groups without a registration for the whole queue read only where they have a cursor or are registered for the partition.
    select array_agg(k.consumer_group), array_agg(r.since),
           array_agg(k.consumer_group = '__QUEUE_MODE__' or r.queue_name is not null),
           array_agg(exists (select 1 from queen.groups n where n.queue_name = v_queue
                                                            and n.consumer_group = k.consumer_group
                                                            and n.partition_name <> ''))
    into v_names, v_sinces, v_whole, v_named
    from (select '__QUEUE_MODE__' as consumer_group
          union select g.consumer_group from queen.groups g where g.queue_name = v_queue
          union select w.consumer_group from queen.consumer_watermarks w where w.queue_name = v_queue
          union select c.consumer_group::text from queen.group_counts c where c.queue_id = p_queue) k
    left join queen.groups r on r.queue_name = v_queue and r.consumer_group = k.consumer_group and r.partition_name = '';

    -- All reading happens before the first lock, because a large queue takes a while.
    with places as materialized (
        select p.id, p.name, p.created_at, h.head, h.tail, h.last_push_at
        from queen.partitions p cross join lateral queen.head_of(p.id) h
        where p.queue_id = p_queue),
    readers as materialized (
        select l.id, g.consumer_group, c.partition_id is not null as member, l.head, l.last_push_at,
               c.served_at, coalesce(c.served_at, l.created_at) as waiting_since, c.lease_until > v_now as leased, c.lease_end,
               case when c.partition_id is not null then greatest(c.cursor, l.tail)
                    when not r.reads then l.head
                    when r.since is null then l.tail
                    when l.last_push_at <= r.since then l.head
                    else queen.offset_after(l.id, r.since) end as cursor
        from places l
        cross join unnest(v_names, v_sinces, v_whole, v_named) g (consumer_group, since, whole, named)
        left join lateral queen.reader_of(l.id, g.consumer_group) c on true
        left join lateral (select true as here, n.since from queen.groups n
                           where g.named and n.queue_name = v_queue and n.consumer_group = g.consumer_group
                             and n.partition_name = l.name and l.name <> '') n on true
        cross join lateral (select g.whole or n.here is not null as reads,
                                   case when n.here then n.since else g.since end as since) r),
    by_group as (
        select r.consumer_group, sum(r.cursor) as consumed, count(*) filter (where r.member) as members,
               count(*) filter (where r.cursor < r.head) as pending_partitions,
               count(*) filter (where r.leased) as leased_partitions,
               coalesce(sum(greatest(r.lease_end - r.cursor, 0)) filter (where r.leased), 0) as leased,
               max(r.served_at) filter (where r.member) as served_at
        from readers r group by r.consumer_group),
    looked_at as (
        select c.consumer_group, c.id, c.head - c.cursor as pending, s.created_at
        from unnest(v_names) g (consumer_group)
        cross join lateral (
            (select r.id, r.consumer_group, r.head, r.cursor from readers r
             where r.consumer_group = g.consumer_group and r.cursor < r.head order by r.head - r.cursor desc limit 400)
            union
            (select r.id, r.consumer_group, r.head, r.cursor from readers r
             where r.consumer_group = g.consumer_group and r.cursor < r.head order by r.last_push_at limit 400)
            union
            (select r.id, r.consumer_group, r.head, r.cursor from readers r
             where r.consumer_group = g.consumer_group and r.cursor < r.head order by r.waiting_since limit 400)) c
        cross join lateral (
            select k.created_at from queen.segments k
            where k.partition_id = c.id and k.base_offset <= c.cursor
            order by k.base_offset desc limit 1) s),
    notable as (
        select * from (
            select l.*, row_number() over (partition by l.consumer_group order by l.created_at, l.id) as by_age,
                   row_number() over (partition by l.consumer_group order by l.pending desc, l.id) as by_size
            from looked_at l) n
        where n.by_age <= 100 or n.by_size <= 100)
    select t.appended, t.removed, t.partitions, g.groups, n.notable
    into v_appended, v_removed, v_partitions, v_groups, v_notable
    from (select coalesce(sum(l.head), 0) as appended, coalesce(sum(l.tail), 0) as removed, count(*) as partitions
          from places l) t
    cross join (select coalesce(jsonb_agg(to_jsonb(g)), '[]') as groups from by_group g) g
    cross join (select coalesce(jsonb_agg(to_jsonb(n)), '[]') as notable from notable n) n;
    v_dead := (select count(*) from queen.dead_letter_rows d where d.queue_id = p_queue);

    -- Reported counts are exact once all brokers have reported, and a measurement is not while some have not. So it replaces
    -- only counts that are suspect, that have not changed for a while, or that were not replaced for long. Reports soon
    -- after that make them suspect again (queen.count).
    v_replace := p_replace or coalesce(v_counts.suspect or v_counts.replaced_at < v_now - p_reconcile, true)
        or coalesce((select c.changed_at <= v_now - p_quiet from queen.queue_counts c where c.queue_id = p_queue
                     for no key update), true);
    insert into queen.queue_counts as c (queue_id, appended, removed, partitions, dead_letters, measured_at, measured_ms,
                                         replaced_at, partial, suspect)
    select q.id, v_appended, v_removed, v_partitions, v_dead, v_now,
           extract(epoch from clock_timestamp() - v_began) * 1000, v_now, false = any (v_whole), false
    from queen.queues q where q.id = p_queue
    on conflict (queue_id) do update
    set appended = case when v_replace then excluded.appended else c.appended end, removed = excluded.removed,
        partitions = excluded.partitions, dead_letters = excluded.dead_letters, measured_at = excluded.measured_at,
        measured_ms = excluded.measured_ms, partial = excluded.partial,
        replaced_at = case when v_replace then excluded.replaced_at else c.replaced_at end,
        suspect = c.doubts <> coalesce(v_counts.doubts, 0) or v_replace and c.changed_at >= v_now;
    if not found then
        return false;
    end if;
    insert into queen.group_counts as c (queue_id, consumer_group, consumed, members, pending_partitions,
                                         leased_partitions, leased, served_at)
    select p_queue, g.consumer_group, g.consumed, g.members, g.pending_partitions, g.leased_partitions, g.leased, g.served_at
    from jsonb_to_recordset(v_groups) g (consumer_group text, consumed bigint, members bigint, pending_partitions bigint,
                                         leased_partitions bigint, leased bigint, served_at timestamptz)
    order by g.consumer_group collate "C"
    on conflict (queue_id, consumer_group) do update
    set consumed = case when v_replace then excluded.consumed else c.consumed end, members = excluded.members, pending_partitions = excluded.pending_partitions,
        leased_partitions = excluded.leased_partitions, leased = excluded.leased, served_at = excluded.served_at,
        oldest_at = case when excluded.pending_partitions > 0 then c.oldest_at end;
    -- No consumer reads under these names. Queue mode stays, for queues without consumers.
    delete from queen.group_counts c
    where c.queue_id = p_queue and c.members = 0 and c.consumer_group <> '__QUEUE_MODE__'
      and not exists (select 1 from queen.groups g where g.queue_name = v_queue and g.consumer_group = c.consumer_group);

    delete from queen.notable_partitions n where n.queue_id = p_queue;
    insert into queen.notable_partitions (queue_id, consumer_group, partition_id, pending, oldest_at)
    select p_queue, n.consumer_group, n.id, n.pending, n.created_at
    from jsonb_to_recordset(v_notable) n (consumer_group text, id uuid, pending bigint, created_at timestamptz)
    join queen.group_counts g on g.queue_id = p_queue and g.consumer_group = n.consumer_group;
    update queen.group_counts as c
    set oldest_at = (select min(n.oldest_at) from queen.notable_partitions n
                     where n.queue_id = p_queue and n.consumer_group = c.consumer_group)
    where c.queue_id = p_queue;
    return true;
end $$;

-- queen.measure_next: measures the queue that has waited longest for it.
-- in:     p_before timestamptz (not what was measured since then), p_quiet interval, p_reconcile interval (as queen.measure)
-- out:    real: its duration in milliseconds; null if no queue has changed since it was measured
-- locks:  as queen.measure
-- raises: never
-- Leases expire without any call, so a queue with leases is measured again after a while.
create or replace function queen.measure_next(p_before timestamptz, p_quiet interval, p_reconcile interval)
returns real language plpgsql set enable_seqscan = on set enable_sort = on set plan_cache_mode = force_custom_plan as $$
declare
    v_began timestamptz := clock_timestamp();
    v_queue uuid;
begin
    -- Another broker may be measuring the first of them.
    for v_queue in
        select c.queue_id from queen.queue_counts c
        where c.measured_at < p_before
          and (c.suspect or c.changed_at > c.measured_at
               or c.changed_at > c.replaced_at and c.replaced_at < queen.now() - p_reconcile
               or c.measured_at < queen.now() - interval '15 seconds'
                  and exists (select 1 from queen.group_counts g
                              where g.queue_id = c.queue_id and g.leased_partitions > 0))
        order by c.measured_at limit 5
    loop
        if queen.measure(v_queue, false, false, p_quiet, p_reconcile) then
            return extract(epoch from clock_timestamp() - v_began) * 1000;
        end if;
    end loop;
    return null;
end $$;

-- queen.freshen: makes the counts exact before they are read, where that is cheap.
-- in:     p_queue text (null = those of all queues that may be wrong), p_partitions_max int (of a cheap queue),
--         p_budget interval (after which no further queue is begun), p_quiet interval, p_reconcile interval (as queen.measure)
-- out:    nothing
-- locks:  as queen.measure, queue by queue in id order, so that two of them cannot wait for each other
-- raises: never
create or replace function queen.freshen(
    p_queue text, p_partitions_max int, p_budget interval, p_quiet interval, p_reconcile interval)
returns void language plpgsql set enable_seqscan = on set enable_sort = on set plan_cache_mode = force_custom_plan as $$
declare
    v_until timestamptz := clock_timestamp() + p_budget;
    v_queue uuid;
    v_first boolean := true;
begin
    for v_queue in
        select q.id from queen.queues q left join queen.queue_counts c on c.queue_id = q.id
        where q.name = p_queue
           or p_queue is null and (c.queue_id is null or c.suspect or c.changed_at > c.measured_at)
        order by q.id
    loop
        -- On a busy machine, the time can be over before the first queue.
        exit when not v_first and clock_timestamp() > v_until;
        v_first := false;
        continue when (select count(*) from (select 1 from queen.partitions p where p.queue_id = v_queue
                                             limit p_partitions_max + 1) n) > p_partitions_max;
        perform queen.measure(v_queue, true, p_queue is not null, p_quiet, p_reconcile);
    end loop;
end $$;

-- One row per queue, from its counts. Unread messages of the whole queue are those of queue mode, or without it of the group
-- that is furthest behind; without readers, everything.
create or replace view queen.queue_figures as
select f.id, f.name, f.namespace, f.task, f.created_at, f.partitions, f.stored, f.unread,
       least(f.unread, f.leased) as leased, f.dead_letters,
       case when f.unread > 0 then f.oldest_at end as oldest_at, f.measured_at
from (select q.id, q.name, q.namespace, q.task, q.created_at, coalesce(c.partitions, 0) as partitions,
             greatest(c.appended - c.removed, 0) as stored,
             least(greatest(c.appended - c.removed, 0),
                   greatest(0, coalesce(c.appended - coalesce(g.shared, g.least), c.appended - c.removed, 0))) as unread,
             coalesce(g.shared_leased, g.leased, 0) as leased, coalesce(c.dead_letters, 0) as dead_letters,
             coalesce(g.shared_oldest_at, g.oldest_at) as oldest_at, c.measured_at
      from queen.queues q
      left join queen.queue_counts c on c.queue_id = q.id
      left join lateral (
          select min(g.consumed) as least, max(g.leased) as leased, min(g.oldest_at) as oldest_at,
                 max(g.consumed) filter (where g.consumer_group = '__QUEUE_MODE__') as shared,
                 max(g.leased) filter (where g.consumer_group = '__QUEUE_MODE__') as shared_leased,
                 min(g.oldest_at) filter (where g.consumer_group = '__QUEUE_MODE__') as shared_oldest_at
          from queen.group_counts g where g.queue_id = q.id and g.members > 0) g on true) f;

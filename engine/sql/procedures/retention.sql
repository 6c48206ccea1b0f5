-- Messages are removed by moving `heads.tail` up; the space is freed when their extent is dropped (extents.sql). A job asks
-- queen.retention_policies what is due, queen.expired_since for the affected partitions, and passes those to queen.apply_policy
-- in batches. No step visits a partition in which nothing has expired since the last time.

-- queen.retention_policies: the retention policies of all queues, with their cutoffs.
-- in:     nothing
-- out:    queue_id uuid, kind text, seconds int, cutoff timestamptz (that long ago), one row per queue and kind:
--         'age' (retentionSeconds), 'completed' (completedRetentionSeconds), 'wait' (maxWaitTimeSeconds)
-- locks:  none
-- raises: never
create or replace function queen.retention_policies()
returns table (queue_id uuid, kind text, seconds int, cutoff timestamptz)
language plpgsql stable as $$
declare
    v_now timestamptz := queen.now();
begin
    return query
    select q.id, k.kind, k.seconds, v_now - make_interval(secs => k.seconds)
    from queen.queues q
    cross join lateral (values
        ('age', case when q.retention_enabled then q.retention_seconds end),
        ('completed', case when q.retention_enabled then q.completed_retention_seconds end),
        ('wait', q.max_wait_time_seconds)) k (kind, seconds)
    where k.seconds > 0;
end $$;

-- queen.expired_since: up to where messages of partitions have expired.
-- in:     p_queues uuid[], p_from timestamptz (-infinity = the whole log), p_cutoff timestamptz
-- out:    partition_id uuid, message_offset bigint (the first that is younger than the cutoff), in id order; only
--         partitions with something left below it
-- locks:  none
-- raises: never
-- The cost depends on what was written to the log, over all queues, between the two times. So queues with the same times
-- should share a call, and one with a new policy starts from -infinity, as all do after a restart. A slow writer may have
-- committed behind an earlier look; later messages of its partition include it, and if there are none, a look that begins
-- earlier finds it. Not `stable`, so that its snapshot is younger than its lock on the log: an extent cannot be dropped in
-- between.
create or replace function queen.expired_since(p_queues uuid[], p_from timestamptz, p_cutoff timestamptz)
returns table (partition_id uuid, message_offset bigint)
language plpgsql
set enable_seqscan = off set enable_bitmapscan = on set enable_hashagg = on set enable_sort = on set jit = off
set plan_cache_mode = force_custom_plan as $$
declare
    v_extent int := coalesce((select max(e.number) from queen.extents e
                              where e.created_at < p_from - interval '1 minute'), 0);
begin
    return query
    select w.partition_id, w.message_offset
    from (select s.partition_id, max(s.base_offset + s.count) as message_offset
          from queen.segments s
          where s.created_at > p_from and s.created_at <= p_cutoff and s.extent >= v_extent
          group by s.partition_id) w
    cross join lateral queen.head_of(w.partition_id) h
    where h.queue_id = any (p_queues) and h.tail < w.message_offset
    order by w.partition_id;
end $$;

-- queen.expired: queen.expired_since from the cutoff of the last look, with a minute's margin. Called by brokers of 0.1.0; to be
-- removed with 0.3.0.
-- in:     p_queues uuid[], p_seen timestamptz, p_cutoff timestamptz
-- out:    as queen.expired_since
-- locks:  none
-- raises: never
create or replace function queen.expired(p_queues uuid[], p_seen timestamptz, p_cutoff timestamptz)
returns table (partition_id uuid, message_offset bigint)
language plpgsql as $$
begin
    return query select * from queen.expired_since(p_queues, p_seen - interval '1 minute', p_cutoff);
end $$;

-- queen.apply_policy: removes expired messages under a policy that is still in force.
-- in:     p_kind text, p_seconds int (of the policy; null = the queue's current value), p_partitions uuid[] (each once),
--         p_offsets bigint[]: from queen.expired_since
-- out:    position int (none for a deleted partition), removed bigint (messages), waiting boolean (some stay,
--         until their groups have passed them or because the policy was disabled or extended: pass the pair again next
--         time, if the policy still exists)
-- locks:  heads rows in id order, then queue_counts rows
-- raises: never
--   age        everything below the offset is removed, read or unread
--   completed  what all groups have passed is removed; nothing if no group reads here. A group that is registered and has no
--              cursor here yet counts from where it would start (queen.registered_start)
--   wait       everything is removed if a group, or no consumer at all, has still to read some of it. Decided once, when it
--              expires: messages that a group seeks back to later are not removed
-- A live lease protects nothing: its group's cursor counts from the tail on, and an ack of removed messages changes nothing. No
-- pop is woken, because a higher tail makes nothing readable.
create or replace function queen.apply_policy(p_kind text, p_seconds int, p_partitions uuid[], p_offsets bigint[])
returns table ("position" int, removed bigint, waiting boolean)
language plpgsql set enable_hashjoin = off set enable_mergejoin = off set enable_sort = on set jit = off as $$
begin
    -- Before the snapshot, so that no extent is copied and dropped between the two (extents.sql).
    lock table only queen.segments in access share mode;
    perform 1 from (select a.id from unnest(p_partitions) a (id) order by a.id) a
    cross join lateral (select 1 from queen.heads h where h.partition_id = a.id
                        order by h.generation desc limit 1
                        for no key update) h;

    return query
    with asked as materialized (
        select a.ordinal::int as ordinal, a.id, h.generation, h.tail, least(a.message_offset, h.head) as expired,
               greatest(h.tail, case when p_kind <> 'age' then
                   least((select min(c.cursor) from queen.readers_of(a.id) c),
                         queen.registered_start(a.id, h.tail)) end) as passed,
               p_seconds is null or case p_kind
                   when 'age' then q.retention_enabled and q.retention_seconds between 1 and p_seconds
                   when 'completed' then q.retention_enabled and q.completed_retention_seconds between 1 and p_seconds
                   when 'wait' then q.max_wait_time_seconds between 1 and p_seconds end as in_force
        from unnest(p_partitions, p_offsets) with ordinality a (id, message_offset, ordinal)
        cross join lateral queen.head_of(a.id) h
        join queen.queues q on q.id = any (array[h.queue_id])),
    decided as materialized (
        select k.ordinal, k.id, k.generation, k.tail, k.expired, k.in_force,
               greatest(k.tail, case when k.in_force then case p_kind
                   when 'age' then k.expired
                   when 'completed' then least(k.passed, k.expired)
                   when 'wait' then case when k.passed < k.expired then k.expired end end end) as tail_after
        from asked k),
    moved as (
        update queen.heads as h
        set tail = d.tail_after, version = h.version + 1, generation = queen.next_generation(h.generation, h.version)
        from decided d
        where h.partition_id = d.id and h.generation = d.generation and d.tail_after > d.tail)
    select d.ordinal, d.tail_after - d.tail, (p_kind = 'completed' or not d.in_force) and d.tail_after < d.expired
    from decided d;
    perform queen.doubt(array(select distinct h.queue_id from unnest(p_partitions) a (id)
                              cross join lateral queen.head_of(a.id) h));
end $$;

-- queen.expire: queen.apply_policy without checking the policy. Called by brokers of 0.1.0; to be removed with 0.3.0.
-- in:     p_kind text, p_partitions uuid[] (each once), p_offsets bigint[]
-- out:    as queen.apply_policy
-- locks:  as queen.apply_policy
-- raises: never
create or replace function queen.expire(p_kind text, p_partitions uuid[], p_offsets bigint[])
returns table ("position" int, removed bigint, waiting boolean)
language plpgsql as $$
begin
    return query select * from queen.apply_policy(p_kind, null, p_partitions, p_offsets);
end $$;

-- queen.registered_start: the lowest offset at which a group would start in a partition that it has not read yet.
-- in:     p_partition uuid, p_tail bigint (of the partition)
-- out:    bigint; null if every group that reads the partition has a cursor there
-- locks:  none
-- raises: never
-- A group reads the partition if it is registered for it or for the whole queue. Queue mode is not registered; it reads the
-- whole queue once it has a cursor anywhere in it. `stable`, so that it shares the snapshot of the calling statement:
-- queen.apply_policy looks for cursors in that one, and a cursor added between two snapshots would be missed by both.
create or replace function queen.registered_start(p_partition uuid, p_tail bigint)
returns bigint language plpgsql stable as $$
declare
    v_partition record;
begin
    select p.name, p.queue_id, q.name as queue_name into v_partition
    from queen.partitions p join queen.queues q on q.id = any (array[p.queue_id])
    where p.id = p_partition;
    if exists (select 1 from queen.group_counts k
               where k.queue_id = v_partition.queue_id and k.consumer_group = '__QUEUE_MODE__' and k.members > 0)
       and not exists (select 1 from queen.reader_of(p_partition, '__QUEUE_MODE__')) then
        return p_tail;
    end if;
    return (
        select min(case when g.since is null then p_tail else queen.offset_after(p_partition, g.since) end)
        from queen.groups g
        where g.queue_name = v_partition.queue_name and g.partition_name = any (array['', v_partition.name])
          and not exists (select 1 from queen.reader_of(p_partition, g.consumer_group))
          -- A registration for the partition takes precedence over the one for its queue.
          and (g.partition_name <> ''
               or not exists (select 1 from queen.groups n
                              where n.queue_name = g.queue_name and n.consumer_group = g.consumer_group
                                and n.partition_name = v_partition.name)));
end $$;

-- queen.remove_idle_partitions: deletes empty partitions that were not used for a long time.
-- in:     p_older_than interval, p_batch int
-- out:    int: the number; fewer than p_batch = all are done
-- locks:  partitions and heads rows, then their consumers rows, skipping busy ones of any; then queue_counts rows
-- raises: never
-- A partition with dead letters stays, because they would be deleted with it. Reads all partitions, because no index may
-- cover columns that a push changes; so run it rarely. A concurrent request finds the partition deleted.
create or replace function queen.remove_idle_partitions(p_older_than interval, p_batch int)
returns int language plpgsql set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_before timestamptz := queen.now() - p_older_than;
    v_idle uuid[];
    v_queues uuid[];
    v_removed int;
begin
    v_idle := array(
        select p.id from queen.partitions p join queen.heads h on h.partition_id = p.id
        where h.tail = h.head and h.deferred_pending = 0 and h.last_push_at < v_before and p.created_at < v_before
          and not exists (select 1 from queen.consumers c where c.partition_id = p.id and c.served_at >= v_before)
          and not exists (select 1 from queen.dead_letter_rows d where d.partition_id = p.id)
        limit p_batch
        for update of p, h skip locked);

    v_queues := array(select distinct p.queue_id from queen.partitions p where p.id = any (v_idle));

    -- Checked again, now that nothing can be added: what was served or locked in between stays.
    with locked as materialized (
        select c.partition_id, c.consumer_group from queen.consumers c
        where c.partition_id = any (v_idle) and coalesce(c.served_at < v_before, true)
        for update of c skip locked)
    delete from queen.partitions as p
    where p.id = any (v_idle)
      and p.id not in (select c.partition_id from queen.consumers c
                       where c.partition_id = any (v_idle)
                         and (c.partition_id, c.consumer_group) not in (select l.partition_id, l.consumer_group
                                                                        from locked l))
      and not exists (select 1 from queen.dead_letter_rows d where d.partition_id = p.id);
    get diagnostics v_removed = row_count;
    perform queen.doubt(v_queues);
    return v_removed;
end $$;

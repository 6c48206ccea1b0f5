-- queen.delete_group: deletes a group's cursors. A new group of the same name starts over.
-- in:     p_group text, p_queue text (null = every queue), p_metadata boolean (also its configured start position)
-- out:    bigint: the cursors that were deleted
-- locks:  deferred rows of the group in id order, consumers rows in (partition_id, consumer_group) order, then skips,
--         groups, consumer_watermarks, queue_counts and group_counts
-- raises: never
-- For all queues it scans all cursors, because an index by group would cost every insertion for a rare operation. Planned for
-- each call, because the two cases need different plans.
create or replace function queen.delete_group(p_group text, p_queue text, p_metadata boolean)
returns bigint language plpgsql
set enable_seqscan = on set enable_hashjoin = on set enable_sort = on set jit = off
set plan_cache_mode = force_custom_plan as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_queues uuid[];
    v_acks uuid[];
    v_deleted bigint;
begin
    v_acks := array(select d.id from queen.deferred d
                    where d.consumer_group = p_group and (p_queue is null or d.queue_name = p_queue)
                      and d.status in ('pending', 'processing')
                    order by d.id
                    for no key update);
    update queen.deferred as d
    set status = 'failed', error = 'the group was deleted', finished_at = queen.now()
    where d.id = any (v_acks) and d.status in ('pending', 'processing');

    with locked as materialized (
        select c.partition_id
        from queen.partitions p
        join queen.consumers c on c.partition_id = p.id and c.consumer_group = p_group
        where p_queue is null or p.queue_id = v_queue
        order by c.partition_id, c.consumer_group
        for update of c)
    delete from queen.consumers as c using locked l
    where c.partition_id = l.partition_id and c.consumer_group = p_group;
    get diagnostics v_deleted = row_count;

    delete from queen.skips k using queen.partitions p
    where k.consumer_group = p_group and p.id = k.partition_id and (p_queue is null or p.queue_id = v_queue);
    if p_metadata then
        delete from queen.groups g
        where g.consumer_group = p_group and (p_queue is null or g.queue_name = p_queue);
    end if;
    delete from queen.consumer_watermarks w
    where w.consumer_group = p_group and (p_queue is null or w.queue_name = p_queue);
    v_queues := array(select g.queue_id from queen.group_counts g
                      where g.consumer_group = p_group and (p_queue is null or g.queue_id = v_queue));
    perform queen.doubt(v_queues);
    delete from queen.group_counts g where g.consumer_group = p_group and g.queue_id = any (v_queues);
    return v_deleted;
end $$;

-- queen.registered: whether a group has a stored start position.
-- in:     p_group text, p_queue text (null = in any queue)
-- out:    boolean
-- locks:  none
-- raises: never
create or replace function queen.registered(p_group text, p_queue text)
returns boolean language plpgsql stable as $$
begin
    return exists (select 1 from queen.groups g
                   where g.consumer_group = p_group and (p_queue is null or g.queue_name = p_queue));
end $$;

-- queen.set_subscription: changes where a registered group starts in partitions that it has not read yet.
-- in:     p_group text, p_since timestamptz
-- out:    bigint: the number of changed registrations; none is added
-- locks:  groups rows, then consumer_watermarks and queue_counts rows
-- raises: never
create or replace function queen.set_subscription(p_group text, p_since timestamptz)
returns bigint language plpgsql as $$
declare
    v_updated bigint;
begin
    update queen.groups as g set since = p_since, mode = 'timestamp' where g.consumer_group = p_group;
    get diagnostics v_updated = row_count;
    delete from queen.consumer_watermarks w where w.consumer_group = p_group;
    perform queen.doubt(array(select q.id from queen.groups g join queen.queues q on q.name = g.queue_name
                              where g.consumer_group = p_group));
    return v_updated;
end $$;

-- queen.reads: whether a group reads a queue: it is registered there, or has a cursor in one of its partitions.
-- in:     p_group text, p_queue text
-- out:    boolean
-- locks:  none
-- raises: never
create or replace function queen.reads(p_group text, p_queue text)
returns boolean language plpgsql stable as $$
begin
    return exists (select 1 from queen.groups g where g.queue_name = p_queue and g.consumer_group = p_group)
        or exists (select 1 from queen.queues q join queen.partitions p on p.queue_id = any (array[q.id])
                   cross join lateral queen.reader_of(p.id, p_group) c
                   where q.name = p_queue);
end $$;

-- queen.seek_group: moves a group in the partitions of a queue, and ends its leases, retries and deferred acks there.
-- in:     p_group text, p_queue text, p_partition text (null = all), p_end boolean (to the end), p_time timestamptz
--         (otherwise: to the first message younger than this), p_create boolean (also if it does not read the queue so far;
--         for the whole queue it is registered then)
-- out:    bigint: the partitions in which it now stands there; null: it does not read the queue, and was not created
-- locks:  partitions rows in id order, so that no row of the group is added meanwhile; deferred rows of its acks in id
--         order; consumers rows in (partition_id, consumer_group) order; deferred rows of acks that were accepted while
--         it waited for these, without waiting; then groups, consumer_watermarks, queue_counts and group_counts
-- raises: lock_not_available when one of those acks is in use: try again
-- A cursor holds back completed retention, so a mistyped name must not make one.
create or replace function queen.seek_group(
    p_group text, p_queue text, p_partition text, p_end boolean, p_time timestamptz, p_create boolean)
returns bigint language plpgsql set enable_sort = on set jit = off as $$
declare
    v_new boolean := not queen.reads(p_group, p_queue);
    v_partitions uuid[];
    v_acks uuid[];
    v_late uuid[];
begin
    if v_new and not (p_create and exists (select 1 from queen.queues q where q.name = p_queue)) then
        return null;
    end if;
    -- Before the snapshot, so that no extent is copied and dropped between the two (extents.sql).
    lock table only queen.segments in access share mode;
    v_partitions := array(select p.id from queen.queues q join queen.partitions p on p.queue_id = q.id
                          where q.name = p_queue and (p_partition is null or p.name = p_partition)
                          order by p.id
                          for no key update of p);
    -- Acknowledgements that were accepted before this must not move the group on after it.
    v_acks := array(select d.id from queen.deferred d
                    where d.id = any (array(select o.id from queen.open_acks(p_group, p_queue, p_partition) o
                                            where o.partition_id = any (v_partitions)))
                    order by d.id
                    for no key update);
    perform queen.lock_readers(v_partitions, array_fill(p_group, array[cardinality(v_partitions)]));
    -- With the cursors locked no more of them are accepted. Waiting for these would be against the order of locks.
    v_late := array(select o.id from queen.open_acks(p_group, p_queue, p_partition) o
                    where o.partition_id = any (v_partitions) and o.id <> all (v_acks));
    if cardinality(array(select d.id from queen.deferred d where d.id = any (v_late)
                         for no key update skip locked)) < cardinality(v_late) then
        raise exception using errcode = 'lock_not_available',
            message = 'a deferred acknowledgement of the group is being executed';
    end if;
    v_acks := v_acks || v_late;
    if v_acks <> '{}' then
        perform queen.close_deferred(v_acks, 'cancelled', 'the group was moved',
                                     array_fill(null::text, array[cardinality(v_acks)]));
    end if;
    update queen.consumers as c
    set cursor = case when p_end then a.head else queen.offset_after(a.id, p_time) end,
        lease_id = null, lease_until = null, lease_end = null, attempts = 0,
        version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
    from (select a.id, l.generation, h.head
          from unnest(v_partitions) a (id)
          cross join lateral queen.reader_of(a.id, p_group) l
          cross join lateral queen.head_of(a.id) h
          offset 0) a
    where c.partition_id = any (array[a.id]) and c.consumer_group = p_group and c.generation = a.generation;
    insert into queen.consumers as c (partition_id, consumer_group, cursor)
    select a.id, p_group, case when p_end then h.head else queen.offset_after(a.id, p_time) end
    from unnest(v_partitions) a (id)
    cross join lateral queen.head_of(a.id) h
    where not exists (select 1 from queen.reader_of(a.id, p_group));
    if v_new and p_partition is null and p_group <> '__QUEUE_MODE__' then
        insert into queen.groups as g (queue_name, consumer_group, mode, used_at)
        values (p_queue, p_group, 'all', queen.now())
        on conflict (queue_name, consumer_group, partition_name) do nothing;
    end if;
    delete from queen.consumer_watermarks w where w.queue_name = p_queue and w.consumer_group = p_group;
    -- A newly created group must be registered to be measured.
    insert into queen.queue_counts (queue_id) select q.id from queen.queues q where q.name = p_queue
    on conflict do nothing;
    insert into queen.group_counts (queue_id, consumer_group)
    select q.id, p_group from queen.queues q where q.name = p_queue and v_partitions <> '{}'
    on conflict do nothing;
    perform queen.doubt(array(select q.id from queen.queues q where q.name = p_queue));
    return cardinality(v_partitions);
end $$;

-- queen.open_acks: deferred acknowledgements of a group that are not executed yet.
-- in:     p_group text, p_queue text, p_partition text (null = all)
-- out:    id uuid, partition_id uuid
-- locks:  none
-- raises: never
create or replace function queen.open_acks(p_group text, p_queue text, p_partition text)
returns table (id uuid, partition_id uuid) language sql stable as $$
    select d.id, d.partition_id from queen.deferred d
    where d.status in ('pending', 'processing') and d.consumer_group = p_group and d.queue_name = p_queue
      and (p_partition is null or d.partition_name = p_partition)
    offset 0
$$;

-- queen.seek: queen.seek_group that creates the group. Called by brokers of 0.1.0; to be removed with 0.3.0.
-- in:     as queen.seek_group, without p_create
-- out:    bigint: the number of partitions it was moved in
-- locks:  as queen.seek_group
-- raises: never
create or replace function queen.seek(p_group text, p_queue text, p_partition text, p_end boolean, p_time timestamptz)
returns bigint language plpgsql as $$
begin
    return coalesce(queen.seek_group(p_group, p_queue, p_partition, p_end, p_time, true), 0);
end $$;

-- queen.seek_forecast: previews the effect of queen.seek_group.
-- in:     as queen.seek_group, without p_create
-- out:    partitions bigint, replayed bigint (messages that it has read and would read again), skipped bigint (unread
--         messages that it would skip), lands bigint (its new cursor; for one partition)
-- locks:  none
-- raises: never
-- Messages that were deleted by hand count, as they do in unread counts. Not `stable`, because it reads the log.
create or replace function queen.seek_forecast(
    p_group text, p_queue text, p_partition text, p_end boolean, p_time timestamptz)
returns table (partitions bigint, replayed bigint, skipped bigint, lands bigint)
language plpgsql set enable_sort = on set jit = off as $$
begin
    -- As in queen.seek_group.
    lock table only queen.segments in access share mode;
    return query
    select count(*), coalesce(sum(greatest(f.stands - f.lands, 0)), 0)::bigint,
           coalesce(sum(greatest(f.lands - f.stands, 0)), 0)::bigint, max(f.lands)
    from queen.queues q
    join queen.partitions p on p.queue_id = q.id
    cross join lateral queen.head_of(p.id) h
    left join lateral queen.reader_of(p.id, p_group) c on true
    cross join lateral (
        select greatest(h.tail, coalesce(c.cursor, queen.start_of(p_group, q.id, q.name, p.id, p.name, h.head, h.tail))) as stands,
               case when p_end then h.head else queen.offset_after(p.id, p_time) end as lands
        offset 0) f
    where q.name = p_queue and (p_partition is null or p.name = p_partition);
end $$;

-- queen.touch_groups: records that these groups have consumers, even if they only wait.
-- in:     p_queues text[], p_groups text[]: pairs
-- out:    nothing
-- locks:  groups rows, in key order
-- raises: never
create or replace function queen.touch_groups(p_queues text[], p_groups text[])
returns void language plpgsql set enable_sort = on as $$
declare
    v_now timestamptz := queen.now();
begin
    with touched as materialized (
        select g.ctid as row_at
        from unnest(p_queues, p_groups) a (queue_name, consumer_group)
        join queen.groups g on g.queue_name = any (array[a.queue_name]) and g.consumer_group = a.consumer_group
        where g.used_at < v_now - interval '1 hour'
        order by g.queue_name, g.consumer_group, g.partition_name
        for no key update of g)
    update queen.groups as g set used_at = v_now from touched t where g.ctid = t.row_at;
end $$;

-- queen.remove_unused_groups: deletes registrations of groups that were not used for a long time and have no cursor in their
-- queue. Most come from pops of a queue that was never created or is deleted.
-- in:     p_older_than interval, p_batch int
-- out:    int: the number; fewer than p_batch = all are done
-- locks:  groups rows, skipping busy ones; then consumer_watermarks and queue_counts rows
-- raises: never
-- It searches for cursors in every partition of the queue, so run it rarely. A group that comes back registers again.
create or replace function queen.remove_unused_groups(p_older_than interval, p_batch int)
returns int language plpgsql
set enable_seqscan = on set enable_sort = on set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_before timestamptz := queen.now() - p_older_than;
    v_queues text[];
    v_groups text[];
begin
    with unused as materialized (
        select g.ctid as row_at
        from queen.groups g
        where g.used_at < v_before
          and not exists (select 1 from queen.queues q join queen.partitions p on p.queue_id = q.id
                          cross join lateral queen.reader_of(p.id, g.consumer_group) c
                          where q.name = g.queue_name)
        limit p_batch
        for update of g skip locked),
    removed as (
        delete from queen.groups g using unused u where g.ctid = u.row_at
        returning g.queue_name, g.consumer_group)
    select array_agg(r.queue_name), array_agg(r.consumer_group) into v_queues, v_groups from removed r;
    if v_queues is null then
        return 0;
    end if;
    delete from queen.consumer_watermarks w
    using unnest(v_queues, v_groups) a (queue_name, consumer_group)
    where w.queue_name = a.queue_name and w.consumer_group = a.consumer_group
      and not exists (select 1 from queen.groups g
                      where g.queue_name = a.queue_name and g.consumer_group = a.consumer_group);
    perform queen.doubt(array(select q.id from queen.queues q where q.name = any (v_queues)));
    return cardinality(v_queues);
end $$;

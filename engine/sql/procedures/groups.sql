-- queen.delete_group: forgets where a group stands. A group of the same name starts afresh.
-- in:     p_group text, p_queue text (null = every queue), p_metadata boolean (also where it was told to start)
-- out:    bigint: the cursors that were deleted
-- locks:  deferred rows of the group, consumers rows in (partition_id, consumer_group) order, then skips, groups,
--         consumer_watermarks, queue_counts and group_counts
-- raises: never
-- For every queue it reads all cursors: an index by group would cost each new one an entry, for the sake of
-- something that hardly ever happens. Planned for each call, because the two cases want different plans.
create or replace function queen.delete_group(p_group text, p_queue text, p_metadata boolean)
returns bigint language plpgsql
set enable_seqscan = on set enable_hashjoin = on set enable_sort = on set jit = off
set plan_cache_mode = force_custom_plan as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_queues uuid[];
    v_deleted bigint;
begin
    update queen.deferred as d
    set status = 'failed', error = 'the group was deleted', finished_at = queen.now()
    where d.consumer_group = p_group and (p_queue is null or d.queue_name = p_queue)
      and d.status in ('pending', 'processing');

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

-- queen.set_subscription: changes where a registered group starts in partitions it has not read yet.
-- in:     p_group text, p_since timestamptz
-- out:    bigint: the registrations that were changed; none is added
-- locks:  groups rows, then consumer_watermarks and queue_counts rows
-- raises: never
create or replace function queen.set_subscription(p_group text, p_since timestamptz)
returns bigint language plpgsql as $$
declare
    v_updated bigint;
begin
    update queen.groups as g set since = p_since where g.consumer_group = p_group;
    get diagnostics v_updated = row_count;
    delete from queen.consumer_watermarks w where w.consumer_group = p_group;
    perform queen.doubt(array(select q.id from queen.groups g join queen.queues q on q.name = g.queue_name
                              where g.consumer_group = p_group));
    return v_updated;
end $$;

-- queen.seek: moves a group in the partitions of a queue, and ends its leases and retries there.
-- in:     p_group text, p_queue text, p_partition text (null = all), p_end boolean (behind the last message), p_time timestamptz (otherwise: to
--         the first message younger than this, so to the oldest stored one if all are)
-- out:    bigint: the partitions in which it now stands there
-- locks:  partitions rows in id order, so that nobody adds a row of the group meanwhile; consumers rows in
--         (partition_id, consumer_group) order; then consumer_watermarks, queue_counts and group_counts
-- raises: never
create or replace function queen.seek(p_group text, p_queue text, p_partition text, p_end boolean, p_time timestamptz)
returns bigint language plpgsql set enable_sort = on set jit = off as $$
declare
    v_partitions uuid[];
begin
    -- Before the snapshot, so that no extent is copied forward and dropped between the two (extents.sql).
    lock table only queen.segments in access share mode;
    v_partitions := array(select p.id from queen.queues q join queen.partitions p on p.queue_id = q.id
                          where q.name = p_queue and (p_partition is null or p.name = p_partition)
                          order by p.id
                          for no key update of p);
    perform queen.lock_readers(v_partitions, array_fill(p_group, array[cardinality(v_partitions)]));
    update queen.consumers as c
    set cursor = case when p_end then a.head else queen.offset_after(a.id, p_time) end,
        lease_id = null, lease_until = null, lease_end = null, attempts = 0,
        version = c.version + 1, generation = (c.version + 1) / 16
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
    delete from queen.consumer_watermarks w where w.queue_name = p_queue and w.consumer_group = p_group;
    -- A group that came into being by this has to be known to be measured.
    insert into queen.queue_counts (queue_id) select q.id from queen.queues q where q.name = p_queue
    on conflict do nothing;
    insert into queen.group_counts (queue_id, consumer_group)
    select q.id, p_group from queen.queues q where q.name = p_queue and v_partitions <> '{}'
    on conflict do nothing;
    perform queen.doubt(array(select q.id from queen.queues q where q.name = p_queue));
    return cardinality(v_partitions);
end $$;

-- queen.seek_forecast: what queen.seek would do, and does none of it.
-- in:     as queen.seek
-- out:    partitions bigint (in which it would stand there), replayed bigint (messages it has passed and would read again),
--         skipped bigint (messages it would not read any more), lands bigint (where it would stand; of one partition)
-- locks:  none
-- raises: never
-- Messages that were deleted by hand count, as they do in what is unread. Not `stable`, because it reads the log.
create or replace function queen.seek_forecast(
    p_group text, p_queue text, p_partition text, p_end boolean, p_time timestamptz)
returns table (partitions bigint, replayed bigint, skipped bigint, lands bigint)
language plpgsql set enable_sort = on set jit = off as $$
begin
    -- As queen.seek.
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

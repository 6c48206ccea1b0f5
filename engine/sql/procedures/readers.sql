-- queen.add_readers: adds consumers rows for groups that have not read a partition before.
-- in:     p_partitions uuid[], p_groups text[]   each pair at most once
--         p_wait boolean          for partitions that another session has locked; otherwise they get no row this time
-- out:    nothing; a deleted partition gets no row
-- locks:  partitions rows in id order, so that the same row is not added concurrently and the partition not deleted
-- raises: never
create or replace function queen.add_readers(p_partitions uuid[], p_groups text[], p_wait boolean)
returns void language plpgsql as $$
declare
    v_locked record;
begin
    if p_wait then
        select array_agg(l.id) as partitions, array_agg(l.consumer_group) as groups into v_locked
        from (select a.id, a.consumer_group from queen.new_readers(p_partitions, p_groups) a
              join queen.partitions p on p.id = any (array[a.id])
              for no key update of p) l;
    else
        select array_agg(l.id) as partitions, array_agg(l.consumer_group) as groups into v_locked
        from (select a.id, a.consumer_group from queen.new_readers(p_partitions, p_groups) a
              join queen.partitions p on p.id = any (array[a.id])
              for no key update of p skip locked) l;
    end if;
    if v_locked.partitions is null then
        return;
    end if;
    insert into queen.consumers as c (partition_id, consumer_group, cursor)
    select n.id, n.consumer_group, f.cursor
    from queen.new_readers(v_locked.partitions, v_locked.groups) n
    cross join lateral queen.first_of(n.id, n.consumer_group) f;
end $$;

-- queen.add_readers: waits for locked partitions.
-- in:     as above
-- out:    nothing
-- locks:  as above
-- raises: never
create or replace function queen.add_readers(p_partitions uuid[], p_groups text[])
returns void language plpgsql as $$
begin
    perform queen.add_readers(p_partitions, p_groups, true);
end $$;

-- queen.try_new_readers: queen.add_readers for partitions that no other session has locked.
-- in:     p_partitions uuid[] (null = none is needed), p_groups text[], p_wait int (milliseconds to wait for the others; 0 =
--         omit them, null = as long as lock_timeout allows)
-- out:    int[]: the positions, from 1, of omitted ones
-- locks:  partitions rows of new readers, in id order if p_wait allows waiting
-- raises: lock_not_available when the wait times out
create or replace function queen.try_new_readers(p_partitions uuid[], p_groups text[], p_wait int)
returns int[] language plpgsql as $$
declare
    v_new record;
begin
    select array_agg(n.id) as partitions, array_agg(n.consumer_group) as groups into v_new
    from (select distinct a.id, a.consumer_group from unnest(p_partitions, p_groups) a (id, consumer_group)
          where a.id is not null and not exists (select 1 from queen.reader_of(a.id, a.consumer_group))) n;
    if v_new.partitions is null then
        return '{}';
    end if;
    if p_wait is distinct from 0 then
        perform queen.limit_wait(p_wait);
    end if;
    perform queen.add_readers(v_new.partitions, v_new.groups, p_wait is distinct from 0);
    return array(
        select a.ordinal::int from unnest(p_partitions, p_groups) with ordinality a (id, consumer_group, ordinal)
        where exists (select 1 from queen.partitions p where p.id = a.id)
          and not exists (select 1 from queen.reader_of(a.id, a.consumer_group)));
end $$;

-- queen.new_readers: the groups that have not read their partition before.
-- in:     p_partitions uuid[], p_groups text[]   each pair at most once
-- out:    id uuid, consumer_group text, in id order
-- locks:  none
-- raises: never
create or replace function queen.new_readers(p_partitions uuid[], p_groups text[])
returns table (id uuid, consumer_group text) language sql stable as $$
    select a.id, a.consumer_group from unnest(p_partitions, p_groups) a (id, consumer_group)
    where not exists (select 1 from queen.reader_of(a.id, a.consumer_group))
    order by a.id
$$;

-- queen.offset_after: the first offset of a partition whose message is younger than a time.
-- in:     p_partition uuid, p_time timestamptz
-- out:    bigint: that offset, or the head if there is none
-- locks:  none
-- raises: never
-- created_at never decreases in a partition, so the first younger segment is the answer. A time before the newest push is
-- rare here, and then the extents' creation times keep the search short.
create or replace function queen.offset_after(p_partition uuid, p_time timestamptz)
returns bigint language plpgsql as $$
declare
    v_partition record;
    v_extent int;
begin
    select h.head, h.tail, h.last_push_at into v_partition from queen.head_of(p_partition) h;
    if v_partition.last_push_at <= p_time then
        return v_partition.head;
    end if;
    -- No message is that old: the time means the beginning.
    if p_time < timestamptz '2000-01-01 00:00:00+00' then
        return v_partition.tail;
    end if;
    v_extent := coalesce((select max(e.number) from queen.extents e
                          where e.created_at < p_time - interval '1 minute'), 0);
    return greatest(v_partition.tail, coalesce(
        (select s.base_offset from queen.segments s
         where s.partition_id = p_partition and s.extent >= v_extent and s.created_at > p_time
         order by s.base_offset limit 1), v_partition.head));
end $$;

-- queen.first_of: where a group that has not read a partition yet starts in it.
-- in:     p_partition uuid, p_group text
-- out:    cursor bigint: the tail, or the first message after the registered time, if any; no row: the partition
--         was deleted
-- locks:  none
-- raises: never
-- In SQL and `stable`, so that it is inlined: calling it for each of 10,000 partitions would double the cost.
create or replace function queen.first_of(p_partition uuid, p_group text)
returns table (cursor bigint) language sql stable rows 1 as $$
    select case when g.since is null then h.tail else queen.offset_after(p.id, g.since) end
    from queen.partitions p
    cross join lateral queen.head_of(p.id) h
    join queen.queues q on q.id = any (array[p.queue_id])
    left join lateral (select n.since from queen.groups n
                       where n.queue_name = q.name and n.consumer_group = p_group and n.partition_name in ('', p.name)
                       order by n.partition_name desc limit 1) g on true
    where p.id = any (array[p_partition])
$$;

-- queen.first_read: queen.first_of as a number.
-- in:     p_partition uuid, p_group text
-- out:    bigint: null = the partition was deleted
-- locks:  none
-- raises: never
create or replace function queen.first_read(p_partition uuid, p_group text)
returns bigint language plpgsql as $$
begin
    return (select f.cursor from queen.first_of(p_partition, p_group) f);
end $$;

-- queen.start_of: where a group would start in a partition that it has not read yet.
-- in:     p_group text (null = unspecified), p_queue uuid, p_queue_name text, p_partition uuid, p_partition_name
--         text, p_head bigint, p_tail bigint (of the partition)
-- out:    bigint: at the time of its registration, or at the tail without one; at the head if it reads other
--         partitions only
-- locks:  none
-- raises: never
create or replace function queen.start_of(
    p_group text, p_queue uuid, p_queue_name text, p_partition uuid, p_partition_name text, p_head bigint, p_tail bigint)
returns bigint language plpgsql as $$
declare
    v_since timestamptz;
begin
    select g.since into v_since from queen.groups g
    where g.queue_name = p_queue_name and g.consumer_group = p_group and g.partition_name in ('', p_partition_name)
    order by g.partition_name desc limit 1;
    if v_since is not null then
        return queen.offset_after(p_partition, v_since);
    end if;
    if not found and p_group <> '__QUEUE_MODE__'
       and exists (select 1 from queen.group_counts k where k.queue_id = p_queue and k.consumer_group = p_group) then
        return p_head;
    end if;
    return p_tail;
end $$;

-- Queries of the admin API. Figures of whole queues come from their counts (statistics.sql), those of partitions from the
-- partitions themselves, a bounded number of them.

-- queen.partition_figures: current figures of some partitions.
-- in:     p_partitions uuid[], p_group text (whose cursor determines what is unread; null = queue mode, or without it
--         the group furthest behind)
-- out:    id uuid, name text, queue_name text, created_at timestamptz, head bigint, tail bigint, unread bigint,
--         leased bigint, cursor bigint, oldest_at timestamptz (of the first stored message), unread_at timestamptz (of the
--         first unread one), newest_at timestamptz (all null when there is none), served_at timestamptz (so of a live lease,
--         since when), lease_id uuid, lease_until timestamptz (both only of a live lease; its own end, also while deferred
--         acks hold it), lag_seconds float8 (since unread_at); in no order, none for a deleted partition
-- locks:  none
-- raises: never
create or replace function queen.partition_figures(p_partitions uuid[], p_group text)
returns table (id uuid, name text, queue_name text, created_at timestamptz, head bigint, tail bigint, unread bigint,
               leased bigint, cursor bigint, oldest_at timestamptz, unread_at timestamptz, newest_at timestamptz,
               served_at timestamptz, lease_id uuid, lease_until timestamptz, lag_seconds float8)
language plpgsql set enable_sort = on set enable_seqscan = off set plan_cache_mode = force_generic_plan as $$
declare
    v_now timestamptz := queen.now();
begin
    return query
    select p.id, p.name, q.name, p.created_at, h.head, h.tail, h.head - c.cursor,
           case when l.lease_until > v_now then greatest(l.lease_end - c.cursor, 0) else 0 end, c.cursor,
           (select s.created_at from queen.segments s where s.partition_id = p.id and s.base_offset <= h.tail and h.tail < h.head
            order by s.base_offset desc limit 1),
           w.created_at, case when h.tail < h.head then h.last_push_at end, l.served_at,
           case when l.lease_until > v_now then l.lease_id end,
           case when queen.is_held(l.lease_until, v_now) then l.lease_own_until
                when l.lease_until > v_now then l.lease_until end,
           extract(epoch from v_now - w.created_at)::float8
    from unnest(p_partitions) a (id)
    join queen.partitions p on p.id = any (array[a.id])
    join queen.queues q on q.id = any (array[p.queue_id])
    cross join lateral queen.head_of(a.id) h
    left join lateral (
        (select r.* from queen.reader_of(a.id, coalesce(p_group, '__QUEUE_MODE__')) r)
        union all
        (select r.* from queen.readers_of(a.id) r where p_group is null order by r.cursor limit 1)
        limit 1) l on true
    cross join lateral (
        select greatest(h.tail, coalesce(l.cursor, queen.start_of(p_group, q.id, q.name, p.id, p.name, h.head, h.tail)))
                   as cursor
        offset 0) c
    left join lateral (select s.created_at from queen.segments s
                       where s.partition_id = p.id and s.base_offset <= c.cursor and c.cursor < h.head
                       order by s.base_offset desc limit 1) w on true;
end $$;

-- queen.queue_partitions: one page of a queue's partitions, by name.
-- in:     p_queue uuid, p_after text (null = from the first), p_limit bigint, p_offset bigint
-- out:    as queen.partition_figures, in order of name
-- locks:  none
-- raises: never
create or replace function queen.queue_partitions(p_queue uuid, p_after text, p_limit bigint, p_offset bigint)
returns table (id uuid, name text, queue_name text, created_at timestamptz, head bigint, tail bigint, unread bigint,
               leased bigint, cursor bigint, oldest_at timestamptz, unread_at timestamptz, newest_at timestamptz,
               served_at timestamptz, lease_id uuid, lease_until timestamptz, lag_seconds float8)
language plpgsql set enable_sort = on as $$
begin
    return query
    select f.*
    from queen.partition_figures(
        array(select p.id from queen.partitions p
              where p.queue_id = p_queue and p.name > coalesce(p_after, '')
              order by p.name limit p_limit offset p_offset), null) f
    order by f.name;
end $$;

-- queen.busiest_partitions: partitions with unread messages, most first.
-- in:     p_queue uuid (null = of all queues), p_group text (as queen.partition_figures), p_limit bigint,
--         p_partitions_max int (of a queue with more, only the notable partitions are examined)
-- out:    as queen.partition_figures
-- locks:  none
-- raises: never
create or replace function queen.busiest_partitions(p_queue uuid, p_group text, p_limit bigint, p_partitions_max int)
returns table (id uuid, name text, queue_name text, created_at timestamptz, head bigint, tail bigint, unread bigint,
               leased bigint, cursor bigint, oldest_at timestamptz, unread_at timestamptz, newest_at timestamptz,
               served_at timestamptz, lease_id uuid, lease_until timestamptz, lag_seconds float8)
language plpgsql set enable_sort = on set enable_hashagg = on set enable_seqscan = on set plan_cache_mode = force_custom_plan as $$
declare
    v_ids uuid[];
begin
    if p_queue is not null then
        v_ids := array(select p.id from queen.partitions p where p.queue_id = p_queue limit p_partitions_max + 1);
    end if;
    if p_queue is null or cardinality(v_ids) > p_partitions_max then
        v_ids := array(select n.partition_id from queen.notable_partitions n
                       where (p_queue is null or n.queue_id = p_queue) and (p_group is null or n.consumer_group = p_group)
                       group by n.partition_id
                       order by max(n.pending) desc
                       limit least(p_limit, p_partitions_max));
    end if;
    return query
    select f.* from queen.partition_figures(v_ids, p_group) f
    order by f.unread desc, f.queue_name, f.name
    limit p_limit;
end $$;

-- queen.partition_page: one page of partitions, most unread messages first.
-- in:     p_queue uuid (null = of all queues), p_group text (as queen.partition_figures), p_search text (a part of the name,
--         case-insensitive; null = any), p_limit bigint, p_offset bigint, p_partitions_max int (if more match: first
--         those that were notable when their queue was measured, then the others of the queue by name)
-- out:    as queen.partition_figures
-- locks:  none
-- raises: never
create or replace function queen.partition_page(
    p_queue uuid, p_group text, p_search text, p_limit bigint, p_offset bigint, p_partitions_max int)
returns table (id uuid, name text, queue_name text, created_at timestamptz, head bigint, tail bigint, unread bigint,
               leased bigint, cursor bigint, oldest_at timestamptz, unread_at timestamptz, newest_at timestamptz,
               served_at timestamptz, lease_id uuid, lease_until timestamptz, lag_seconds float8)
language plpgsql set enable_sort = on set enable_hashagg = on set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_search text := lower(p_search);
    v_offset int := least(p_offset, 1000000000);
    v_limit int := least(p_limit, 1000000000);
    v_ids uuid[];
    v_notable uuid[];
begin
    if p_queue is not null then
        v_ids := array(select p.id from queen.partitions p
                       where p.queue_id = p_queue and (v_search is null or position(v_search in lower(p.name)) > 0)
                       limit p_partitions_max + 1);
    end if;
    if cardinality(v_ids) <= p_partitions_max then
        return query
        select f.* from queen.partition_figures(v_ids, p_group) f
        order by f.unread desc, f.name
        limit v_limit offset v_offset;
        return;
    end if;
    v_notable := array(select n.partition_id from queen.notable_partitions n
                       where (p_queue is null or n.queue_id = p_queue) and (p_group is null or n.consumer_group = p_group)
                         and (v_search is null
                              or exists (select 1 from queen.partitions p
                                         where p.id = n.partition_id and position(v_search in lower(p.name)) > 0))
                       group by n.partition_id
                       order by max(n.pending) desc, n.partition_id
                       limit p_partitions_max);
    v_ids := v_notable[v_offset + 1 : v_offset + v_limit];
    if p_queue is not null then
        v_ids := v_ids || array(select p.id from queen.partitions p
                                where p.queue_id = p_queue and p.id <> all (v_notable)
                                  and (v_search is null or position(v_search in lower(p.name)) > 0)
                                order by p.name
                                limit v_limit - cardinality(v_ids)
                                offset greatest(0, v_offset - cardinality(v_notable)));
    end if;
    -- Pages follow the measurement; within a page, current figures decide.
    return query
    select f.* from queen.partition_figures(v_ids, p_group) f
    order by f.unread desc, f.queue_name, f.name;
end $$;

-- queen.group_partitions: for several queues, the partitions with a group's most unread messages.
-- in:     p_queues uuid[], p_group text, p_limit bigint (of each queue), p_partitions_max int (of all together, about)
-- out:    as queen.partition_figures, in order of queue, of each queue the most unread first
-- locks:  none
-- raises: never
create or replace function queen.group_partitions(p_queues uuid[], p_group text, p_limit bigint, p_partitions_max int)
returns table (id uuid, name text, queue_name text, created_at timestamptz, head bigint, tail bigint, unread bigint,
               leased bigint, cursor bigint, oldest_at timestamptz, unread_at timestamptz, newest_at timestamptz,
               served_at timestamptz, lease_id uuid, lease_until timestamptz, lag_seconds float8)
language plpgsql set enable_sort = on as $$
declare
    -- The limit for one queue is shared by all.
    v_limit bigint := least(p_limit, greatest(10, p_partitions_max / greatest(1, cardinality(p_queues))));
begin
    return query
    select f.* from queen.partition_figures(array(
        select c.id from unnest(p_queues) a (id)
        cross join lateral (
            select count(*) > v_limit as large
            from (select 1 from queen.partitions p where p.queue_id = a.id limit v_limit + 1) n) s
        cross join lateral (
            (select p.id from queen.partitions p where not s.large and p.queue_id = a.id)
            union all
            -- For a large queue, the notable partitions, and if they are few, some more by name.
            (select m.id
             from ((select n.partition_id as id, n.pending from queen.notable_partitions n
                    where n.queue_id = a.id and n.consumer_group = p_group
                    order by n.pending desc limit v_limit)
                   union all
                   (select p.id, -1 from queen.partitions p where p.queue_id = a.id order by p.name limit v_limit)) m
             where s.large
             group by m.id
             order by max(m.pending) desc limit v_limit)) c), p_group) f
    order by f.queue_name, f.unread desc, f.name;
end $$;

-- queen.lagging_partitions: the partitions where groups are furthest behind in time.
-- in:     p_seconds bigint (minimum age of unread messages), p_limit bigint
-- out:    consumer_group text, then as queen.partition_figures; the oldest first
-- locks:  none
-- raises: never
-- The candidates come from the latest measurements; their figures are current.
create or replace function queen.lagging_partitions(p_seconds bigint, p_limit bigint)
returns table (consumer_group text, id uuid, name text, queue_name text, created_at timestamptz, head bigint, tail bigint,
               unread bigint, leased bigint, cursor bigint, oldest_at timestamptz, unread_at timestamptz,
               newest_at timestamptz, served_at timestamptz, lease_id uuid, lease_until timestamptz, lag_seconds float8)
language plpgsql set enable_sort = on set enable_seqscan = on set enable_hashagg = on set plan_cache_mode = force_custom_plan as $$
declare
    v_before timestamptz := queen.now() - make_interval(secs => least(p_seconds, 100000000000));
begin
    return query
    select g.consumer_group, f.*
    from (select k.consumer_group::text, array_agg(k.partition_id) as ids
          from (select n.consumer_group, n.partition_id from queen.notable_partitions n
                join queen.group_counts c on c.queue_id = n.queue_id and c.consumer_group = n.consumer_group
                where n.oldest_at <= v_before and (c.members > 0 or c.consumer_group <> '__QUEUE_MODE__')
                order by n.oldest_at limit p_limit) k
          group by k.consumer_group) g
    cross join lateral queen.partition_figures(g.ids, g.consumer_group) f
    where f.unread_at <= v_before
    order by f.unread_at, f.queue_name, f.name, g.consumer_group;
end $$;

-- queen.group_figures: consumer groups and the queues they read, from the counts.
-- in:     p_group text (null = all), p_queue text (null = all), p_limit bigint, p_offset bigint
-- out:    consumer_group text, queue_id uuid, queue_name text, members bigint, pending_partitions bigint,
--         unread bigint, leased bigint, oldest_at timestamptz (of what is unread, or null), served_at timestamptz,
--         since timestamptz, registered_at timestamptz (null: it is not registered), lag_seconds float8 (since oldest_at)
-- locks:  none
-- raises: never
create or replace function queen.group_figures(p_group text, p_queue text, p_limit bigint, p_offset bigint)
returns table (consumer_group text, queue_id uuid, queue_name text, members bigint, pending_partitions bigint,
               unread bigint, leased bigint, oldest_at timestamptz, served_at timestamptz, since timestamptz,
               registered_at timestamptz, lag_seconds float8)
language plpgsql set enable_sort = on set enable_seqscan = on set enable_hashjoin = on set plan_cache_mode = force_custom_plan as $$
begin
    return query
    select k.consumer_group, q.id, k.queue_name, coalesce(g.members, 0), coalesce(g.pending_partitions, 0), u.unread,
           least(u.unread, coalesce(g.leased, 0)), case when u.unread > 0 then g.oldest_at end, g.served_at, r.since, r.created_at,
           case when u.unread > 0 then extract(epoch from queen.now() - g.oldest_at)::float8 end
    from (select g.consumer_group::text, q.name as queue_name
          from queen.group_counts g join queen.queues q on q.id = g.queue_id
          where (p_group is null or g.consumer_group = p_group) and (p_queue is null or q.name = p_queue)
            and (g.members > 0 or g.consumer_group <> '__QUEUE_MODE__')
          union
          select r.consumer_group, r.queue_name from queen.groups r
          where (p_group is null or r.consumer_group = p_group) and (p_queue is null or r.queue_name = p_queue)) k
    left join queen.queues q on q.name = k.queue_name
    left join queen.queue_counts c on c.queue_id = q.id
    left join queen.group_counts g on g.queue_id = q.id and g.consumer_group = k.consumer_group
    left join queen.groups r on r.queue_name = k.queue_name and r.consumer_group = k.consumer_group and r.partition_name = ''
    cross join lateral (
        select coalesce(least(greatest(c.appended - c.removed, 0), greatest(c.appended - coalesce(g.consumed, c.removed), 0)), 0) as unread) u
    order by k.queue_name, k.consumer_group
    limit p_limit offset p_offset;
end $$;

-- queen.group_list: queen.group_figures with each group's start mode.
-- in:     as queen.group_figures
-- out:    as queen.group_figures, and mode text: as registered for the whole queue, or else for a partition; null: unknown
-- locks:  none
-- raises: never
create or replace function queen.group_list(p_group text, p_queue text, p_limit bigint, p_offset bigint)
returns table (consumer_group text, queue_id uuid, queue_name text, members bigint, pending_partitions bigint,
               unread bigint, leased bigint, oldest_at timestamptz, served_at timestamptz, since timestamptz,
               registered_at timestamptz, lag_seconds float8, mode text)
language plpgsql set enable_sort = on as $$
begin
    return query
    select f.*, (select g.mode from queen.groups g
                 where g.queue_name = f.queue_name and g.consumer_group = f.consumer_group
                 order by g.partition_name limit 1)
    from queen.group_figures(p_group, p_queue, p_limit, p_offset) f
    order by f.queue_name, f.consumer_group;
end $$;

-- queen.clear: deletes the messages of a queue, or of one of its partitions, and keeps everything else.
-- in:     p_queue text, p_partition text (null = all)
-- out:    bigint: the number of deleted messages; null if the queue or partition does not exist
-- locks:  heads rows in id order, then the queue_counts row
-- raises: never
-- Deferred messages stay, and arrive later. A lease on deleted messages covers nothing anymore; an ack of it changes nothing.
create or replace function queen.clear(p_queue text, p_partition text)
returns bigint language plpgsql set enable_sort = on set jit = off as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_partitions uuid[];
    v_removed bigint;
begin
    v_partitions := array(select p.id from queen.partitions p
                          where p.queue_id = v_queue and (p_partition is null or p.name = p_partition)
                          order by p.id);
    if v_queue is null or p_partition is not null and v_partitions = '{}' then
        return null;
    end if;
    perform 1 from unnest(v_partitions) a (id)
    cross join lateral (select 1 from queen.heads h where h.partition_id = a.id
                        order by h.generation desc limit 1
                        for no key update) h;
    with cleared as (
        update queen.heads as h
        set tail = h.head, version = h.version + 1, generation = queen.next_generation(h.generation, h.version)
        from (select a.id, k.generation, k.head - k.tail as removed
              from unnest(v_partitions) a (id) cross join lateral queen.head_of(a.id) k
              offset 0) a
        where h.partition_id = any (array[a.id]) and h.generation = a.generation and h.tail < h.head
        returning a.removed)
    select coalesce(sum(c.removed), 0) into v_removed from cleared c;
    perform queen.doubt(array[v_queue]);
    return v_removed;
end $$;

-- queen.overview: figures of the whole installation in one row.
-- in:     nothing
-- out:    queues, partitions, namespaces, tasks, stored, unread, leased, dead_letters bigint; then, over all groups and
--         queues, time_avg, time_median, time_min, time_max (seconds that the oldest unread message has waited) and
--         offset_avg, offset_median, offset_min, offset_max (unread messages) float8; age float8 (seconds since the oldest
--         measurement that it is based on, or null)
-- locks:  none
-- raises: never
create or replace function queen.overview()
returns table (queues bigint, partitions bigint, namespaces bigint, tasks bigint, stored bigint, unread bigint,
               leased bigint, dead_letters bigint, time_avg float8, time_median float8, time_min float8, time_max float8,
               offset_avg float8, offset_median float8, offset_min float8, offset_max float8, age float8)
language plpgsql set enable_sort = on set enable_seqscan = on set enable_hashjoin = on set enable_hashagg = on
set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_now timestamptz := queen.now();
begin
    return query
    select f.queues, f.partitions, f.namespaces, f.tasks, f.stored, f.unread, f.leased, f.dead_letters,
           coalesce(g.time_avg, 0), coalesce(g.time_median, 0), coalesce(g.time_min, 0), coalesce(g.time_max, 0),
           coalesce(g.offset_avg, 0), coalesce(g.offset_median, 0), coalesce(g.offset_min, 0), coalesce(g.offset_max, 0),
           extract(epoch from v_now - f.measured_at)::float8
    from (select count(*) as queues, coalesce(sum(q.partitions), 0)::bigint as partitions,
                 count(distinct nullif(q.namespace, '')) as namespaces, count(distinct nullif(q.task, '')) as tasks,
                 coalesce(sum(q.stored), 0)::bigint as stored, coalesce(sum(q.unread), 0)::bigint as unread,
                 coalesce(sum(q.leased), 0)::bigint as leased, coalesce(sum(q.dead_letters), 0)::bigint as dead_letters,
                 min(nullif(q.measured_at, '-infinity')) as measured_at
          from queen.queue_figures q) f
    cross join (
        select avg(l.seconds) as time_avg, percentile_cont(0.5) within group (order by l.seconds) as time_median,
               min(l.seconds) as time_min, max(l.seconds) as time_max,
               avg(l.unread)::float8 as offset_avg, percentile_cont(0.5) within group (order by l.unread) as offset_median,
               min(l.unread)::float8 as offset_min, max(l.unread)::float8 as offset_max
        from (select g.unread, coalesce(g.lag_seconds, 0) as seconds
              from queen.group_figures(null, null, 1000000, 0) g where g.members > 0) l) g;
end $$;

-- queen.queue_list: queues with figures, newest first.
-- in:     p_name text, p_namespace text, p_task text, p_search text (a part of the name), p_patterns text[] (as for like);
--         null = any; p_limit bigint, p_offset bigint
-- out:    the columns of queen.queue_figures
-- locks:  none
-- raises: never
create or replace function queen.queue_list(
    p_name text, p_namespace text, p_task text, p_search text, p_patterns text[], p_limit bigint, p_offset bigint)
returns setof queen.queue_figures
language plpgsql set enable_sort = on set enable_seqscan = on set enable_hashjoin = on set plan_cache_mode = force_custom_plan
set jit = off as $$
begin
    return query
    select f.* from queen.queue_figures f
    where (p_name is null or f.name = p_name) and (p_namespace is null or f.namespace = p_namespace)
      and (p_task is null or f.task = p_task)
      and (p_search is null or position(lower(p_search) in lower(f.name)) > 0)
      and (p_patterns is null or f.name like any (p_patterns))
    order by f.created_at desc, f.id
    limit p_limit offset p_offset;
end $$;

-- queen.label_figures: namespaces, or tasks, with figures.
-- in:     p_namespaces boolean (otherwise: tasks)
-- out:    label text, queues bigint, partitions bigint, stored bigint, unread bigint, in order of label
-- locks:  none
-- raises: never
create or replace function queen.label_figures(p_namespaces boolean)
returns table (label text, queues bigint, partitions bigint, stored bigint, unread bigint)
language plpgsql set enable_sort = on set enable_seqscan = on set enable_hashjoin = on set enable_hashagg = on
set plan_cache_mode = force_custom_plan set jit = off as $$
begin
    return query
    select case when p_namespaces then f.namespace else f.task end as label, count(*), sum(f.partitions)::bigint,
           sum(f.stored)::bigint, sum(f.unread)::bigint
    from queen.queue_figures f
    group by 1 order by 1;
end $$;

-- queen.cursor: a group's position in a partition.
-- in:     p_group text, p_queue text, p_partition text
-- out:    bigint: the first unfinished offset; null if it has not read there
-- locks:  none
-- raises: never
create or replace function queen.cursor(p_group text, p_queue text, p_partition text)
returns bigint language plpgsql stable as $$
begin
    return (select greatest(c.cursor, h.tail)
            from queen.queues q
            join queen.partitions p on p.queue_id = q.id and p.name = p_partition
            cross join lateral queen.head_of(p.id) h
            cross join lateral queen.reader_of(p.id, p_group) c
            where q.name = p_queue);
end $$;

-- queen.queue_options: a stored queue.
-- in:     p_queue uuid
-- out:    its row; none if the queue does not exist
-- locks:  none
-- raises: never
create or replace function queen.queue_options(p_queue uuid)
returns setof queen.queues language plpgsql stable as $$
begin
    return query select q.* from queen.queues q where q.id = p_queue;
end $$;

-- queen.named_options: a stored queue by name.
-- in:     p_queue text
-- out:    its row; none if the queue does not exist
-- locks:  none
-- raises: never
create or replace function queen.named_options(p_queue text)
returns setof queen.queues language plpgsql stable as $$
begin
    return query select q.* from queen.queues q where q.name = p_queue;
end $$;

-- queen.trouble: leases and dead letters, in one row.
-- in:     p_letters_max int (dead letters to examine: more are counted, but not grouped)
-- out:    leased_partitions bigint, leased bigint, consumed bigint (messages below the cursors of all groups together),
--         dead_letters bigint, dead_partitions bigint, errors text[], counts bigint[] (the ten most frequent, of those
--         examined)
-- locks:  none
-- raises: never
create or replace function queen.trouble(p_letters_max int)
returns table (leased_partitions bigint, leased bigint, consumed bigint, dead_letters bigint, dead_partitions bigint,
               errors text[], counts bigint[])
language plpgsql set enable_sort = on set enable_seqscan = on set enable_hashagg = on set plan_cache_mode = force_custom_plan
set jit = off as $$
begin
    return query
    with letters as materialized (
        select d.partition_id, left(coalesce(d.error, ''), 200) as error from queen.dead_letter_rows d limit p_letters_max),
    frequent as (
        select l.error, count(*) as count from letters l group by l.error order by count(*) desc, l.error limit 10)
    select g.leased_partitions, g.leased, g.consumed,
           (select coalesce(sum(c.dead_letters), 0)::bigint from queen.queue_counts c),
           (select count(distinct l.partition_id) from letters l),
           (select coalesce(array_agg(f.error order by f.count desc, f.error), '{}') from frequent f),
           (select coalesce(array_agg(f.count order by f.count desc, f.error), '{}') from frequent f)
    from (select coalesce(sum(g.leased_partitions), 0)::bigint as leased_partitions,
                 coalesce(sum(g.leased), 0)::bigint as leased, coalesce(sum(g.consumed), 0)::bigint as consumed
          from queen.group_counts g where g.members > 0) g;
end $$;

-- queen.gauges: figures of each queue for monitoring.
-- in:     p_limit bigint
-- out:    queue_name text, consumer_group text (null on a row about dead letters), unread bigint (or dead letters),
--         lag_seconds float8; the groups with most unread messages, and the queues with most dead letters
-- locks:  none
-- raises: never
create or replace function queen.gauges(p_limit bigint)
returns table (queue_name text, consumer_group text, unread bigint, lag_seconds float8)
language plpgsql set enable_sort = on set enable_seqscan = on set enable_hashjoin = on set plan_cache_mode = force_custom_plan
set jit = off as $$
begin
    return query
    (select g.queue_name, g.consumer_group, g.unread, coalesce(g.lag_seconds, 0)
     from queen.group_figures(null, null, 1000000, 0) g where g.queue_id is not null
     order by g.unread desc, g.queue_name, g.consumer_group limit p_limit)
    union all
    (select q.name, null, c.dead_letters, null
     from queen.queue_counts c join queen.queues q on q.id = c.queue_id
     where c.dead_letters > 0
     order by c.dead_letters desc, q.name limit p_limit);
end $$;

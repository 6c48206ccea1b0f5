-- queen.partitions_beyond: which partitions would be more than their queue may have.
-- in:     p_queues text[], p_partitions text[], p_create boolean[] (as queen.open takes them), p_max int
-- out:    boolean[] (same length): it must not be made
-- locks:  the queues rows of partitions that are to be made, in name order, against others who count as well
-- raises: never
-- Why count: a counter in the queues row would have to be kept by everybody who makes or removes a partition, limited or not.
-- At most p_max index entries are looked at, and only for partitions that do not exist yet.
create or replace function queen.partitions_beyond(
    p_queues text[], p_partitions text[], p_create boolean[], p_max int)
returns boolean[] language plpgsql
set enable_sort = on set enable_seqscan = on set enable_hashjoin = on set enable_indexonlyscan = on
set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_queues text[];
    v_beyond boolean[];
begin
    select array_agg(distinct a.queue) into v_queues
    from unnest(p_queues, p_partitions, p_create) a (queue, partition, create_it)
    join queen.queues q on q.name = a.queue
    where a.create_it
      and not exists (select 1 from queen.partitions k where k.queue_id = q.id and k.name = a.partition);
    if v_queues is null then
        return array_fill(false, array[cardinality(p_queues)]);
    end if;

    perform 1 from queen.queues q where q.name = any (v_queues) order by q.name for no key update;

    -- What others have made is seen from here on.
    with asked as (
        select a.queue, a.partition, min(a.ordinal) as first, bool_or(a.create_it is null) as regardless
        from unnest(p_queues, p_partitions, p_create) with ordinality a (queue, partition, create_it, ordinal)
        where a.queue = any (v_queues) and a.create_it is distinct from false
        group by a.queue, a.partition),
    made as materialized (
        select q.id, q.name,
               (select count(*) from (select 1 from queen.partitions k where k.queue_id = q.id limit p_max) k) as count
        from queen.queues q where q.name = any (v_queues)),
    ranked as (
        select s.queue, s.partition, s.regardless,
               m.count + row_number() over (partition by s.queue order by s.regardless desc, s.first) as rank
        from asked s
        join made m on m.name = s.queue
        where not exists (select 1 from queen.partitions k where k.queue_id = m.id and k.name = s.partition))
    select array_agg(r.rank is not null and r.rank > p_max and not r.regardless order by a.ordinal) into v_beyond
    from unnest(p_queues, p_partitions) with ordinality a (queue, partition, ordinal)
    left join ranked r on r.queue = a.queue and r.partition = a.partition;
    return v_beyond;
end $$;

-- queen.creates_queues: whether a queue is made by the first push to it.
-- in:     nothing
-- out:    boolean: queen.auto_create of the session; true without it
-- locks:  none
-- raises: never
create or replace function queen.creates_queues()
returns boolean language sql stable as $$
    select coalesce(nullif(current_setting('queen.auto_create', true), ''), 'on')::boolean
$$;

-- queen.queue_limit: how many queues there may be.
-- in:     nothing
-- out:    int: queen.max_queues of the session; 0, any number, without it
-- locks:  none
-- raises: never
create or replace function queen.queue_limit()
returns int language sql stable as $$
    select coalesce(nullif(current_setting('queen.max_queues', true), ''), '0')::int
$$;

-- queen.queues_refused: which queues must not be made.
-- in:     p_queues text[], p_create boolean[] (as queen.open takes them), p_explicit boolean (not by a push: queen.creates_queues does
--         not matter)
-- out:    int[] (same length): 0 may be made, or is there; 2 more than there may be; 3 not by itself. Null: all may be made
-- locks:  with a limit and a queue to be made, an advisory lock until the end of the transaction, against others who count as well
-- raises: never
-- At most queen.queue_limit index entries are looked at, and only for queues that do not exist yet.
create or replace function queen.queues_refused(p_queues text[], p_create boolean[], p_explicit boolean)
returns int[] language plpgsql
set enable_sort = on set enable_seqscan = on set enable_indexonlyscan = on set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_max int := queen.queue_limit();
    v_by_itself boolean := p_explicit or queen.creates_queues();
    v_refused int[];
begin
    if v_max = 0 and v_by_itself
       or not exists (select 1 from unnest(p_queues, p_create) a (queue, create_it)
                      where a.create_it and not exists (select 1 from queen.queues q where q.name = a.queue)) then
        return null;
    end if;
    if v_max > 0 then
        perform pg_advisory_xact_lock(hashtextextended('queen.queues', 0));
    end if;

    -- What others have made is seen from here on.
    with asked as (
        select a.queue, min(a.ordinal) as first, bool_or(a.create_it is null) as regardless
        from unnest(p_queues, p_create) with ordinality a (queue, create_it, ordinal)
        where a.create_it is distinct from false and not exists (select 1 from queen.queues q where q.name = a.queue)
        group by a.queue),
    ranked as (
        select s.queue, s.regardless, row_number() over (order by s.regardless desc, s.first) as rank from asked s),
    made as (
        select count(*) as count from (select 1 from queen.queues q limit v_max) q)
    select array_agg(case when r.queue is null or r.regardless then 0
                          when not v_by_itself then 3
                          when v_max > 0 and m.count + r.rank > v_max then 2
                          else 0 end order by a.ordinal)
    into v_refused
    from unnest(p_queues) with ordinality a (queue, ordinal)
    cross join made m
    left join ranked r on r.queue = a.queue;
    return v_refused;
end $$;

-- queen.open_with_options: finds partitions by name and, when asked, creates them and their queues.
-- in:     p_queues text[], p_partitions text[], p_ids uuid[] (for new ones), p_namespaces text[], p_tasks text[]
--         p_create boolean[] (same length; a null namespace or task is taken from the queue's name; a null p_create makes
--         the partition whatever the limits, because what goes there was accepted before)
-- out:    position int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int, encrypted boolean (the queue wants its
--         payloads encrypted), refusal int (only of what must not be made, and then all else is null: 1 the queue has all the
--         partitions it may have, 2 there are all the queues that there may be, 3 the queue does not exist and is not made by itself);
--         no row for what does not exist
-- locks:  queen.queues_refused; new queues rows in name order, then new partitions rows in (queue, name) order, each with its
--         heads row; with a limit, the queues rows of new partitions before those
-- raises: never for a single item: names are validated at the door
-- The limits are queen.max_partitions, queen.max_queues and queen.auto_create of the session: a broker of an earlier release has
-- none, and is limited by none.
create or replace function queen.open_with_options(
    p_queues text[], p_partitions text[], p_ids uuid[], p_namespaces text[], p_tasks text[], p_create boolean[])
returns table ("position" int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int, encrypted boolean,
               refusal int)
language plpgsql as $$
declare
    v_max int := coalesce(nullif(current_setting('queen.max_partitions', true), ''), '0')::int;
    v_refused int[];
    v_beyond boolean[];
begin
    if true = any (p_create) or array_position(p_create, null) is not null then
        v_refused := queen.queues_refused(p_queues, p_create, false);
        if v_refused is not null then
            select array_agg(case when a.refused = 0 then a.create_it else false end order by a.ordinal) into p_create
            from unnest(p_create, v_refused) with ordinality a (create_it, refused, ordinal);
        end if;

        insert into queen.queues as q (name, namespace, task)
        select distinct on (a.queue) a.queue,
               coalesce(a.namespace, split_part(a.queue, '.', 1)),
               coalesce(a.task, split_part(a.queue, '.', 2))
        from unnest(p_queues, p_namespaces, p_tasks, p_create) a (queue, namespace, task, create_it)
        where a.create_it is distinct from false
          and not exists (select 1 from queen.queues k where k.name = any (array[a.queue]))
        order by a.queue
        on conflict (name) do nothing;

        if v_max > 0 then
            v_beyond := queen.partitions_beyond(p_queues, p_partitions, p_create, v_max);
            select array_agg(a.create_it is distinct from false and not a.beyond order by a.ordinal) into p_create
            from unnest(p_create, v_beyond) with ordinality a (create_it, beyond, ordinal);
        end if;

        with made as (
            insert into queen.partitions as p (id, queue_id, name)
            select distinct on (a.queue, a.partition) a.id, q.id, a.partition
            from unnest(p_queues, p_partitions, p_ids, p_create) a (queue, partition, id, create_it)
            join queen.queues q on q.name = any (array[a.queue])
            where a.create_it is distinct from false
              and (select k.id from queen.partitions k where k.queue_id = q.id and k.name = a.partition) is null
            order by a.queue, a.partition
            on conflict on constraint partitions_queue_id_name_key do nothing
            returning p.id, p.queue_id)
        insert into queen.heads as h (partition_id, queue_id)
        select m.id, m.queue_id from made m;
    end if;

    return query
    select a.ordinal::int, p.id, p.number, h.head, q.id,
           queen.dedup_window(q.dedup_window_seconds, q.retention_enabled, q.retention_seconds), q.encryption_enabled, null::int
    from unnest(p_queues, p_partitions) with ordinality a (queue, partition, ordinal)
    join queen.queues q on q.name = any (array[a.queue])
    cross join lateral (select k.id, k.number from queen.partitions k
                        where k.queue_id = q.id and k.name = a.partition offset 0) p
    cross join lateral queen.head_of(p.id) h;

    if v_refused is not null or true = any (v_beyond) then
        return query
        select a.ordinal::int, null::uuid, null::bigint, null::bigint, null::uuid, null::int, null::boolean,
               case when a.refused > 0 then a.refused else 1 end
        from unnest(p_queues, v_refused, v_beyond) with ordinality a (queue, refused, beyond, ordinal)
        where a.refused > 0 or a.beyond;
    end if;
end $$;

-- queen.open: the same with less of an answer. Brokers of 0.1.0 call it; to be removed with 0.3.0, when compatible.sql calls the other.
-- in:     as queen.open_with_options
-- out:    the first six columns; a row without an id for what must not be made
-- locks:  as queen.open_with_options
-- raises: never for a single item
create or replace function queen.open(
    p_queues text[], p_partitions text[], p_ids uuid[], p_namespaces text[], p_tasks text[], p_create boolean[])
returns table ("position" int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int)
language plpgsql as $$
begin
    return query
    select o.position, o.id, o.number, o.head, o.queue_id, o.dedup_seconds
    from queen.open_with_options(p_queues, p_partitions, p_ids, p_namespaces, p_tasks, p_create) o;
end $$;

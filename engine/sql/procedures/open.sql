-- queen.partitions_beyond: which new partitions would exceed the limit of their queue.
-- in:     p_queues text[], p_partitions text[], p_create boolean[] (as in queen.open), p_max int
-- out:    boolean[] (same length): it must not be created
-- locks:  the queues rows of partitions to create, in name order, against concurrent counting
-- raises: never
-- Counting is cheaper than maintaining a counter in the queues row with every creation and removal, limited or not. It reads
-- at most p_max index entries, and only for partitions that do not exist yet.
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

    -- Concurrent creations are visible from here on.
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

-- queen.creates_queues: whether the first push to a queue creates it.
-- in:     nothing
-- out:    boolean: queen.auto_create of the session; true without it
-- locks:  none
-- raises: never
create or replace function queen.creates_queues()
returns boolean language sql stable as $$
    select coalesce(nullif(current_setting('queen.auto_create', true), ''), 'on')::boolean
$$;

-- queen.queue_limit: the maximum number of queues.
-- in:     nothing
-- out:    int: queen.max_queues of the session; 0 (unlimited) without it
-- locks:  none
-- raises: never
create or replace function queen.queue_limit()
returns int language sql stable as $$
    select coalesce(nullif(current_setting('queen.max_queues', true), ''), '0')::int
$$;

-- queen.queues_refused: which queues must not be created.
-- in:     p_queues text[], p_create boolean[] (as in queen.open), p_explicit boolean (not by a push: queen.creates_queues does
--         not matter)
-- out:    int[] (same length): 0 allowed or exists; 2 exceeds the limit; 3 not created automatically. Null: all allowed
-- locks:  with a limit and a queue to create, an advisory lock until the end of the transaction, against concurrent counting
-- raises: never
-- Reads at most queen.queue_limit index entries, and only for queues that do not exist yet.
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

    -- Concurrent creations are visible from here on.
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

-- queen.open_with_options: finds partitions by name and, if requested, creates them and their queues.
-- in:     p_queues text[], p_partitions text[], p_ids uuid[] (for new ones), p_namespaces text[], p_tasks text[]
--         p_create boolean[] (same length; a null namespace or task is taken from the queue's name; a null p_create makes
--         the partition regardless of limits, because its messages were accepted before)
--         p_wait int: milliseconds to wait for locked rows; 0 omits partitions that need them, null waits as long as lock_timeout
--         allows
-- out:    position int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int, encrypted boolean (the queue
--         requires its payloads encrypted), refusal int (only if it was not created, and then all else is null: 1 the queue has
--         the maximum number of partitions, 2 the maximum number of queues exists, 3 the queue does not exist and is not created
--         automatically, 4 another session has locked a row that it needs);
--         no row for what does not exist
-- locks:  as queen.make_partitions or queen.try_make_partitions
-- raises: lock_not_available when the wait times out. Never for a single item: names are validated by the broker
create or replace function queen.open_with_options(
    p_queues text[], p_partitions text[], p_ids uuid[], p_namespaces text[], p_tasks text[], p_create boolean[], p_wait int)
returns table ("position" int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int, encrypted boolean,
               refusal int)
language plpgsql as $$
declare
    v_refused int[];
begin
    if true = any (p_create) or array_position(p_create, null) is not null then
        if p_wait = 0 then
            v_refused := queen.try_make_partitions(p_queues, p_partitions, p_ids, p_namespaces, p_tasks, p_create);
        else
            perform queen.limit_wait(p_wait);
            v_refused := queen.make_partitions(p_queues, p_partitions, p_ids, p_namespaces, p_tasks, p_create);
        end if;
    end if;

    return query
    select a.ordinal::int, p.id, p.number, h.head, q.id,
           queen.dedup_window(q.dedup_window_seconds, q.retention_enabled, q.retention_seconds), q.encryption_enabled, null::int
    from unnest(p_queues, p_partitions) with ordinality a (queue, partition, ordinal)
    join queen.queues q on q.name = any (array[a.queue])
    cross join lateral (select k.id, k.number from queen.partitions k
                        where k.queue_id = q.id and k.name = a.partition offset 0) p
    cross join lateral queen.head_of(p.id) h;

    if v_refused is not null then
        return query
        select a.ordinal::int, null::uuid, null::bigint, null::bigint, null::uuid, null::int, null::boolean, a.refused
        from unnest(v_refused) with ordinality a (refused, ordinal)
        where a.refused > 0;
    end if;
end $$;

-- queen.make_partitions: creates missing partitions, and their queues.
-- in:     as queen.open_with_options without p_wait
-- out:    int[] (same length): 0, or the refusal as in queen.open_with_options. Null: nothing was refused
-- locks:  queen.queues_refused; new queues rows in name order, then new partitions rows in (queue, name) order, each with its
--         heads row; with a limit, the queues rows of new partitions before those
-- raises: lock_not_available
-- The limits are queen.max_partitions, queen.max_queues and queen.auto_create of the session: brokers of earlier releases do
-- not set them, and are not limited.
create or replace function queen.make_partitions(
    p_queues text[], p_partitions text[], p_ids uuid[], p_namespaces text[], p_tasks text[], p_create boolean[])
returns int[] language plpgsql as $$
declare
    v_max int := coalesce(nullif(current_setting('queen.max_partitions', true), ''), '0')::int;
    v_refused int[] := queen.queues_refused(p_queues, p_create, false);
    v_beyond boolean[];
begin
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

    if v_refused is null and not coalesce(true = any (v_beyond), false) then
        return null;
    end if;
    return array(
        select case when a.refused > 0 then a.refused when a.beyond then 1 else 0 end
        from unnest(v_refused, v_beyond) with ordinality a (refused, beyond, ordinal)
        order by a.ordinal);
end $$;

-- queen.try_make_partitions: queen.make_partitions for partitions that no other session blocks.
-- in:     as queen.make_partitions
-- out:    as queen.make_partitions, 4 for omitted ones
-- locks:  queues rows of new partitions, skipping busy ones; then as queen.make_partitions, waiting briefly
-- raises: never
-- Usually it is the queues row that is locked, which is visible without waiting. Other blockers (a session that has created
-- the same queue or partition and not committed, or one that counts queues) are found queue by queue, in a different order
-- each time, so that unblocked queues make progress however many are blocked.
create or replace function queen.try_make_partitions(
    p_queues text[], p_partitions text[], p_ids uuid[], p_namespaces text[], p_tasks text[], p_create boolean[])
returns int[] language plpgsql as $$
declare
    v_started timestamptz := clock_timestamp();
    v_missing int[];
    v_locked text[];
    v_create boolean[];
    v_refused int[];
    v_queue record;
    v_answer int[];
begin
    v_missing := array(
        select a.ordinal::int
        from unnest(p_queues, p_partitions, p_create) with ordinality a (queue, partition, create_it, ordinal)
        where a.create_it is distinct from false
          and (select k.id from queen.queues q cross join lateral (
                   select p.id from queen.partitions p where p.queue_id = q.id and p.name = a.partition offset 0) k
               where q.name = any (array[a.queue])) is null);
    if v_missing = '{}' then
        return null;
    end if;
    v_locked := array(
        select q.name from queen.queues q
        where q.name = any (array(select distinct p_queues[m.ordinal] from unnest(v_missing) m (ordinal)))
        for key share skip locked);
    v_locked := array(
        select q.name from queen.queues q
        where q.name = any (array(select distinct p_queues[m.ordinal] from unnest(v_missing) m (ordinal)))
          and q.name <> all (v_locked));
    if v_locked <> '{}' then
        v_refused := array(
            select case when a.ordinal = any (v_missing) and a.queue = any (v_locked) then 4 else 0 end
            from unnest(p_queues) with ordinality a (queue, ordinal) order by a.ordinal);
        v_missing := array(select m.ordinal from unnest(v_missing) m (ordinal) where p_queues[m.ordinal] <> all (v_locked));
    end if;
    v_create := array(
        select case when a.ordinal = any (v_missing) then a.create_it else false end
        from unnest(p_create) with ordinality a (create_it, ordinal) order by a.ordinal);

    perform queen.limit_wait(20);
    begin
        v_answer := queen.make_partitions(p_queues, p_partitions, p_ids, p_namespaces, p_tasks, v_create);
        return queen.refusals(v_refused, v_answer);
    exception when lock_not_available then
        null;
    end;

    for v_queue in
        select p_queues[m.ordinal] as name from unnest(v_missing) m (ordinal) group by 1 order by random()
    loop
        v_answer := array(
            select case when a.ordinal = any (v_missing) and a.queue = v_queue.name then 4 else 0 end
            from unnest(p_queues) with ordinality a (queue, ordinal) order by a.ordinal);
        if clock_timestamp() < v_started + interval '200 milliseconds' then
            begin
                v_answer := queen.make_partitions(
                    p_queues, p_partitions, p_ids, p_namespaces, p_tasks,
                    array(select case when a.queue = v_queue.name then a.create_it else false end
                          from unnest(p_queues, v_create) with ordinality a (queue, create_it, ordinal) order by a.ordinal));
            exception when lock_not_available then
                null;
            end;
        end if;
        v_refused := queen.refusals(v_refused, v_answer);
    end loop;
    return v_refused;
end $$;

-- queen.refusals: combines two results about the same partitions.
-- in:     p_one int[], p_other int[] (same length; null = nothing was refused)
-- out:    int[]: per element, the refusal if there is one
-- locks:  none
-- raises: never
create or replace function queen.refusals(p_one int[], p_other int[])
returns int[] language sql immutable as $$
    select case when p_one is null then p_other
                when p_other is null then p_one
                else array(select greatest(a.one, a.other)
                           from unnest(p_one, p_other) with ordinality a (one, other, ordinal) order by a.ordinal) end
$$;

-- queen.open: queen.open_with_options with fewer columns. Called by brokers of 0.1.0; to be removed with 0.3.0, when
-- compatible.sql calls the other.
-- in:     as queen.open_with_options
-- out:    the first six columns; a row without an id for what must not be created
-- locks:  as queen.open_with_options
-- raises: never for a single item
create or replace function queen.open(
    p_queues text[], p_partitions text[], p_ids uuid[], p_namespaces text[], p_tasks text[], p_create boolean[])
returns table ("position" int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int)
language plpgsql as $$
begin
    return query
    select o.position, o.id, o.number, o.head, o.queue_id, o.dedup_seconds
    from queen.open_with_options(p_queues, p_partitions, p_ids, p_namespaces, p_tasks, p_create, null) o;
end $$;

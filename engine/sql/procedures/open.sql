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

-- queen.open: finds partitions by name and, when asked, creates them and their queues.
-- in:     p_queues text[], p_partitions text[], p_ids uuid[] (for new ones), p_namespaces text[], p_tasks text[]
--         p_create boolean[] (same length; a null namespace or task is taken from the queue's name; a null p_create makes
--         the partition whatever the limit, because what goes there was accepted before)
-- out:    position int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int
--         (no row for what does not exist; one without an id for what would be more than the queue may have)
-- locks:  new queues rows in name order, then new partitions rows in (queue, name) order, each with its heads row;
--         with a limit, the queues rows of new partitions before those
-- raises: never for a single item: names are validated at the door
-- The limit is queen.max_partitions of the session: a broker of an earlier release has none, and is limited by none.
create or replace function queen.open(
    p_queues text[], p_partitions text[], p_ids uuid[], p_namespaces text[], p_tasks text[], p_create boolean[])
returns table ("position" int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int)
language plpgsql as $$
declare
    v_max int := coalesce(nullif(current_setting('queen.max_partitions', true), ''), '0')::int;
    v_beyond boolean[];
begin
    if true = any (p_create) or array_position(p_create, null) is not null then
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
           queen.dedup_window(q.dedup_window_seconds, q.retention_enabled, q.retention_seconds)
    from unnest(p_queues, p_partitions) with ordinality a (queue, partition, ordinal)
    join queen.queues q on q.name = any (array[a.queue])
    cross join lateral (select k.id, k.number from queen.partitions k
                        where k.queue_id = q.id and k.name = a.partition offset 0) p
    cross join lateral queen.head_of(p.id) h;

    if true = any (v_beyond) then
        return query
        select a.ordinal::int, null::uuid, null::bigint, null::bigint, null::uuid, null::int
        from unnest(v_beyond) with ordinality a (beyond, ordinal)
        where a.beyond;
    end if;
end $$;

-- queen.open_with_options: the same, and whether the queue wants its payloads encrypted. Beside queen.open because brokers
-- of the last release still call that one.
-- in:     as queen.open
-- out:    as queen.open, and encrypted boolean
-- locks:  as queen.open
-- raises: never for a single item
create or replace function queen.open_with_options(
    p_queues text[], p_partitions text[], p_ids uuid[], p_namespaces text[], p_tasks text[], p_create boolean[])
returns table ("position" int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int, encrypted boolean)
language plpgsql as $$
begin
    -- One by one: a queue that queen.open has just made is seen by later statements only.
    for "position", id, number, head, queue_id, dedup_seconds in
        select * from queen.open(p_queues, p_partitions, p_ids, p_namespaces, p_tasks, p_create)
    loop
        encrypted := coalesce((select q.encryption_enabled from queen.queues q
                               where q.id = any (array[open_with_options.queue_id])), false);
        return next;
    end loop;
end $$;

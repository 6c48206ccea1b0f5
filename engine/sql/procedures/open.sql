-- queen.open: finds partitions by name and, when asked, creates them and their queues.
-- in:     p_queues text[], p_partitions text[], p_ids uuid[] (for new ones), p_namespaces text[], p_tasks text[]
--         p_create boolean[] (same length; a null namespace or task is taken from the queue's name)
-- out:    position int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int
--         (no row for what does not exist)
-- locks:  new queues rows in name order, then new partitions rows in (queue, name) order, each with its heads row
-- raises: never for a single item: names are validated at the door
create or replace function queen.open(
    p_queues text[], p_partitions text[], p_ids uuid[], p_namespaces text[], p_tasks text[], p_create boolean[])
returns table ("position" int, id uuid, number bigint, head bigint, queue_id uuid, dedup_seconds int)
language plpgsql as $$
begin
    if true = any (p_create) then
        insert into queen.queues as q (name, namespace, task)
        select distinct on (a.queue) a.queue,
               coalesce(a.namespace, split_part(a.queue, '.', 1)),
               coalesce(a.task, split_part(a.queue, '.', 2))
        from unnest(p_queues, p_namespaces, p_tasks, p_create) a (queue, namespace, task, create_it)
        where a.create_it and not exists (select 1 from queen.queues k where k.name = any (array[a.queue]))
        order by a.queue
        on conflict (name) do nothing;

        with made as (
            insert into queen.partitions as p (id, queue_id, name)
            select distinct on (a.queue, a.partition) a.id, q.id, a.partition
            from unnest(p_queues, p_partitions, p_ids, p_create) a (queue, partition, id, create_it)
            join queen.queues q on q.name = any (array[a.queue])
            where a.create_it
              and (select k.id from queen.partitions k where k.queue_id = q.id and k.name = a.partition) is null
            order by a.queue, a.partition
            on conflict on constraint partitions_queue_id_name_key do nothing
            returning p.id, p.queue_id)
        insert into queen.heads as h (partition_id, queue_id)
        select m.id, m.queue_id from made m;
    end if;

    return query
    select a.ordinal::int, p.id, p.number, h.head, q.id, q.dedup_window_seconds
    from unnest(p_queues, p_partitions) with ordinality a (queue, partition, ordinal)
    join queen.queues q on q.name = any (array[a.queue])
    cross join lateral (select k.id, k.number from queen.partitions k
                        where k.queue_id = q.id and k.name = a.partition offset 0) p
    cross join lateral queen.head_of(p.id) h;
end $$;

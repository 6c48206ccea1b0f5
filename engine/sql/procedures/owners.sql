-- queen.owners: the queues that partitions belong to, for callers who may not touch all queues.
-- in:     p_partitions uuid[], p_numbers bigint[] (of other partitions)
-- out:    partition uuid, number bigint, queue text (no row for a partition that does not exist)
-- locks:  none
-- raises: never
create or replace function queen.owners(p_partitions uuid[], p_numbers bigint[])
returns table (partition uuid, number bigint, queue text) language sql as $$
    select p.id, p.number, q.name
    from unnest(p_partitions) a (id)
    join queen.partitions p on p.id = any (array[a.id])
    join queen.queues q on q.id = any (array[p.queue_id])
    union all
    select p.id, p.number, q.name
    from unnest(p_numbers) a (number)
    join queen.partitions p on p.number = any (array[a.number])
    join queen.queues q on q.id = any (array[p.queue_id])
$$;

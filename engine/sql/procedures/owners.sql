-- queen.owners: the queues of partitions, to check the rights of callers that are limited to some queues.
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

-- queen.live_leases: the leases that acknowledgements without a lease id would apply to.
-- in:     p_partitions uuid[], p_groups text[] (same length)
-- out:    place int (in the arrays, from 1), lease_id uuid (no row without a lease)
-- locks:  none
-- raises: never
create or replace function queen.live_leases(p_partitions uuid[], p_groups text[])
returns table (place int, lease_id uuid) language sql as $$
    select a.place::int, c.lease_id
    from unnest(p_partitions, p_groups) with ordinality a (partition_id, consumer_group, place)
    cross join lateral queen.reader_of(a.partition_id, a.consumer_group) c
    where c.lease_until > queen.now() and c.lease_id is not null
$$;

-- queen.renew: extends leases that are still held.
-- in:     p_leases uuid[], p_numbers bigint[] (partition numbers), p_seconds int[]: one row per partition of a lease
-- out:    lease_id uuid, lease_until timestamptz: one row per partition lease that was extended
-- locks:  consumers rows in (partition_id, consumer_group) order
-- raises: never for a single item
create or replace function queen.renew(p_leases uuid[], p_numbers bigint[], p_seconds int[])
returns table (lease_id uuid, lease_until timestamptz)
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
begin
    return query
    with locked as materialized (
        select c.partition_id, c.consumer_group, a.seconds
        from unnest(p_leases, p_numbers, p_seconds) a (lease_id, number, seconds)
        join queen.partitions p on p.number = any (array[a.number])
        join queen.consumers c on c.partition_id = any (array[p.id])
        where c.lease_id = a.lease_id and c.lease_until > v_now
        order by (c.partition_id, c.consumer_group)
        for no key update of c)
    update queen.consumers as c
    set lease_until = greatest(c.lease_until, v_now + make_interval(secs => l.seconds))
    from locked l
    where c.partition_id = any (array[l.partition_id]) and c.consumer_group = any (array[l.consumer_group])
    returning c.lease_id, c.lease_until;
end $$;

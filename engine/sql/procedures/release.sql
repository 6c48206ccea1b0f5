-- queen.release: gives back claims that were never delivered.
-- in:     p_partitions uuid[], p_groups text[], p_leases uuid[] (null for an automatic ack),
--         p_first bigint[], p_last bigint[]
-- out:    nothing
-- locks:  consumers rows in (partition_id, consumer_group) order
-- raises: never
-- An automatic ack is taken back only while nobody has read on from where it ended.
create or replace function queen.release(
    p_partitions uuid[], p_groups text[], p_leases uuid[], p_first bigint[], p_last bigint[])
returns void language plpgsql as $$
begin
    with asked as (
        select a.* from unnest(p_partitions, p_groups, p_leases, p_first, p_last)
            a (partition_id, consumer_group, lease_id, first, last)),
    locked as materialized (
        select c.partition_id, c.consumer_group, a.lease_id, a.first, a.last
        from asked a
        join queen.consumers c on c.partition_id = any (array[a.partition_id])
                              and c.consumer_group = any (array[a.consumer_group])
        order by a.partition_id, a.consumer_group collate "C"
        for no key update of c)
    update queen.consumers as c
    set lease_id = null, lease_until = null, lease_end = null,
        cursor = case when l.lease_id is null then l.first else c.cursor end
    from locked l
    where c.partition_id = any (array[l.partition_id]) and c.consumer_group = any (array[l.consumer_group])
      and (c.lease_id = l.lease_id
           or (l.lease_id is null and c.lease_id is null and c.cursor = l.last));
end $$;

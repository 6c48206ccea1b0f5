-- queen.hold: locks the cursors that a transaction is about to move, and those of the leases that it requires.
-- in:     p_leases uuid[], p_numbers bigint[] (one row per partition of a required lease),
--         p_partitions uuid[], p_groups text[] (what will be acknowledged)
-- out:    partition_id uuid, consumer_group text, cursor bigint, lease_id uuid (null unless the lease is live)
-- locks:  consumers rows in (partition_id, consumer_group) order, all at once: locking one list after the other could deadlock
--         with another transaction
-- raises: never
create or replace function queen.hold(p_leases uuid[], p_numbers bigint[], p_partitions uuid[], p_groups text[])
returns table (partition_id uuid, consumer_group text, cursor bigint, lease_id uuid)
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_partitions uuid[];
    v_groups text[];
begin
    select array_agg(w.partition_id), array_agg(w.consumer_group) into v_partitions, v_groups
    from (select c.partition_id, c.consumer_group
          from unnest(p_leases, p_numbers) a (lease_id, number)
          join queen.partitions p on p.number = any (array[a.number])
          cross join lateral queen.readers_of(p.id) c
          where c.lease_id = a.lease_id
          union
          select a.partition_id, a.consumer_group
          from unnest(p_partitions, p_groups) a (partition_id, consumer_group)) w;
    perform queen.lock_readers(v_partitions, v_groups);
    return query
    select c.partition_id, c.consumer_group::text, greatest(c.cursor, h.tail),
           case when c.lease_until > v_now then c.lease_id end
    from unnest(v_partitions, v_groups) a (partition_id, consumer_group)
    cross join lateral queen.reader_of(a.partition_id, a.consumer_group) c
    cross join lateral queen.head_of(a.partition_id) h;
end $$;

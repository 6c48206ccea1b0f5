-- queen.release: gives back claims that were never delivered.
-- in:     p_partitions uuid[], p_groups text[], p_leases uuid[] (null for auto-ack),
--         p_first bigint[], p_last bigint[]
-- out:    nothing
-- locks:  consumers rows in (partition_id, consumer_group) order
-- raises: never
-- An auto-ack is only undone while no consumer has read past its end.
create or replace function queen.release(
    p_partitions uuid[], p_groups text[], p_leases uuid[], p_first bigint[], p_last bigint[])
returns void language plpgsql as $$
begin
    perform queen.lock_readers(p_partitions, p_groups);
    update queen.consumers as c
    set lease_id = null, lease_until = null, lease_end = null,
        cursor = case when a.lease_id is null then a.first else c.cursor end,
        version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
    from (select a.*, l.generation
          from unnest(p_partitions, p_groups, p_leases, p_first, p_last)
               a (partition_id, consumer_group, lease_id, first, last)
          cross join lateral queen.reader_of(a.partition_id, a.consumer_group) l
          offset 0) a
    where c.partition_id = any (array[a.partition_id]) and c.consumer_group = a.consumer_group
      and c.generation = a.generation
      and (c.lease_id = a.lease_id
           or (a.lease_id is null and c.lease_id is null and c.cursor = a.last));
end $$;

-- queen.withdraw: takes back a claim from an offset on, because the message there cannot be decrypted.
-- in:     p_partition uuid, p_group text, p_lease uuid (null for auto-ack), p_first bigint (start of the claim),
--         p_end bigint (first offset to take back; p_first: all of it)
-- out:    nothing
-- locks:  one consumers row
-- raises: never
-- An auto-ack is undone even if another consumer has read on meanwhile: messages may be delivered twice, but none is skipped for
-- lack of a key.
create or replace function queen.withdraw(p_partition uuid, p_group text, p_lease uuid, p_first bigint, p_end bigint)
returns void language plpgsql as $$
begin
    perform queen.lock_readers(array[p_partition], array[p_group]);
    update queen.consumers as c
    set lease_id = case when p_lease is not null and p_end > p_first then c.lease_id end,
        lease_until = case when p_lease is not null and p_end > p_first then c.lease_until end,
        lease_end = case when p_lease is not null and p_end > p_first then p_end end,
        cursor = case when p_lease is null then p_end else c.cursor end,
        version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
    from (select l.generation from queen.reader_of(p_partition, p_group) l offset 0) a
    where c.partition_id = p_partition and c.consumer_group = p_group and c.generation = a.generation
      and (c.lease_id = p_lease or (p_lease is null and c.cursor > p_end));
end $$;

-- queen.complete: applies the most common acknowledgements, completions under a live lease. queen.settle_unlocked does the rest.
-- in:     p_ids uuid[]            of each row, the same when it is sent again after a lost response
--         p_partitions uuid[], p_groups text[]   each pair at most once, in ascending order
--         p_leases uuid[], p_expected bigint[] (the cursor), p_to bigint[] (where it goes)
--         p_new_partitions uuid[], p_new_groups text[], p_new boolean   if true, readers that later claims in
--                                 this transaction may need: added first, because partitions are locked before cursors
-- out:    one row of arrays, an element per row that was applied: positions, released (the lease is finished). Pass the
--         rest to queen.settle_unlocked, in a call of its own: waiting for it here, while holding locks, could end in a
--         deadlock
-- locks:  partitions rows of new readers, then consumers rows, skipping busy ones
-- raises: never for a single item
create or replace function queen.complete(
    p_ids uuid[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_expected bigint[], p_to bigint[],
    p_new_partitions uuid[], p_new_groups text[], p_new boolean,
    out positions int[], out released boolean[])
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
begin
    if p_new then
        perform queen.add_readers(p_new_partitions, p_new_groups, false);
    end if;
    with applied as (
        update queen.consumers as c
        set cursor = a.goal, last_ack = a.ack_id, last_ack_from = a.expected, last_ack_to = a.goal,
            attempts = case when a.goal <= c.failed_from then c.attempts else 0 end,
            lease_id = case when a.goal < c.lease_end then c.lease_id end,
            lease_until = case when a.goal < c.lease_end then c.lease_until end,
            lease_start = case when a.goal < c.lease_end then coalesce(c.lease_start, c.cursor) end,
            lease_end = case when a.goal < c.lease_end then c.lease_end end,
            version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
        from (select a.*, l.ctid
              from unnest(p_ids, p_partitions, p_groups, p_leases, p_expected, p_to)
                   with ordinality a (ack_id, partition_id, consumer_group, held, expected, goal, ordinal)
              cross join lateral (
                  select k.ctid from queen.consumers k
                  where k.partition_id = a.partition_id and k.consumer_group = a.consumer_group
                  order by k.generation desc limit 1
                  for no key update skip locked) l
              offset 0) a
        where c.ctid = a.ctid and c.lease_id = a.held and c.lease_until > v_now and a.goal <= c.lease_end
          and c.last_ack is distinct from a.ack_id and c.cursor = a.expected and c.deferred_pending = 0
        returning a.ordinal::int as position, c.lease_id is null as released)
    select array_agg(d.position), array_agg(d.released) into positions, released from applied d;
end $$;

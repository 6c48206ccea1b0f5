-- queen.ack_unlocked: queen.ack for the cursors that no other session has locked.
-- in:     as queen.ack, and p_wait int: milliseconds to wait for locked cursors; 0 leaves them out, null waits as long as
--         lock_timeout allows
-- out:    as queen.ack, and busy int[]: the positions of rows that were left out because their cursor is locked
-- locks:  consumers rows in (partition_id, consumer_group) order, skipping busy ones unless it may wait
-- raises: lock_not_available when it may wait and the time is up
-- Beside queen.ack, which brokers of the last release and transactions call: they wait.
create or replace function queen.ack_unlocked(
    p_ids uuid[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_expected bigint[], p_negative boolean[],
    p_retry_to bigint[], p_retry_stops boolean[], p_retry_dead boolean[],
    p_final_to bigint[], p_final_stops boolean[], p_final_dead boolean[],
    p_dead int[], p_dead_final boolean[], p_dead_offsets bigint[], p_dead_errors text[], p_deferred boolean, p_wait int,
    out positions int[], out statuses int[], out cursors bigint[], out started bigint[], out heads bigint[],
    out released boolean[], out kept boolean[], out queue_names text[], out partition_names text[], out busy int[])
language plpgsql as $$
begin
    busy := (select t.busy from queen.try_readers(p_partitions, p_groups, p_wait) t);
    -- Without a partition it is a row of nothing.
    if busy <> '{}' then
        p_partitions := array(select case when a.ordinal <> all (busy) then a.id end
                              from unnest(p_partitions) with ordinality a (id, ordinal)
                              order by a.ordinal);
    end if;
    select a.* into positions, statuses, cursors, started, heads, released, kept, queue_names, partition_names
    from queen.ack(p_ids, p_partitions, p_groups, p_leases, p_expected, p_negative, p_retry_to, p_retry_stops,
                   p_retry_dead, p_final_to, p_final_stops, p_final_dead, p_dead, p_dead_final, p_dead_offsets,
                   p_dead_errors, p_deferred) a;
end $$;

-- queen.ack: queen.settle as brokers of 0.1.0 call it, with two outcomes per row. To be removed with 0.3.0.
-- in:     p_ids uuid[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_expected bigint[]   as queen.settle
--         p_negative boolean[]    there is a `failed` item above the cursor: it uses a retry while there is one left
--         p_retry_to bigint[], p_retry_stops boolean[], p_retry_dead boolean[]   new cursor, whether the lease ends
--                                 there, and whether something is dead-lettered, while the budget lasts
--         p_final_to bigint[], p_final_stops boolean[], p_final_dead boolean[]   the same once it is spent
--         p_dead int[] (which row above, from 1), p_dead_final boolean[] (only once the budget is spent),
--         p_dead_offsets bigint[], p_dead_errors text[]   messages to dead-letter
--         p_deferred boolean      as queen.settle
-- out:    as queen.settle, but status 1 instead of 6
-- locks:  as queen.settle
-- raises: never for a single item
-- The first failed message is the first of those that are only dead-lettered once the budget is spent.
create or replace function queen.ack(
    p_ids uuid[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_expected bigint[], p_negative boolean[],
    p_retry_to bigint[], p_retry_stops boolean[], p_retry_dead boolean[],
    p_final_to bigint[], p_final_stops boolean[], p_final_dead boolean[],
    p_dead int[], p_dead_final boolean[], p_dead_offsets bigint[], p_dead_errors text[], p_deferred boolean,
    out positions int[], out statuses int[], out cursors bigint[], out started bigint[], out heads bigint[],
    out released boolean[], out kept boolean[], out queue_names text[], out partition_names text[])
language plpgsql as $$
declare
    v_ways record;
begin
    select array_agg(case w.way when 0 then a.retry_to else a.final_to end order by a.ordinal, w.way) as goals,
           array_agg(case w.way when 0 then a.retry_stops else a.final_stops end order by a.ordinal, w.way) as stops,
           array_agg(case w.way when 0 then f.first end order by a.ordinal, w.way) as failed_from,
           array_agg(case w.way when 0 then f.first + 1 end order by a.ordinal, w.way) as failed_to
    into v_ways
    from unnest(p_negative, p_retry_to, p_retry_stops, p_final_to, p_final_stops)
         with ordinality a (negative, retry_to, retry_stops, final_to, final_stops, ordinal)
    cross join lateral (
        select case when a.negative then coalesce(min(d.message_offset), a.retry_to) end as first
        from unnest(p_dead, p_dead_final, p_dead_offsets) d (ordinal, final, message_offset)
        where d.ordinal = a.ordinal and d.final) f
    cross join generate_series(0, 2) w (way);
    select s.* into positions, statuses, cursors, started, heads, released, kept, queue_names, partition_names
    from queen.settle(p_ids, p_partitions, p_groups, p_leases, p_expected, v_ways.goals, v_ways.stops,
                      v_ways.failed_from, v_ways.failed_to, p_dead,
                      array(select f.final::int from unnest(p_dead_final) with ordinality f (final, ordinal)
                            order by f.ordinal),
                      p_dead_offsets, p_dead_errors, p_deferred) s;
    statuses := array_replace(statuses, 6, 1);
end $$;

-- queen.find_transactions: finds transaction hashes in a partition.
-- in:     p_partition uuid, p_from bigint (a segment boundary), p_to bigint (end excluded, null = the head),
--         p_since timestamptz, p_hashes bytea (16 bytes each)
-- out:    index int (0-based, into p_hashes), message_offset bigint, created_at timestamptz: all matches, in this order
-- locks:  none
-- raises: never
-- Off the hot path, and the only place that may hash-join: it unnests two lists and compares them. For a few hashes, it only
-- unnests segments whose bytes contain one of them. Extents older than the window are excluded by their creation time; a
-- minute's margin covers a writer that started before a rotation. Like every reader of the log it is not `stable`: a snapshot
-- older than its lock could miss an extent that is being moved.
create or replace function queen.find_transactions(
    p_partition uuid, p_from bigint, p_to bigint, p_since timestamptz, p_hashes bytea)
returns table (index int, message_offset bigint, created_at timestamptz)
language plpgsql set enable_hashjoin = on set enable_sort = on as $$
declare
    v_extent int := coalesce((select max(e.number) from queen.extents e
                              where e.created_at < p_since - interval '1 minute'), 0);
begin
    return query
    select n.index, s.base_offset + o.place, s.created_at
    from (select g.base_offset, g.count, g.created_at, g.transactions || ''::bytea as hashes
          from queen.segments g
          where g.partition_id = p_partition and g.base_offset >= p_from
            and g.base_offset < coalesce(p_to, 9223372036854775807)
            and g.created_at >= p_since and g.extent >= v_extent
          offset 0) s
    cross join lateral (
        select p.place from generate_series(0, s.count - 1) p (place)
        where length(p_hashes) > 16 * 16
           or exists (select 1 from generate_series(0, length(p_hashes) / 16 - 1) i (index)
                      where position(substr(p_hashes, i.index * 16 + 1, 16) in s.hashes) > 0)
        offset 0) o
    join (select i.index, substr(p_hashes, i.index * 16 + 1, 16) as hash
          from generate_series(0, length(p_hashes) / 16 - 1) i (index)) n
      on n.hash = substr(s.hashes, o.place * 16 + 1, 16)
    order by n.index, s.base_offset + o.place;
end $$;

-- queen.find_accepted: finds messages that were stored before they were accepted again, and have left the window since.
-- in:     p_partitions uuid[], p_accepted timestamptz[] (when the first message of each was accepted), p_windows int[]
--         (seconds, of their queues), p_transactions bytea[] (16 bytes a message)
-- out:    one row of arrays, an element per message found: dup_positions (of its partition), dup_indexes (0-based),
--         dup_offsets, dup_created_at (the latest match of each), dup_ids (the id it was promised, or null)
-- locks:  none: the past does not change
-- raises: never
-- A push that could not be stored at once has waited in a spool, the deferred queue or the inbox. Its deduplication window ends
-- when it was accepted; messages in the current window are left to queen.push_unlocked. So this reads only what was written to
-- the log during the wait, and nothing after a wait of less than a second.
create or replace function queen.find_accepted(
    p_partitions uuid[], p_accepted timestamptz[], p_windows int[], p_transactions bytea[],
    out dup_positions int[], out dup_indexes int[], out dup_offsets bigint[], out dup_created_at timestamptz[],
    out dup_ids uuid[])
language plpgsql
set enable_bitmapscan = on set enable_hashjoin = on set enable_sort = on set jit = off
set plan_cache_mode = force_custom_plan as $$
declare
    v_now timestamptz := queen.now();
    v_since timestamptz;
    v_until timestamptz;
    v_extent int;
    v_tail bigint;
begin
    for i in 1 .. cardinality(p_partitions) loop
        continue when p_accepted[i] > v_now - interval '1 second';
        v_since := p_accepted[i] - make_interval(secs => p_windows[i]);
        -- A minute's margin, because the push reads the clock later.
        v_until := v_now - make_interval(secs => p_windows[i]) + interval '1 minute';
        v_extent := coalesce((select max(e.number) from queen.extents e
                              where e.created_at < v_since - interval '1 minute'), 0);
        -- Cleared messages may be pushed again.
        v_tail := (select h.tail from queen.head_of(p_partitions[i]) h);
        select dup_positions || array_agg(i), dup_indexes || array_agg(d.index),
               dup_offsets || array_agg(d.message_offset), dup_created_at || array_agg(d.created_at),
               dup_ids || queen.promised_ids(p_partitions[i], array_agg(d.message_offset))
        into dup_positions, dup_indexes, dup_offsets, dup_created_at, dup_ids
        from (select distinct on (n.index) n.index, s.base_offset + o.place as message_offset, s.created_at
              from (select g.base_offset, g.count, g.created_at, g.transactions || ''::bytea as hashes
                    from queen.segments g
                    where g.partition_id = p_partitions[i] and g.extent >= v_extent
                      and g.created_at >= v_since and g.created_at < v_until
                    offset 0) s
              cross join lateral generate_series(0, s.count - 1) o (place)
              join (select x.index, substr(p_transactions[i], x.index * 16 + 1, 16) as hash
                    from generate_series(0, length(p_transactions[i]) / 16 - 1) x (index)) n
                on n.hash = substr(s.hashes, o.place * 16 + 1, 16)
              where s.base_offset + o.place >= v_tail
              order by n.index, s.base_offset + o.place desc) d;
    end loop;
end $$;

-- queen.find_transactions: which of some transaction hashes a partition already holds, and where.
-- in:     p_partition uuid, p_from bigint (a segment boundary), p_to bigint (end excluded, null = the head),
--         p_since timestamptz, p_hashes bytea (16 bytes each)
-- out:    index int (0-based, into p_hashes), message_offset bigint, created_at timestamptz: the earliest match of each
-- locks:  none
-- raises: never
-- Off the hot path, and the one place that may hash-join: it takes two lists apart and compares them. If it looks for
-- a few hashes only, it does so just for segments in whose bytes one of them stands. Extents older than the window are
-- left out by their creation time; a minute's margin covers a writer that started before a rotation.
-- Like every reader of the log it is not `stable`: a snapshot older than its lock could miss an extent on the move.
create or replace function queen.find_transactions(
    p_partition uuid, p_from bigint, p_to bigint, p_since timestamptz, p_hashes bytea)
returns table (index int, message_offset bigint, created_at timestamptz)
language plpgsql set enable_hashjoin = on set enable_sort = on as $$
declare
    v_extent int := coalesce((select max(e.number) from queen.extents e
                              where e.created_at < p_since - interval '1 minute'), 0);
begin
    return query
    select distinct on (n.index) n.index, s.base_offset + o.place, s.created_at
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

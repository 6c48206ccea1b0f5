-- queen.fetch: reads ranges of several partitions, the FETCHING step of a pop.
-- in:     p_partitions uuid[], p_first bigint[], p_last bigint[] (end excluded)
-- out:    position int, base_offset bigint, created_at timestamptz, transactions bytea, frames text: whole
--         segments, in order, and up to three small ones that follow, for the broker's cache
-- locks:  none
-- raises: never
create or replace function queen.fetch(p_partitions uuid[], p_first bigint[], p_last bigint[])
returns table ("position" int, base_offset bigint, created_at timestamptz, transactions bytea, frames text)
language plpgsql as $$
begin
    return query
    select a.ordinal::int, s.base_offset, s.created_at, s.transactions, s.frames
    from unnest(p_partitions, p_first, p_last) with ordinality a (id, first, last, ordinal)
    cross join lateral (
        (select g.base_offset, g.created_at, g.transactions, g.frames
         from queen.segments g
         where g.partition_id = a.id and g.base_offset < a.last and g.base_offset + g.count > a.first
           and g.base_offset >= coalesce((select k.base_offset from queen.segments k
                                          where k.partition_id = a.id and k.base_offset <= a.first
                                          order by k.base_offset desc limit 1), 0)
         order by g.base_offset)
        union all
        (select g.base_offset, g.created_at, g.transactions, g.frames
         from (select n.base_offset, n.created_at, n.transactions, n.frames from queen.segments n
               where n.partition_id = a.id and n.base_offset >= a.last
               order by n.base_offset limit 3) g
         where pg_column_size(g.frames) < 65536)) s;
end $$;

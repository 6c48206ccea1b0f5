-- queen.discover: partitions with commits to the log since a broker last looked.
-- in:     p_xmax bigint, p_running bigint[]   from the previous result: the first transaction number that it could not
--                                             have seen, and those that were running then
-- out:    xmax bigint, running bigint[] (on every row, for the next call), then a partition with new messages:
--         id uuid, number bigint, name text, queue_name text, head bigint (all null on a single row if none was)
-- locks:  none
-- raises: never
-- The cost depends on what was written in between, not on the number of partitions or on other open transactions. A log
-- restored into another cluster may contain transaction numbers of that cluster's future; the upper bound excludes them.
create or replace function queen.discover(p_xmax bigint, p_running bigint[])
returns table (xmax bigint, running bigint[], id uuid, number bigint, name text, queue_name text, head bigint)
language plpgsql stable as $$
begin
    return query
    with seen as materialized (
        select (pg_snapshot_xmax(pg_current_snapshot())::text)::bigint as xmax,
               array(select (x::text)::bigint from pg_snapshot_xip(pg_current_snapshot()) x) as running),
    written as materialized (
        select s.partition_id from queen.segments s
        where s.xid >= p_xmax::text::xid8 and s.xid < pg_snapshot_xmax(pg_current_snapshot())
        union
        select s.partition_id from unnest(p_running) r (xid)
        join queen.segments s on s.xid = any (array[r.xid::text::xid8]))
    select n.xmax, n.running, p.id, p.number, p.name, q.name, h.head
    from seen n
    left join (written w
               join queen.partitions p on p.id = any (array[w.partition_id])
               cross join lateral queen.head_of(w.partition_id) h
               join queen.queues q on q.id = any (array[p.queue_id])) on true;
end $$;

-- queen.push: appends one segment to each of several partitions.
-- in:     p_partitions uuid[]     distinct and ascending
--         p_expected bigint[]     head up to which the broker's dedup cache is complete; -1 = it knows nothing,
--                                 -2 = nothing in this segment needs deduplication
--         p_counts int[], p_bytes int[] (largest message), p_transactions bytea[] (16 bytes a message), p_frames text[]
--         p_suspects boolean[]    the cache has seen one of these hashes: look for them in the whole window
--         p_recheck bigint[]      the head before the first try of this push. If there is more by now, another try of
--                                 it, or this one overtaken by its own repetition, may have committed: every hash is
--                                 looked for from there on, whatever the window
-- out:    position int, status int (0 appended, 1 conflict: nothing appended, 2 no such partition),
--         base_offset bigint (on conflict: the head), created_at timestamptz,
--         unseen bytea            hashes in the window that the cache had not seen, this segment's excluded
--         dup_index int[], dup_offset bigint[], dup_created_at timestamptz[]   on conflict: what is stored already
-- locks:  partitions rows in id order
-- raises: check_violation when the extent was dropped under it (the broker tries again)
-- Several statements on purpose: each takes a new snapshot after the locks are held, so the comparison sees
-- what other brokers committed while this one waited.
create or replace function queen.push(
    p_partitions uuid[], p_expected bigint[], p_counts int[], p_bytes int[],
    p_transactions bytea[], p_frames text[], p_suspects boolean[], p_recheck bigint[])
returns table ("position" int, status int, base_offset bigint, created_at timestamptz,
               unseen bytea, dup_index int[], dup_offset bigint[], dup_created_at timestamptz[])
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_extent int := (select max(e.number) from queen.extents e);
    v_found uuid[];
    v_heads bigint[];
    v_at timestamptz[];
    v_windows int[];
    v_slow uuid[];
    v_unseen bytea[] := array_fill(null::bytea, array[cardinality(p_partitions)]);
    v_since timestamptz;
    i int;
begin
    select array_agg(l.id), array_agg(l.head), array_agg(greatest(v_now, l.last_push_at)),
           array_agg(l.dedup_window_seconds), array_agg(l.id) filter (where l.slow)
    into v_found, v_heads, v_at, v_windows, v_slow
    from (select p.id, p.head, p.last_push_at, q.dedup_window_seconds,
                 p.head > a.recheck or (a.expected <> -2 and q.dedup_window_seconds > 0
                               and (a.suspect or p.head <> a.expected)) as slow
          from unnest(p_partitions, p_expected, p_suspects, p_recheck) a (id, expected, suspect, recheck)
          join queen.partitions p on p.id = a.id
          join queen.queues q on q.id = p.queue_id
          order by p.id
          for no key update of p) l;

    -- Both lists ascend by id, so they line up unless a partition is gone.
    if coalesce(cardinality(v_found), 0) < cardinality(p_partitions) then
        select array_agg(v_heads[f.place] order by a.i), array_agg(v_at[f.place] order by a.i),
               array_agg(v_windows[f.place] order by a.i)
        into v_heads, v_at, v_windows
        from generate_subscripts(p_partitions, 1) a (i)
        cross join lateral (select array_position(v_found, p_partitions[a.i]) as place) f;
        status := 2;
        for i in 1 .. cardinality(p_partitions) loop
            if v_heads[i] is null then
                "position" := i;
                return next;
            end if;
        end loop;
    end if;

    -- The rare part: partitions somebody else wrote to, or where the cache saw a hash before.
    if v_slow is not null then
        for i in 1 .. cardinality(p_partitions) loop
            continue when v_heads[i] is null or not p_partitions[i] = any (v_slow);
            v_since := v_now - make_interval(secs => v_windows[i]);
            select array_agg(d.index), array_agg(d.message_offset), array_agg(d.created_at)
            into dup_index, dup_offset, dup_created_at
            from (select distinct on (u.index) u.index, u.message_offset, u.created_at
                  from (select f.* from queen.find_transactions(
                            p_partitions[i], case when p_suspects[i] then 0 else p_expected[i] end, null, v_since,
                            p_transactions[i]) f
                        where p_expected[i] <> -2 and v_windows[i] > 0
                        union all
                        select f.* from queen.find_transactions(
                            p_partitions[i], p_recheck[i], null, '-infinity', p_transactions[i]) f
                        where v_heads[i] > p_recheck[i]) u
                  order by u.index, u.message_offset) d;
            if p_expected[i] <> v_heads[i] and p_expected[i] <> -2 then
                v_unseen[i] := (select string_agg(s.transactions, ''::bytea order by s.base_offset)
                                from queen.segments s
                                where s.partition_id = p_partitions[i] and s.base_offset >= p_expected[i]
                                  and s.created_at >= v_since);
            end if;
            if dup_index is not null then
                "position" := i; status := 1; base_offset := v_heads[i]; created_at := v_at[i]; unseen := v_unseen[i];
                return next;
                v_heads[i] := null;
            end if;
        end loop;
    end if;

    insert into queen.segments as s (partition_id, base_offset, created_at, extent, count, transactions, frames)
    select a.id, a.head, a.at, v_extent, a.count, a.transactions, a.frames
    from unnest(p_partitions, v_heads, v_at, p_counts, p_transactions, p_frames)
         a (id, head, at, count, transactions, frames)
    where a.head is not null;

    return query
    with appended as (
        update queen.partitions as p
        set head = a.head + a.count, last_push_at = a.at,
            message_bytes_max = greatest(p.message_bytes_max, a.bytes)
        from unnest(p_partitions, v_heads, v_at, p_counts, p_bytes, v_unseen)
             with ordinality a (id, head, at, count, bytes, unseen, ordinal)
        where p.id = a.id and a.head is not null
        returning a.ordinal::int, 0, a.head, a.at, a.unseen)
    select d.*, null::int[], null::bigint[], null::timestamptz[] from appended d;
end $$;

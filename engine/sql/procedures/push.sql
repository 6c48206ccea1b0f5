-- queen.push_unlocked: appends one segment to each of several partitions, except those that another session has locked.
-- in:     p_partitions uuid[]     distinct and ascending
--         p_expected bigint[]     head up to which the broker's dedup cache is complete; -1 or 0 = it knows nothing
--                                 and asks for the window, -3 = it knows nothing, -2 = no message of this segment needs
--                                 deduplication
--         p_counts int[], p_bytes int[] (largest message), p_transactions bytea[] (16 bytes a message), p_frames text[]
--         p_suspects boolean[]    the cache has seen one of these hashes: search for them in the whole window
--         p_recheck bigint[]      the head before the first try of this push. If the head is higher by now, another try of
--                                 it, or this one overtaken by its own repetition, may have committed: every hash is
--                                 searched for from there on, in the window or in the lifetime of a statement. If no
--                                 deduplication is needed, every match is returned: the broker knows its own by their ids
--         p_deferred boolean      these are deferred pushes of the session that has taken them: the only ones that may be
--                                 appended while a partition has deferred ones
--         p_wait int              milliseconds to wait for locked partitions; 0 omits them, null waits as long as
--                                 lock_timeout allows
-- out:    one row of arrays, an element per segment: positions, statuses (0 appended, 1 conflict: nothing appended,
--         2 no such partition, 3 behind deferred pushes: nothing appended, 4 locked: nothing appended), base_offsets (on
--         conflict: the head), created_at,
--         unseen                  hashes in the window that the cache had not seen, this segment's excluded. If the broker
--                                 asks for the window and it is long, the result is a conflict without duplicates, and
--                                 the broker compares itself, which is much cheaper; none once the result is large enough
--         and an element per message that is already stored: dup_positions, dup_indexes, dup_offsets, dup_created_at,
--         dup_ids (the id it was promised, or null)
-- locks:  heads rows in id order, skipping busy ones unless p_wait allows waiting
-- raises: check_violation when the extent was dropped concurrently (the broker retries); lock_not_available when the
--         wait times out
-- The usual case is the first statement: every partition has the head that the broker expects. The rest deliberately takes
-- several statements: each has a new snapshot after the locks are held, so the comparison sees what other brokers committed
-- while this one waited.
create or replace function queen.push_unlocked(
    p_partitions uuid[], p_expected bigint[], p_counts int[], p_bytes int[],
    p_transactions bytea[], p_frames text[], p_suspects boolean[], p_recheck bigint[],
    p_deferred boolean, p_wait int,
    out positions int[], out statuses int[], out base_offsets bigint[], out created_at timestamptz[],
    out unseen bytea[], out dup_positions int[], out dup_indexes int[], out dup_offsets bigint[],
    out dup_created_at timestamptz[], out dup_ids uuid[])
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_partition record;
    v_since timestamptz;
    v_extent int;
    v_unseen bytea;
    v_dups int;
    v_stored bigint;
    v_learns boolean;
    v_taught bigint := 0;
    v_locked boolean;
    i int;
begin
    if p_wait is distinct from 0 then
        perform queen.limit_wait(p_wait);
        perform queen.lock_heads(p_partitions);
    end if;

    -- Written so that it can only run as nested loops from the arrays (see ARCHITECTURE.md), which locks in their order.
    -- `offset 0` keeps the comparison out of the inner select, so that partitions not appended to are locked as well and
    -- need not be waited for later.
    with appended as (
        update queen.heads as h
        set head = h.head + a.count, last_push_at = greatest(v_now, h.last_push_at),
            message_bytes_max = greatest(h.message_bytes_max, a.bytes),
            version = h.version + 1, generation = queen.next_generation(h.generation, h.version)
        from (select a.*, l.head, l.deferred_pending, l.ctid
              from unnest(p_partitions, p_expected, p_counts, p_bytes, p_suspects, p_recheck)
                   with ordinality a (id, expected, count, bytes, suspect, recheck, ordinal)
              cross join lateral (
                  select k.head, k.deferred_pending, k.ctid from queen.heads k where k.partition_id = a.id
                  order by k.generation desc limit 1
                  for no key update skip locked) l
              offset 0) a
        where h.ctid = a.ctid and a.head <= a.recheck and (a.deferred_pending = 0 or p_deferred)
          and (a.expected = -2 or a.head = a.expected and not a.suspect)
        returning a.ordinal::int as position, h.partition_id as id, h.head - a.count as base_offset, a.count,
                  h.last_push_at),
    written as (
        insert into queen.segments as s (partition_id, base_offset, created_at, extent, count, transactions, frames)
        select d.id, d.base_offset, d.last_push_at, (select max(e.number) from queen.extents e), d.count,
               p_transactions[d.position], p_frames[d.position]
        from appended d)
    select array_agg(d.position), array_agg(0), array_agg(d.base_offset), array_agg(d.last_push_at),
           array_agg(null::bytea)
    into positions, statuses, base_offsets, created_at, unseen
    from appended d;

    if cardinality(positions) = cardinality(p_partitions) then
        return;
    end if;

    -- The rare part: partitions that others have written to, with deferred pushes, where the cache has seen a hash before,
    -- that are locked, or that were deleted.
    v_extent := (select max(e.number) from queen.extents e);
    for i in 1 .. cardinality(p_partitions) loop
        continue when i = any (positions);
        positions := positions || i;
        -- Most are locked by the statement above.
        perform 1 from queen.heads k where k.partition_id = p_partitions[i]
        order by k.generation desc limit 1
        for no key update skip locked;
        v_locked := found;
        select h.head, h.tail, h.generation, h.deferred_pending, greatest(v_now, h.last_push_at) as at,
               queen.dedup_window(q.dedup_window_seconds, q.retention_enabled, q.retention_seconds) as dedup_window
        into v_partition
        from queen.head_of(p_partitions[i]) h join queen.queues q on q.id = any (array[h.queue_id]);
        if not found then
            statuses := statuses || 2;
            base_offsets := base_offsets || 0::bigint;
            created_at := created_at || v_now;
            unseen := unseen || null::bytea;
            continue;
        end if;
        if not v_locked then
            statuses := statuses || 4;
            base_offsets := base_offsets || 0::bigint;
            created_at := created_at || v_now;
            unseen := unseen || null::bytea;
            continue;
        end if;
        base_offsets := base_offsets || v_partition.head;
        created_at := created_at || v_partition.at;

        v_since := v_now - make_interval(secs => v_partition.dedup_window);
        v_learns := p_expected[i] in (-1, 0) and v_partition.dedup_window > 0 and v_partition.head - v_partition.tail > 2000;
        v_unseen := null;
        if v_partition.dedup_window > 0
           and (v_learns and v_taught < 8000000
                or not v_learns and p_expected[i] <> v_partition.head and p_expected[i] <> -2) then
            v_unseen := (select string_agg(s.transactions, ''::bytea order by s.base_offset)
                         from queen.segments s
                         where s.partition_id = p_partitions[i] and s.base_offset >= p_expected[i]
                           and s.created_at >= v_since);
            v_taught := v_taught + case when v_learns then coalesce(length(v_unseen), 0) else 0 end;
        end if;
        if v_learns and (v_unseen is not null or v_taught >= 8000000) then
            unseen := unseen || v_unseen;
            statuses := statuses || 1;
            continue;
        end if;
        v_dups := coalesce(cardinality(dup_positions), 0);
        -- Cleared messages may be pushed again.
        v_stored := queen.segment_of(p_partitions[i], v_partition.tail);
        select dup_positions || array_agg(i), dup_indexes || array_agg(d.index),
               dup_offsets || array_agg(d.message_offset), dup_created_at || array_agg(d.created_at),
               dup_ids || queen.promised_ids(p_partitions[i], array_agg(d.message_offset))
        into dup_positions, dup_indexes, dup_offsets, dup_created_at, dup_ids
        from (select distinct on (u.index, case when p_expected[i] = -2 then u.message_offset end)
                     u.index, u.message_offset, u.created_at
              from (select f.* from queen.find_transactions(
                        p_partitions[i], case when p_suspects[i] then v_stored else greatest(p_expected[i], v_stored) end, null, v_since,
                        p_transactions[i]) f
                    where p_expected[i] <> -2 and v_partition.dedup_window > 0 and f.message_offset >= v_partition.tail
                      and (p_suspects[i] or v_partition.head <> p_expected[i])
                    union all
                    select f.* from queen.find_transactions(
                        p_partitions[i], p_recheck[i], null, least(v_since, v_now - interval '10 minutes'),
                        p_transactions[i]) f
                    where v_partition.head > p_recheck[i]) u
              order by u.index, case when p_expected[i] = -2 then u.message_offset end, u.message_offset) d;
        unseen := unseen || v_unseen;
        if cardinality(dup_positions) > v_dups then
            statuses := statuses || 1;
            continue;
        end if;
        -- Not earlier, because messages committed by an earlier try must not be deferred as well.
        if v_partition.deferred_pending > 0 and not p_deferred then
            statuses := statuses || 3;
            continue;
        end if;

        statuses := statuses || 0;
        insert into queen.segments as s (partition_id, base_offset, created_at, extent, count, transactions, frames)
        values (p_partitions[i], v_partition.head, v_partition.at, v_extent, p_counts[i], p_transactions[i],
                p_frames[i]);
        update queen.heads as h
        set head = h.head + p_counts[i], last_push_at = v_partition.at,
            message_bytes_max = greatest(h.message_bytes_max, p_bytes[i]),
            version = h.version + 1, generation = queen.next_generation(h.generation, h.version)
        where h.partition_id = p_partitions[i] and h.generation = v_partition.generation;
    end loop;
end $$;

-- queen.push: queen.push_unlocked, waiting for locked partitions. Called by brokers of 0.1.0; to be removed with 0.3.0, when
-- compatible.sql calls the other.
-- in:     as queen.push_unlocked without p_wait
-- out:    as queen.push_unlocked
-- locks:  heads rows in id order
-- raises: as queen.push_unlocked
create or replace function queen.push(
    p_partitions uuid[], p_expected bigint[], p_counts int[], p_bytes int[],
    p_transactions bytea[], p_frames text[], p_suspects boolean[], p_recheck bigint[],
    p_deferred boolean,
    out positions int[], out statuses int[], out base_offsets bigint[], out created_at timestamptz[],
    out unseen bytea[], out dup_positions int[], out dup_indexes int[], out dup_offsets bigint[],
    out dup_created_at timestamptz[], out dup_ids uuid[])
language sql as $$
    select * from queen.push_unlocked(p_partitions, p_expected, p_counts, p_bytes, p_transactions, p_frames, p_suspects,
                                      p_recheck, p_deferred, null)
$$;

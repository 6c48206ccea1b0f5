-- queen.lease: claims partitions for consumer groups, many at once, the LEASING step of a pop.
-- in:     p_pops int[]            which pop a row belongs to; rows of one pop are adjacent
--         p_partitions uuid[], p_groups text[]   each pair at most once
--         p_leases uuid[], p_seconds int[] (0 = the queue's lease time), p_batches int[] (of the whole pop),
--         p_partitions_max int[]  how many of its rows a pop may be granted
--         p_auto boolean[]        commit at delivery instead of taking a lease
--         p_bytes_max bigint      limit of one claim
--         p_readers boolean       some of the groups may have no consumers row for their partition yet
--         p_single boolean        no pop has more than one row
-- out:    one row of arrays, an element per row found: positions, statuses (0 granted, 1 nothing to read, 2 leased by
--         another, 5 not visible yet, 6 not needed: the pop has enough, 7 the window is open and the batch not full),
--         firsts, lasts (the range, end excluded), attempts (how often the first message has failed), waits_ms (until the
--         lease ends, the other's or ours, or a message matures), heads
--         and per row not found: missed_positions, missed_statuses (3 row busy, 4 partition deleted, 8 no such reader:
--         retry with p_readers; after such a call its partition is busy)
-- locks:  partitions rows of new readers, then consumers rows, in any order, skipping busy ones
-- raises: never for a single item
-- A row that already has the caller's lease id is granted again, so that a retry after a lost response finds its own lease. A
-- lease begins at its cursor until that is moved, so only procedures that move it store where the lease began.
create or replace function queen.lease(
    p_pops int[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_seconds int[], p_batches int[],
    p_partitions_max int[], p_auto boolean[], p_bytes_max bigint, p_readers boolean, p_single boolean,
    out positions int[], out statuses int[], out firsts bigint[], out lasts bigint[], out attempts int[],
    out waits_ms bigint[], out heads bigint[], out missed_positions int[], out missed_statuses int[])
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_rest record;
begin
    if p_readers then
        perform queen.add_readers(p_partitions, p_groups, false);
    end if;

    -- The usual case: every pop asks for one partition, and gets it.
    if p_single then
        with granted as (
            update queen.consumers as c
            set cursor = case when g.auto then g.last else g.first end,
                lease_id = case when not g.auto then g.lease_id end,
                lease_until = case when not g.auto then v_now + make_interval(secs => g.seconds) end,
                lease_start = null,
                lease_end = case when not g.auto then g.last end,
                attempts = case when g.auto then 0 else c.attempts end,
                served_at = v_now,
                version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
            from (select a.ordinal::int as position, a.lease_id, a.auto, k.ctid, r.first, h.head,
                         case when k.failed_from = r.first then k.attempts else 0 end as attempts,
                         least(h.head, r.first + least(a.batch, greatest(1, p_bytes_max
                                                                            / greatest(h.message_bytes_max, 1)))) as last,
                         case when a.seconds > 0 then a.seconds when q.lease_time > 0 then q.lease_time else 60 end
                             as seconds
                  from unnest(p_partitions, p_groups, p_leases, p_seconds, p_batches, p_auto)
                       with ordinality a (partition_id, consumer_group, lease_id, seconds, batch, auto, ordinal)
                  cross join lateral (
                      select n.ctid, n.cursor, n.attempts, n.failed_from, n.lease_until, n.lease_id
                      from queen.consumers n
                      where n.partition_id = a.partition_id and n.consumer_group = a.consumer_group
                      order by n.generation desc limit 1
                      for no key update skip locked) k
                  cross join lateral queen.head_of(a.partition_id) h
                  join queen.queues q on q.id = any (array[h.queue_id])
                  cross join lateral (select greatest(k.cursor, h.tail) as first) r
                  where q.delayed_processing <= 0 and q.window_buffer <= 0 and r.first < h.head
                    and r.first >= h.skips_end
                    and not coalesce(k.lease_until > v_now and k.lease_id is distinct from a.lease_id, false)
                  offset 0) g
            where c.ctid = g.ctid
            returning g.position, g.first, g.last, g.attempts, g.seconds, g.head)
        select array_agg(l.position), array_agg(0), array_agg(l.first), array_agg(l.last), array_agg(l.attempts),
               array_agg(l.seconds * 1000::bigint), array_agg(l.head)
        into positions, statuses, firsts, lasts, attempts, waits_ms, heads
        from granted l;

        if cardinality(positions) = cardinality(p_partitions) then
            return;
        end if;
    end if;

    with locked as materialized (
        select a.ordinal, a.pop, a.batch, a.partitions_max, a.auto, c.partition_id, c.consumer_group, c.row_at,
               a.lease_id, h.head, h.skips_end, r.cursor, c.attempts, c.failed_from, c.lease_until,
               case when h.skips_end > r.cursor then queen.next_kept(c.partition_id, c.consumer_group, r.cursor)
                    else r.cursor end as first,
               c.lease_until > v_now and c.lease_id is distinct from a.lease_id as taken,
               make_interval(secs => case when a.seconds > 0 then a.seconds
                                          when q.lease_time > 0 then q.lease_time else 60 end) as length,
               greatest(1, p_bytes_max / greatest(h.message_bytes_max, 1)) as fits,
               q.delayed_processing, q.window_buffer
        from unnest(p_pops, p_partitions, p_groups, p_leases, p_seconds, p_batches, p_partitions_max, p_auto)
             with ordinality a (pop, partition_id, consumer_group, lease_id, seconds, batch, partitions_max, auto,
                                ordinal)
        cross join lateral (
            select k.*, k.ctid as row_at from queen.consumers k
            where k.partition_id = a.partition_id and k.consumer_group = a.consumer_group
              and (positions is null or a.ordinal <> all (positions))
            order by k.generation desc limit 1
            for no key update skip locked) c
        cross join lateral queen.head_of(a.partition_id) h
        cross join lateral (select greatest(c.cursor, h.tail) as cursor) r
        join queen.queues q on q.id = any (array[h.queue_id])),
    shared as materialized (
        select s.*, least(s.visible - s.first, s.fits) as available,
               coalesce(sum(least(s.visible - s.first, s.fits)) filter (where not coalesce(s.taken, false))
                   over earlier, 0) as before,
               count(*) filter (where not coalesce(s.taken, false) and s.visible > s.first) over earlier as claimed
        from (select l.*, v.ready_at, v.windowed,
                     least(coalesce(v.visible, l.head),
                           case when l.skips_end > l.first
                                then queen.next_skip(l.partition_id, l.consumer_group, l.first) end) as visible
              from locked l
              -- `offset 0`: otherwise the function would be called for every row, and its result discarded.
              left join lateral (
                  select n.* from queen.visible(l.partition_id, l.first, l.head, l.batch, l.delayed_processing,
                                                l.window_buffer, v_now) n
                  where l.delayed_processing > 0 or l.window_buffer > 0
                  offset 0) v on true) s
        window earlier as (partition by s.pop order by s.ordinal rows between unbounded preceding and 1 preceding)),
    decided as materialized (
        select s.*, (s.first + least(s.available, s.batch - s.before))::bigint as last,
               case when s.taken then 2
                    when s.first >= s.head then 1
                    when s.available <= 0 then case when s.windowed then 7 else 5 end
                    when s.before >= s.batch or s.claimed >= s.partitions_max then 6
                    else 0 end as status
        from shared s),
    granted as (
        update queen.consumers as c
        set cursor = case when g.auto then g.last else g.first end,
            lease_id = case when not g.auto then g.lease_id end,
            lease_until = case when not g.auto then v_now + g.length end,
            lease_start = null,
            lease_end = case when not g.auto then g.last end,
            attempts = case when g.auto or g.first > g.cursor then 0 else c.attempts end,
            served_at = v_now,
            version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
        from decided g
        where c.ctid = g.row_at and g.status = 0
        returning g.*),
    -- A row changed by another broker since this statement began is not in its snapshot: busy.
    answered as (select g.* from granted g union all select d.* from decided d where d.status > 0)
    select array_agg(s.ordinal::int) as positions, array_agg(s.status) as statuses, array_agg(s.first) as firsts,
           array_agg(s.last) as lasts,
           -- The failures of a message that is now skipped do not apply to the next one.
           array_agg(case when s.failed_from = s.first then s.attempts else 0 end) as attempts,
           array_agg(ceil(extract(epoch from case when s.taken and queen.is_held(s.lease_until, v_now)
                                                  then interval '1 second'
                                                  when s.taken then s.lease_until - v_now
                                                  when s.available <= 0 then s.ready_at - v_now
                                                  else s.length end) * 1000)::bigint) as waits_ms,
           array_agg(s.head) as heads,
           array_agg(s.row_at) filter (where s.status = 1 and s.first > s.cursor) as passed,
           array_agg(s.first) filter (where s.status = 1 and s.first > s.cursor) as passed_to
    into v_rest
    from answered s;
    positions := positions || v_rest.positions;
    statuses := statuses || v_rest.statuses;
    firsts := firsts || v_rest.firsts;
    lasts := lasts || v_rest.lasts;
    attempts := attempts || v_rest.attempts;
    waits_ms := waits_ms || v_rest.waits_ms;
    heads := heads || v_rest.heads;

    -- Everything left is to be skipped: the partition no longer counts as waiting.
    if v_rest.passed is not null then
        update queen.consumers as c
        set cursor = a.passed_to, attempts = 0, version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
        from unnest(v_rest.passed, v_rest.passed_to) a (row_at, passed_to)
        where c.ctid = a.row_at;
    end if;

    if coalesce(cardinality(positions), 0) < cardinality(p_partitions) then
        select array_agg(a.ordinal::int),
               array_agg(case when not exists (select 1 from queen.partitions p where p.id = a.partition_id) then 4
                              when exists (select 1 from queen.reader_of(a.partition_id, a.consumer_group)) then 3
                              else 8 end)
        into missed_positions, missed_statuses
        from unnest(p_partitions, p_groups) with ordinality a (partition_id, consumer_group, ordinal)
        where positions is null or a.ordinal <> all (positions);
    end if;
end $$;

-- queen.visible: how far a group may read a partition whose queue delays messages.
-- in:     p_partition uuid, p_first bigint, p_head bigint, p_batch int, p_delay int, p_window int (seconds), p_now
-- out:    visible bigint (end excluded, at most p_first + p_batch matter), ready_at timestamptz (when to retry),
--         windowed boolean (held back by the window: more messages, or a smaller batch, would open it)
-- locks:  none
-- raises: never
create or replace function queen.visible(
    p_partition uuid, p_first bigint, p_head bigint, p_batch int, p_delay int, p_window int, p_now timestamptz)
returns table (visible bigint, ready_at timestamptz, windowed boolean)
language plpgsql as $$
declare
    v_oldest timestamptz;
    v_young record;
begin
    visible := p_head;
    if p_first >= p_head then
        return next;
        return;
    end if;
    if p_delay > 0 then
        select s.base_offset, s.created_at into v_young
        from queen.segments s
        where s.partition_id = p_partition and s.base_offset + s.count > p_first
          and s.base_offset >= coalesce((select g.base_offset from queen.segments g
                                         where g.partition_id = p_partition and g.base_offset <= p_first
                                         order by g.base_offset desc limit 1), 0)
          and s.base_offset < p_first + p_batch
          and s.created_at > p_now - make_interval(secs => p_delay)
        order by s.base_offset limit 1;
        if found then
            visible := greatest(v_young.base_offset, p_first);
            ready_at := v_young.created_at + make_interval(secs => p_delay);
        end if;
    end if;
    -- A batch of one would always be full and open the window at once.
    if p_window > 0 and visible > p_first and (visible - p_first < p_batch or p_batch = 1) then
        select s.created_at into v_oldest from queen.segments s
        where s.partition_id = p_partition and s.base_offset <= p_first
        order by s.base_offset desc limit 1;
        if v_oldest > p_now - make_interval(secs => p_window) then
            visible := p_first;
            windowed := true;
            -- Sooner, when a message matures that may fill the batch.
            ready_at := least(ready_at, v_oldest + make_interval(secs => p_window));
        end if;
    end if;
    return next;
end $$;

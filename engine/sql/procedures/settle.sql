-- queen.settle: applies planned acknowledgements, one row per (partition, group).
-- in:     p_ids uuid[]            of each row, the same when it is sent again after a lost response
--         p_partitions uuid[], p_groups text[]   each pair at most once
--         p_leases uuid[]         null = no lease check
--         p_expected bigint[]     the cursor that the plan is based on
--         p_to bigint[], p_stops boolean[], p_failed_from bigint[], p_failed_to bigint[]   three elements per row, one per
--                                 outcome: 0 the first failed message has retries left, 1 it has none left, but messages
--                                 behind it do, 2 nothing is retried. The new cursor, whether the lease ends there, and
--                                 the failed messages (end excluded) that are delivered again, if any
--         p_dead int[] (which row above, from 1), p_dead_way int[] (the first outcome that dead-letters it),
--         p_dead_offsets bigint[], p_dead_errors text[]   messages to dead-letter
--         p_deferred boolean      these are deferred acks of the broker that has claimed them, which no other ack may overtake
-- out:    one row of arrays, an element per row whose partition and group exist: positions, statuses (0 applied with outcome 0,
--         6 with outcome 1, 1 with outcome 2 or without a failure, 2 lease not valid or not that long, 3 the
--         cursor is not the expected one, 4 applied before: it was sent twice, 5 behind deferred acks),
--         cursors (with 4: its result), started (the cursor before it was applied), heads, released, kept (dead letters are
--         kept, not dropped), queue_names, partition_names
-- locks:  consumers rows in (partition_id, consumer_group) order
-- raises: never for a single item
-- The count of failures belongs to the first failed message (schema/0014_own_failures.sql). Messages that failed right
-- behind it in each of these calls share the count and are dead-lettered with it; others are delivered again, and their own
-- count begins.
create or replace function queen.settle(
    p_ids uuid[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_expected bigint[],
    p_to bigint[], p_stops boolean[], p_failed_from bigint[], p_failed_to bigint[],
    p_dead int[], p_dead_way int[], p_dead_offsets bigint[], p_dead_errors text[], p_deferred boolean,
    out positions int[], out statuses int[], out cursors bigint[], out started bigint[], out heads bigint[],
    out released boolean[], out kept boolean[], out queue_names text[], out partition_names text[])
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_rows queen.settle_row[];
begin
    select array_agg(row(l.ordinal, l.partition_id, l.consumer_group, l.generation, l.status,
                         case l.status when 4 then l.last_ack_from else l.cursor end,
                         case when l.status = 4 then coalesce(l.last_ack_to, l.cursor)
                              when w.cut then w.spent_to else coalesce(p_to[w.place], l.cursor) end,
                         l.head,
                         case when l.status = 4 then l.lease_id is null
                              else coalesce(w.cut or p_stops[w.place] or p_to[w.place] >= l.lease_end, false) end,
                         case when w.place is null then l.attempts
                              when w.cut then 1
                              when p_failed_from[w.place] is null
                                   then case when p_to[w.place] <= l.failed_from then l.attempts else 0 end
                              when w.again then l.attempts + 1
                              else 1 end,
                         case when w.cut then w.spent_to else coalesce(p_failed_from[w.place], l.failed_from) end,
                         case when w.cut then l.run_to
                              when w.again then least(l.failed_to, p_failed_to[w.place])
                              else coalesce(p_failed_to[w.place], l.failed_to) end,
                         l.attempts, l.failed_from, l.failed_to, l.kept, l.queue_id, l.number, l.ack_id,
                         l.queue_name, l.partition_name)::queen.settle_row)
    into v_rows
    from (select a.ordinal::int, a.ack_id, c.lease_id, c.last_ack_from, c.last_ack_to, c.partition_id, c.consumer_group,
                 c.attempts, c.failed_from, c.failed_to, c.lease_end, c.generation, r.run_to, r.had,
                 greatest(c.cursor, h.tail) as cursor, h.head, p.number, q.id as queue_id,
                 q.dead_letter_queue or q.dlq_after_max_retries as kept,
                 q.name as queue_name, p.name as partition_name,
                 case when c.last_ack = a.ack_id then 4
                      when c.deferred_pending > 0 and not p_deferred then 5
                      when a.lease_id is not null
                           and not coalesce(c.lease_id = a.lease_id and c.lease_until > v_now
                                            and p_to[a.ordinal * 3] <= greatest(c.lease_end, h.tail), false) then 2
                      -- The end of the log was lost: the message no longer exists.
                      when p_to[a.ordinal * 3] > h.head then 2
                      when greatest(c.cursor, h.tail) <> a.expected then 3
                      when r.run_from is null then 1
                      when r.had < q.retry_limit then 0
                      when q.retry_limit <= 0 then 1
                      else 6 end as status
          from (select a.*
                from unnest(p_ids, p_partitions, p_groups, p_leases, p_expected)
                     with ordinality a (ack_id, partition_id, consumer_group, lease_id, expected, ordinal)
                order by a.partition_id, a.consumer_group collate "C") a
          cross join lateral (
              select k.* from queen.consumers k
              where k.partition_id = a.partition_id and k.consumer_group = a.consumer_group
              order by k.generation desc limit 1
              for no key update) c
          cross join lateral queen.head_of(a.partition_id) h
          join queen.partitions p on p.id = any (array[a.partition_id])
          join queen.queues q on q.id = any (array[p.queue_id])
          cross join lateral (
              select p_failed_from[a.ordinal * 3 - 2] as run_from, p_failed_to[a.ordinal * 3 - 2] as run_to,
                     case when c.failed_from = p_failed_from[a.ordinal * 3 - 2] then c.attempts else 0 end as had) r) l
    cross join lateral (
        select case l.status when 0 then l.ordinal * 3 - 2 when 6 then l.ordinal * 3 - 1 when 1 then l.ordinal * 3 end as place,
               l.status = 0 and l.had > 0 as again,
               least(l.failed_to, l.run_to) as spent_to,
               -- Some of those that failed together have failed less often than the first.
               l.status = 6 and l.failed_to < l.run_to as cut) w;

    update queen.consumers as c
    set cursor = r.cursor, attempts = r.attempts, failed_from = r.failed_from, failed_to = r.failed_to,
        last_ack = r.ack_id, last_ack_from = r.started, last_ack_to = r.cursor,
        lease_id = case when not r.released then c.lease_id end,
        lease_until = case when not r.released then c.lease_until end,
        lease_start = case when not r.released then coalesce(c.lease_start, c.cursor) end,
        lease_end = case when not r.released then c.lease_end end,
        version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
    from unnest(v_rows) r
    where c.partition_id = any (array[r.partition_id]) and c.consumer_group = r.consumer_group
      and c.generation = r.generation and r.status in (0, 1, 6);

    if cardinality(p_dead) > 0 then
        insert into queen.dead_letter_rows as d (queue_id, partition_id, consumer_group, message_id, message_offset,
                                             attempts, created_at, failed_at, error, frame)
        select r.queue_id, r.partition_id, r.consumer_group,
               coalesce((queen.frame_header(f.frame) ->> 'messageId')::uuid,
                        queen.message_id(s.created_at, a.message_offset, r.number)),
               a.message_offset,
               case when a.message_offset >= r.had_failed_from and a.message_offset < r.had_failed_to
                    then r.had_attempts else 0 end,
               s.created_at, v_now, a.error, f.frame
        from unnest(p_dead, p_dead_way, p_dead_offsets, p_dead_errors) a (ordinal, way, message_offset, error)
        join unnest(v_rows) r on r.ordinal = a.ordinal and r.kept and a.message_offset < r.cursor
                             and a.way <= case r.status when 0 then 0 when 6 then 1 when 1 then 2 else -1 end
        cross join lateral (
            select g.base_offset, g.created_at, g.frames from queen.segments g
            where g.partition_id = r.partition_id and g.base_offset <= a.message_offset
            order by g.base_offset desc limit 1) s
        cross join lateral (
            select split_part(s.frames, e'\n', (a.message_offset - s.base_offset + 1)::int) as frame) f
        -- A message that was deleted or dead-lettered by hand meanwhile is not dead-lettered again.
        where not exists (select 1 from queen.skips k
                          where k.partition_id = r.partition_id and k.message_offset = a.message_offset
                            and (k.consumer_group is null or k.consumer_group = r.consumer_group));
    end if;

    select array_agg(r.ordinal), array_agg(r.status), array_agg(r.cursor), array_agg(r.started), array_agg(r.head),
           array_agg(r.released), array_agg(r.kept), array_agg(r.queue_name), array_agg(r.partition_name)
    into positions, statuses, cursors, started, heads, released, kept, queue_names, partition_names
    from unnest(v_rows) r;
end $$;

-- queen.settle_unlocked: queen.settle for cursors that no other session has locked.
-- in:     as queen.settle, and p_wait int: milliseconds to wait for locked rows; 0 omits them, null waits as long as
--         lock_timeout allows
-- out:    as queen.settle, and busy int[]: the positions of rows that were omitted because of a lock on their cursor, on the
--         partition in which they need a new one, or on the queue or partition of a dead letter
-- locks:  queues and partitions rows of dead letters, partitions rows of new readers, then consumers rows in (partition_id,
--         consumer_group) order, skipping busy ones unless p_wait allows waiting
-- raises: lock_not_available when the wait times out
-- Without a lease, a group may acknowledge where it has not read yet. It gets a cursor only if that is moved or a message
-- failed, so that a refused acknowledgement leaves nothing behind: a cursor holds back retention.
create or replace function queen.settle_unlocked(
    p_ids uuid[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_expected bigint[],
    p_to bigint[], p_stops boolean[], p_failed_from bigint[], p_failed_to bigint[],
    p_dead int[], p_dead_way int[], p_dead_offsets bigint[], p_dead_errors text[], p_deferred boolean, p_wait int,
    out positions int[], out statuses int[], out cursors bigint[], out started bigint[], out heads bigint[],
    out released boolean[], out kept boolean[], out queue_names text[], out partition_names text[], out busy int[])
language plpgsql as $$
begin
    busy := '{}';
    if cardinality(p_dead) > 0 then
        busy := queen.try_owners(
            array(select case when a.ordinal = any (p_dead) then a.id end
                  from unnest(p_partitions) with ordinality a (id, ordinal) order by a.ordinal),
            p_wait);
    end if;
    if array_position(p_leases, null) is not null then
        busy := busy || queen.try_new_readers(
            array(select case when a.lease_id is null and (p_to[a.ordinal * 3] > a.expected or p_stops[a.ordinal * 3 - 2])
                                   and exists (select 1 from queen.head_of(a.id) h where h.head >= p_to[a.ordinal * 3])
                              then a.id end
                  from unnest(p_partitions, p_leases, p_expected) with ordinality a (id, lease_id, expected, ordinal)
                  order by a.ordinal),
            p_groups, p_wait);
    end if;
    busy := busy || (select t.busy from queen.try_readers(p_partitions, p_groups, p_wait) t);
    -- An empty array if there is no partition.
    if busy <> '{}' then
        p_partitions := array(select case when a.ordinal <> all (busy) then a.id end
                              from unnest(p_partitions) with ordinality a (id, ordinal)
                              order by a.ordinal);
    end if;
    select a.* into positions, statuses, cursors, started, heads, released, kept, queue_names, partition_names
    from queen.settle(p_ids, p_partitions, p_groups, p_leases, p_expected, p_to, p_stops, p_failed_from, p_failed_to,
                      p_dead, p_dead_way, p_dead_offsets, p_dead_errors, p_deferred) a;
end $$;

-- queen.try_owners: locks the partition and queue that a new row refers to, as its foreign keys would.
-- in:     p_partitions uuid[] (null = none is needed), p_wait int (milliseconds to wait; 0 = omit what another session has
--         locked, null = as long as lock_timeout allows)
-- out:    int[]: the positions, from 1, of omitted ones
-- locks:  queues rows, then partitions rows, for key share
-- raises: lock_not_available when the wait times out
create or replace function queen.try_owners(p_partitions uuid[], p_wait int)
returns int[] language plpgsql as $$
declare
    v_queues uuid[];
    v_free uuid[];
begin
    if p_wait is distinct from 0 then
        perform queen.limit_wait(p_wait);
        return '{}';
    end if;
    v_queues := array(
        select q.id from queen.queues q
        where q.id = any (array(select p.queue_id from queen.partitions p where p.id = any (p_partitions)))
        order by q.id
        for key share skip locked);
    v_free := array(
        select p.id from queen.partitions p
        where p.id = any (p_partitions) and p.queue_id = any (v_queues)
        order by p.id
        for key share skip locked);
    return array(
        select a.ordinal::int from unnest(p_partitions) with ordinality a (id, ordinal)
        where a.id <> all (v_free) and exists (select 1 from queen.partitions p where p.id = a.id));
end $$;

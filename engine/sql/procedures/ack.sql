-- queen.ack: applies planned acknowledgements, one row per (partition, group).
-- in:     p_ids uuid[]            of each row, the same when it is sent again after its answer was lost
--         p_partitions uuid[], p_groups text[]   each pair at most once
--         p_leases uuid[]         null = no lease check
--         p_expected bigint[]     the cursor the plan was made against
--         p_negative boolean[]    there is a `failed` item above the cursor: it costs a retry while there is one left
--         p_retry_to bigint[], p_retry_stops boolean[], p_retry_dead boolean[]   new cursor, whether the lease ends
--                                 there, and whether something is dead-lettered, while the budget lasts
--         p_final_to bigint[], p_final_stops boolean[], p_final_dead boolean[]   the same once it is spent
--         p_dead int[] (which row above, from 1), p_dead_final boolean[] (only once the budget is spent),
--         p_dead_offsets bigint[], p_dead_errors text[]   messages to dead-letter
--         p_deferred boolean      these are deferred acks of whoever has taken them, which others must not overtake
-- out:    one row of arrays, an element per row whose partition and group exist: positions, statuses (0 applied with
--         budget left, 1 applied with the budget spent or not needed, 2 lease not valid, 3 the cursor is not the expected
--         one, 4 applied before: this is the second time it was sent, 5 behind deferred acks), cursors (with 4: as it left it), started (the cursor before it was
--         applied), heads, released, kept (dead letters are kept, not dropped), queue_names, partition_names
-- locks:  consumers rows in (partition_id, consumer_group) order
-- raises: never for a single item
create or replace function queen.ack(
    p_ids uuid[], p_partitions uuid[], p_groups text[], p_leases uuid[], p_expected bigint[], p_negative boolean[],
    p_retry_to bigint[], p_retry_stops boolean[], p_retry_dead boolean[],
    p_final_to bigint[], p_final_stops boolean[], p_final_dead boolean[],
    p_dead int[], p_dead_final boolean[], p_dead_offsets bigint[], p_dead_errors text[], p_deferred boolean,
    out positions int[], out statuses int[], out cursors bigint[], out started bigint[], out heads bigint[],
    out released boolean[], out kept boolean[], out queue_names text[], out partition_names text[])
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_rows queen.ack_row[];
begin
    select array_agg(row(l.ordinal, l.partition_id, l.consumer_group, l.status,
                         case l.status when 0 then l.retry_to when 1 then l.final_to
                                       when 4 then coalesce(l.last_ack_to, l.cursor) else l.cursor end,
                         l.head,
                         (l.status = 4 and l.lease_id is null) or l.status < 2 and (case l.status when 0 then l.retry_stops else l.final_stops end
                             or coalesce(case l.status when 0 then l.retry_to else l.final_to end >= l.lease_end, false)),
                         case when l.status > 1 then l.attempts
                              when not (case l.status when 0 then l.retry_stops else l.final_stops end)
                                   and coalesce(case l.status when 0 then l.retry_to else l.final_to end
                                                >= l.lease_end, false) then 0
                              else (case when case l.status when 0 then l.retry_dead else l.final_dead end
                                         then 0 else l.attempts end)
                                   + (l.status = 0 and l.negative)::int end,
                         l.kept, l.queue_id, l.number, l.attempts, l.ack_id,
                         case l.status when 4 then l.last_ack_from else l.cursor end, l.queue_name, l.partition_name,
                         l.generation)::queen.ack_row)
    into v_rows
    from (select a.ordinal::int, a.ack_id, c.lease_id, c.last_ack_from, c.last_ack_to, c.partition_id, c.consumer_group,
                 c.attempts, c.lease_end, a.negative,
                 a.retry_to, a.retry_stops, a.retry_dead, a.final_to, a.final_stops, a.final_dead,
                 c.generation, greatest(c.cursor, h.tail) as cursor, h.head, p.number, q.id as queue_id,
                 q.dead_letter_queue or q.dlq_after_max_retries as kept,
                 q.name as queue_name, p.name as partition_name,
                 case when c.last_ack = a.ack_id then 4
                      when c.deferred_pending > 0 and not p_deferred then 5
                      when a.lease_id is not null
                           and not coalesce(c.lease_id = a.lease_id and c.lease_until > v_now, false) then 2
                      -- Of a log whose end was lost: there is no such message any more.
                      when a.final_to > h.head then 2
                      when greatest(c.cursor, h.tail) <> a.expected then 3
                      when a.negative and c.attempts < q.retry_limit then 0
                      else 1 end as status
          from (select a.*
                from unnest(p_ids, p_partitions, p_groups, p_leases, p_expected, p_negative, p_retry_to, p_retry_stops,
                            p_retry_dead, p_final_to, p_final_stops, p_final_dead)
                     with ordinality a (ack_id, partition_id, consumer_group, lease_id, expected, negative, retry_to,
                                        retry_stops, retry_dead, final_to, final_stops, final_dead, ordinal)
                order by a.partition_id, a.consumer_group collate "C") a
          cross join lateral (
              select k.* from queen.consumers k
              where k.partition_id = a.partition_id and k.consumer_group = a.consumer_group
              order by k.generation desc limit 1
              for no key update) c
          cross join lateral queen.head_of(a.partition_id) h
          join queen.partitions p on p.id = any (array[a.partition_id])
          join queen.queues q on q.id = any (array[p.queue_id])) l;

    update queen.consumers as c
    set cursor = r.cursor, attempts = r.attempts, last_ack = r.ack_id, last_ack_from = r.started,
        last_ack_to = r.cursor,
        lease_id = case when not r.released then c.lease_id end,
        lease_until = case when not r.released then c.lease_until end,
        lease_end = case when not r.released then c.lease_end end,
        version = c.version + 1, generation = (c.version + 1) / 16
    from unnest(v_rows) r
    where c.partition_id = any (array[r.partition_id]) and c.consumer_group = r.consumer_group
      and c.generation = r.generation and r.status < 2;

    if cardinality(p_dead) > 0 then
        insert into queen.dead_letter_rows as d (queue_id, partition_id, consumer_group, message_id, message_offset,
                                             attempts, created_at, failed_at, error, frame)
        select r.queue_id, r.partition_id, r.consumer_group,
               coalesce((queen.frame_header(f.frame) ->> 'messageId')::uuid,
                        queen.message_id(s.created_at, a.message_offset, r.number)),
               a.message_offset, r.charged, s.created_at, v_now, a.error, f.frame
        from unnest(p_dead, p_dead_final, p_dead_offsets, p_dead_errors) a (ordinal, final, message_offset, error)
        join unnest(v_rows) r on r.ordinal = a.ordinal and r.kept
                             and (r.status = 1 or (r.status = 0 and not a.final))
        cross join lateral (
            select g.base_offset, g.created_at, g.frames from queen.segments g
            where g.partition_id = r.partition_id and g.base_offset <= a.message_offset
            order by g.base_offset desc limit 1) s
        cross join lateral (
            select split_part(s.frames, e'\n', (a.message_offset - s.base_offset + 1)::int) as frame) f
        -- One that was deleted, or dead-lettered by hand, meanwhile is not dead-lettered again.
        where not exists (select 1 from queen.skips k
                          where k.partition_id = r.partition_id and k.message_offset = a.message_offset
                            and (k.consumer_group is null or k.consumer_group = r.consumer_group));
    end if;

    select array_agg(r.ordinal), array_agg(r.status), array_agg(r.cursor), array_agg(r.started), array_agg(r.head),
           array_agg(r.released), array_agg(r.kept), array_agg(r.queue_name), array_agg(r.partition_name)
    into positions, statuses, cursors, started, heads, released, kept, queue_names, partition_names
    from unnest(v_rows) r;
end $$;

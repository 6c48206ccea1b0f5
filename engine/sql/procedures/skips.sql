-- Messages that a group does not receive (schema/0006_messages.sql). A claim starts after skips at its beginning and ends
-- before the next one, so a claimed range has no holes: fetching, caching and acknowledging need no knowledge of skips.

-- queen.next_kept: the first offset from a position on that a group receives.
-- in:     p_partition uuid, p_group text, p_offset bigint
-- out:    bigint: p_offset itself unless it is skipped; the head if all the rest is
-- locks:  none
-- raises: never
create or replace function queen.next_kept(p_partition uuid, p_group text, p_offset bigint)
returns bigint language plpgsql as $$
begin
    while exists (select 1 from queen.skips k
                  where k.partition_id = p_partition and k.message_offset = p_offset
                    and (k.consumer_group is null or k.consumer_group = p_group)) loop
        p_offset := p_offset + 1;
    end loop;
    return p_offset;
end $$;

-- queen.next_skip: the first offset after a position that a group does not receive.
-- in:     p_partition uuid, p_group text, p_offset bigint
-- out:    bigint, or null
-- locks:  none
-- raises: never
create or replace function queen.next_skip(p_partition uuid, p_group text, p_offset bigint)
returns bigint language plpgsql as $$
begin
    return (select k.message_offset from queen.skips k
            where k.partition_id = p_partition and k.message_offset > p_offset
              and (k.consumer_group is null or k.consumer_group = p_group)
            order by k.message_offset limit 1);
end $$;

-- queen.skip: stops the delivery of a message.
-- in:     p_partition uuid, p_offset bigint, p_group text (null = all groups)
-- out:    nothing
-- locks:  consumers rows of the partition (or of the group) in (partition_id, consumer_group) order; the caller has locked
--         the heads row
-- raises: never
-- Cursors at this message move on, unless they are leased: leased messages have been delivered, and are settled with the lease.
create or replace function queen.skip(p_partition uuid, p_offset bigint, p_group text)
returns void language plpgsql as $$
declare
    v_groups text[];
begin
    insert into queen.skips as k (partition_id, message_offset, consumer_group) values (p_partition, p_offset, p_group)
    on conflict do nothing;
    update queen.heads as h
    set skips_end = greatest(h.skips_end, p_offset + 1), version = h.version + 1, generation = queen.next_generation(h.generation, h.version)
    from (select n.generation from queen.head_of(p_partition) n offset 0) n
    where h.partition_id = p_partition and h.generation = n.generation;

    v_groups := array(select c.consumer_group from queen.readers_of(p_partition) c
                      where p_group is null or c.consumer_group = p_group);
    perform queen.lock_readers(array_fill(p_partition, array[cardinality(v_groups)]), v_groups);
    -- Rows whose cursor stays get a new version too: a claim that began before this one then finds it changed, and looks again.
    update queen.consumers as c
    set cursor = case when l.stands then l.kept else c.cursor end, attempts = case when l.stands then 0 else c.attempts end,
        lease_start = case when l.stands then coalesce(c.lease_start, c.cursor) else c.lease_start end,
        version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
    from (select r.consumer_group, r.generation,
                 not coalesce(r.lease_until > queen.now(), false) and r.deferred_pending = 0
                     and greatest(r.cursor, h.tail) = p_offset as stands,
                 queen.next_kept(p_partition, r.consumer_group, greatest(r.cursor, h.tail)) as kept
          from unnest(v_groups) g (name)
          cross join lateral queen.reader_of(p_partition, g.name) r
          cross join queen.head_of(p_partition) h
          where r.cursor <= p_offset
          offset 0) l
    where c.partition_id = p_partition and c.consumer_group = l.consumer_group and c.generation = l.generation;
end $$;

-- queen.sweep_skips: removes skips of messages that have left the log.
-- in:     nothing
-- out:    bigint: the number of removed skips
-- locks:  skips rows
-- raises: never
create or replace function queen.sweep_skips()
returns bigint language plpgsql set enable_seqscan = on set jit = off as $$
declare
    v_swept bigint;
begin
    delete from queen.skips k
    where k.message_offset < (select h.tail from queen.head_of(k.partition_id) h);
    get diagnostics v_swept = row_count;
    return v_swept;
end $$;

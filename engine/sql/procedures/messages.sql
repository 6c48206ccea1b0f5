-- Single messages: finding them, their state, deleting them and dead-lettering them by hand. Nothing here reads more of the
-- log than requested; paging is in engine/src/admin/browse.rs. Readers of the log are not `stable` (extents.sql).

-- queen.find_message: the newest stored message of a transaction.
-- in:     p_partition uuid, p_hashes bytea (32 bytes: the hash as chosen by a client and as generated)
-- out:    bigint: its offset, or null
-- locks:  none
-- raises: never
-- Searches backward from the end, because the caller has usually just seen the message. Deleted messages are not found.
create or replace function queen.find_message(p_partition uuid, p_hashes bytea)
returns bigint language plpgsql as $$
declare
    v_chosen bytea := substr(p_hashes, 1, 16);
    v_minted bytea := substr(p_hashes, 17, 16);
    v_head bigint;
    v_tail bigint;
    v_to bigint;
    v_from bigint;
    v_found bigint;
    v_step bigint := 1000;
begin
    select h.head, h.tail into v_head, v_tail from queen.head_of(p_partition) h;
    v_to := v_head;
    while v_to > v_tail loop
        v_from := queen.segment_of(p_partition, greatest(v_to - v_step, v_tail));
        v_found := (
            select s.base_offset + o.place
            from (select g.base_offset, g.count, g.transactions || ''::bytea as hashes
                  from queen.segments g
                  where g.partition_id = p_partition and g.base_offset >= v_from and g.base_offset < v_to
                  order by g.base_offset desc
                  offset 0) s
            cross join lateral (
                select p.place from generate_series(s.count - 1, 0, -1) p (place)
                where (position(v_chosen in s.hashes) > 0 or position(v_minted in s.hashes) > 0)
                  and substr(s.hashes, p.place * 16 + 1, 16) in (v_chosen, v_minted)
                  and s.base_offset + p.place >= v_tail
                  and not exists (select 1 from queen.skips k
                                  where k.partition_id = p_partition and k.message_offset = s.base_offset + p.place
                                    and k.consumer_group is null)
                offset 0) o
            limit 1);
        if v_found is not null then
            return v_found;
        end if;
        exit when v_from >= v_to;
        v_to := v_from;
        v_step := v_step * 8;
    end loop;
    return null;
end $$;

-- queen.find_messages: all stored messages of a transaction in a part of a partition.
-- in:     p_partition uuid, p_hashes bytea (as queen.find_message), p_from bigint, p_to bigint (end excluded)
-- out:    bigint[]: their offsets
-- locks:  none
-- raises: never
create or replace function queen.find_messages(p_partition uuid, p_hashes bytea, p_from bigint, p_to bigint)
returns bigint[] language plpgsql as $$
declare
    v_chosen bytea := substr(p_hashes, 1, 16);
    v_minted bytea := substr(p_hashes, 17, 16);
begin
    return array(
        select s.base_offset + p.place
        from (select g.base_offset, g.count, g.transactions || ''::bytea as hashes
              from queen.segments g
              where g.partition_id = p_partition and g.base_offset >= queen.segment_of(p_partition, p_from)
                and g.base_offset < p_to
              offset 0) s
        cross join lateral generate_series(0, s.count - 1) p (place)
        where (position(v_chosen in s.hashes) > 0 or position(v_minted in s.hashes) > 0)
          and substr(s.hashes, p.place * 16 + 1, 16) in (v_chosen, v_minted) and s.base_offset + p.place >= p_from
          and not exists (select 1 from queen.skips k
                          where k.partition_id = p_partition and k.message_offset = s.base_offset + p.place
                            and k.consumer_group is null));
end $$;

-- queen.delete_message: deletes all messages of a transaction from a partition, with their dead letters.
-- in:     p_partition uuid, p_hashes bytea (as queen.find_message), p_transaction text
-- out:    boolean: there was something to delete
-- locks:  the heads row, consumers rows of the partition in order, dead_letter_rows, then the queue_counts row
-- raises: never
-- The log is append-only, so a deleted message stays in its segment and is excluded from claims (skips.sql). A currently leased
-- message has been delivered, and its acknowledgement works as usual. The search may take long, so it runs before the lock that
-- every push needs; under the lock, only what was pushed meanwhile is searched.
create or replace function queen.delete_message(p_partition uuid, p_hashes bytea, p_transaction text)
returns boolean language plpgsql as $$
declare
    v_tail bigint;
    v_head bigint;
    v_offset bigint;
    v_offsets bigint[];
    v_letters bigint;
begin
    select h.tail, h.head into v_tail, v_head from queen.head_of(p_partition) h;
    if found then
        v_offsets := queen.find_messages(p_partition, p_hashes, v_tail, v_head);
        perform 1 from queen.heads h where h.partition_id = p_partition order by h.generation desc limit 1
        for no key update;
        v_offsets := v_offsets || queen.find_messages(
            p_partition, p_hashes, v_head, coalesce((select h.head from queen.head_of(p_partition) h), v_head));
        foreach v_offset in array v_offsets loop
            perform queen.skip(p_partition, v_offset, null);
        end loop;
    end if;
    delete from queen.dead_letter_rows d where d.partition_id = p_partition and d.transaction_id = p_transaction;
    get diagnostics v_letters = row_count;
    perform queen.doubt(array(select h.queue_id from queen.head_of(p_partition) h));
    return coalesce(cardinality(v_offsets), 0) > 0 or v_letters > 0;
end $$;

-- queen.bury_message: dead-letters an undelivered message for one group.
-- in:     p_partition uuid, p_hashes bytea (as queen.find_message), p_group text, p_error text
-- out:    status text: buried, missing, leased (by a consumer of the group), committed (the group has passed it);
--         message_id uuid, failed_at timestamptz of the dead letter
-- locks:  the partitions row if the group has not read here yet, the heads row, the consumers row
-- raises: never
-- Repeating it still returns `buried`, so that it can be retried after a lost response.
create or replace function queen.bury_message(p_partition uuid, p_hashes bytea, p_group text, p_error text,
                                              out status text, out message_id uuid, out failed_at timestamptz)
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_offset bigint;
    v_reader record;
begin
    v_offset := queen.find_message(p_partition, p_hashes);
    if v_offset is null then
        status := 'missing';
        return;
    end if;
    -- A group that has not read here gets no cursor, because that would hold back retention for a reader that may never
    -- come. If it does come, it skips the message. It cannot come before this is done, because it would have to lock the
    -- partition.
    if not exists (select 1 from queen.reader_of(p_partition, p_group)) then
        perform 1 from queen.partitions p where p.id = p_partition for no key update;
    end if;
    perform 1 from queen.heads h where h.partition_id = p_partition order by h.generation desc limit 1
    for no key update;
    if exists (select 1 from queen.head_of(p_partition) h where h.tail > v_offset)
       or exists (select 1 from queen.skips k where k.partition_id = p_partition and k.message_offset = v_offset
                                                and k.consumer_group is null) then
        status := 'missing';
        return;
    end if;
    perform queen.lock_readers(array[p_partition], array[p_group]);
    select greatest(coalesce(c.cursor, queen.first_read(p_partition, p_group)), h.tail) as cursor,
           coalesce(c.lease_until > v_now, false) as live, c.lease_end,
           case when c.failed_from = v_offset then c.attempts else 0 end as attempts
    into v_reader
    from queen.head_of(p_partition) h left join queen.reader_of(p_partition, p_group) c on true;

    select d.message_id, d.failed_at into message_id, failed_at from queen.dead_letter_rows d
    where d.queue_id = (select h.queue_id from queen.head_of(p_partition) h) and d.partition_id = p_partition
      and d.message_offset = v_offset and d.consumer_group = p_group
    limit 1;
    if found then
        status := 'buried';
        return;
    end if;
    status := case when v_offset < v_reader.cursor
                        or exists (select 1 from queen.skips k
                                   where k.partition_id = p_partition and k.message_offset = v_offset
                                     and k.consumer_group = p_group) then 'committed'
                   when v_reader.live and v_offset < v_reader.lease_end then 'leased'
                   else 'buried' end;
    if status <> 'buried' then
        return;
    end if;
    insert into queen.dead_letter_rows as d (queue_id, partition_id, consumer_group, message_id, message_offset, attempts,
                                         created_at, failed_at, error, frame)
    select p.queue_id, p.id, p_group,
           coalesce((queen.frame_header(f.frame) ->> 'messageId')::uuid,
                    queen.message_id(s.created_at, v_offset, p.number)),
           v_offset, v_reader.attempts, s.created_at, v_now,
           p_error, f.frame
    from queen.partitions p
    cross join lateral (
        select g.base_offset, g.created_at, g.frames from queen.segments g
        where g.partition_id = p_partition and g.base_offset <= v_offset
        order by g.base_offset desc limit 1) s
    cross join lateral (select split_part(s.frames, e'\n', (v_offset - s.base_offset + 1)::int) as frame) f
    where p.id = p_partition
    returning d.message_id, d.failed_at into message_id, failed_at;
    perform queen.doubt(array(select h.queue_id from queen.head_of(p_partition) h));
    perform queen.skip(p_partition, v_offset, p_group);
end $$;

-- queen.has_queue: whether a queue exists.
-- in:     p_queue text
-- out:    boolean
-- locks:  none
-- raises: never
create or replace function queen.has_queue(p_queue text)
returns boolean language sql stable as $$
    select exists (select 1 from queen.queues q where q.name = p_queue)
$$;

-- queen.partitions_within: the partitions selected by labels and names, if they are few.
-- in:     p_queue text, p_partition text, p_namespace text, p_task text (null = any), p_limit int
-- out:    id uuid, number bigint: at most p_limit, in no order
-- locks:  none
-- raises: never
create or replace function queen.partitions_within(
    p_queue text, p_partition text, p_namespace text, p_task text, p_limit int)
returns table (id uuid, number bigint)
language plpgsql stable set plan_cache_mode = force_custom_plan set enable_seqscan = on set jit = off as $$
begin
    return query
    select p.id, p.number
    from (select q.id from queen.queues q
          where (p_queue is null or q.name = p_queue) and (p_namespace is null or q.namespace = p_namespace)
            and (p_task is null or q.task = p_task)
          offset 0) q
    cross join lateral (
        select n.id, n.number from queen.partitions n
        where n.queue_id = q.id and (p_partition is null or n.name = p_partition)
        limit p_limit) p
    limit p_limit;
end $$;

-- queen.newest_spans: the newest segments of some partitions, as ranges of offsets.
-- in:     p_partitions uuid[], p_before bigint[] (offsets to stay below; null = what is younger than p_until),
--         p_until timestamptz, p_limit int (of each partition)
-- out:    position int, base_offset bigint (to continue below), first bigint, last bigint (end excluded; messages removed by
--         retention are excluded), created_at timestamptz, gaps bigint[] (deleted messages); newest first per position
-- locks:  none
-- raises: never
create or replace function queen.newest_spans(
    p_partitions uuid[], p_before bigint[], p_until timestamptz, p_limit int)
returns table ("position" int, base_offset bigint, first bigint, last bigint, created_at timestamptz, gaps bigint[])
language plpgsql as $$
begin
    return query
    select a.ordinal::int, s.base_offset, greatest(s.base_offset, h.tail), s.base_offset + s.count, s.created_at,
           case when h.skips_end > s.base_offset
                then queen.gaps(a.id, s.base_offset, s.base_offset + s.count) end
    from unnest(p_partitions, p_before) with ordinality a (id, before, ordinal)
    cross join lateral queen.head_of(a.id) h
    cross join lateral (select case when a.before is not null then a.before
                                    else queen.offset_after(a.id, p_until) end as before) b
    cross join lateral (
        select g.base_offset, g.count, g.created_at from queen.segments g
        where g.partition_id = a.id and g.base_offset < b.before and g.base_offset + g.count > h.tail
        order by g.base_offset desc
        limit p_limit) s;
end $$;

-- queen.gaps: the deleted messages of a range.
-- in:     p_partition uuid, p_first bigint, p_last bigint (end excluded)
-- out:    bigint[]
-- locks:  none
-- raises: never
create or replace function queen.gaps(p_partition uuid, p_first bigint, p_last bigint)
returns bigint[] language sql volatile as $$
    select array(select k.message_offset from queen.skips k
                 where k.partition_id = p_partition and k.message_offset >= p_first and k.message_offset < p_last
                   and k.consumer_group is null)
$$;

-- queen.spans_between: the segments of a time range, as ranges of offsets, of all partitions selected by labels and names.
-- in:     p_queue text, p_partition text, p_namespace text, p_task text (null = any),
--         p_after timestamptz (excluded), p_until timestamptz (included), p_limit int: segments to examine
-- out:    looked int (on every row; above p_limit: there were more, and the result is incomplete), partition_id uuid,
--         number bigint, first bigint, last bigint, created_at timestamptz, gaps bigint[] (all null on a single row if
--         nothing was selected)
-- locks:  none
-- raises: never
-- Uses the index on age, which is accurate to a few pages, and only extents that can contain anything that young.
create or replace function queen.spans_between(
    p_queue text, p_partition text, p_namespace text, p_task text, p_after timestamptz, p_until timestamptz,
    p_limit int)
returns table (looked int, partition_id uuid, number bigint, first bigint, last bigint, created_at timestamptz,
               gaps bigint[])
language plpgsql
set enable_bitmapscan = on set enable_hashjoin = on set enable_sort = on set plan_cache_mode = force_custom_plan
set jit = off as $$
declare
    v_extent int := coalesce((select max(e.number) from queen.extents e
                              where e.created_at < p_after - interval '1 minute'), 0);
begin
    return query
    with read as materialized (
        select s.partition_id, s.base_offset, s.count, s.created_at
        from queen.segments s
        where s.created_at > p_after and s.created_at <= p_until and s.extent >= v_extent
        limit p_limit + 1),
    looked as (select count(*)::int as count from read)
    select l.count, f.partition_id, f.number, f.first, f.last, f.created_at, f.gaps
    from looked l
    left join (
        select r.partition_id, p.number, greatest(r.base_offset, h.tail) as first, r.base_offset + r.count as last,
               r.created_at,
               case when h.skips_end > r.base_offset
                    then queen.gaps(r.partition_id, r.base_offset, r.base_offset + r.count) end as gaps
        from read r
        join queen.partitions p on p.id = any (array[r.partition_id])
        cross join lateral queen.head_of(r.partition_id) h
        join queen.queues q on q.id = any (array[p.queue_id])
        where (select k.count from looked k) <= p_limit and h.tail < r.base_offset + r.count
          and (p_queue is null or q.name = p_queue) and (p_partition is null or p.name = p_partition)
          and (p_namespace is null or q.namespace = p_namespace) and (p_task is null or q.task = p_task)) f on true;
end $$;

-- queen.readers_at: the positions of all groups in some partitions.
-- in:     p_partitions uuid[]
-- out:    partition_id uuid, consumer_group text, cursor bigint, lease_end bigint, lease_until timestamptz (both null
--         without a live lease), skipped bigint[] (undelivered messages that the group will not receive)
-- locks:  none
-- raises: never
create or replace function queen.readers_at(p_partitions uuid[])
returns table (partition_id uuid, consumer_group text, cursor bigint, lease_end bigint, lease_until timestamptz,
               skipped bigint[])
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
begin
    return query
    select a.id, c.consumer_group::text, greatest(c.cursor, h.tail),
           case when c.lease_until > v_now then c.lease_end end,
           case when c.lease_until > v_now then c.lease_until end,
           case when h.skips_end > greatest(c.cursor, h.tail)
                then array(select k.message_offset from queen.skips k
                           where k.partition_id = a.id and k.message_offset >= c.cursor
                             and k.consumer_group = c.consumer_group) end
    from unnest(p_partitions) a (id)
    cross join lateral queen.head_of(a.id) h
    cross join lateral queen.readers_of(a.id) c;
end $$;

-- queen.dead_between: which messages of some ranges are dead letters.
-- in:     p_partitions uuid[], p_first bigint[], p_last bigint[] (end excluded)
-- out:    partition_id uuid, message_offset bigint
-- locks:  none
-- raises: never
create or replace function queen.dead_between(p_partitions uuid[], p_first bigint[], p_last bigint[])
returns table (partition_id uuid, message_offset bigint)
language plpgsql stable as $$
begin
    return query
    select d.partition_id, d.message_offset
    from unnest(p_partitions, p_first, p_last) a (id, first, last)
    cross join lateral queen.head_of(a.id) h
    cross join lateral (
        select k.partition_id, k.message_offset from queen.dead_letter_rows k
        where k.queue_id = h.queue_id and k.partition_id = a.id
          and k.message_offset >= a.first and k.message_offset < a.last) d;
end $$;

-- queen.messages_at: messages by position, with the properties of their queue.
-- in:     p_partitions uuid[], p_offsets bigint[]
-- out:    position int (none for a removed message), created_at timestamptz, frame text, number bigint, and of the
--         queue: queue_name, partition_name, namespace, task text, priority, lease_time, retry_limit, retry_delay, ttl int;
--         of its last dead letter, if there is one: dead boolean, error text, attempts int
-- locks:  none
-- raises: never
-- Each segment is parsed once, however many of its messages are requested.
create or replace function queen.messages_at(p_partitions uuid[], p_offsets bigint[])
returns table ("position" int, created_at timestamptz, frame text, number bigint, queue_name text,
               partition_name text, namespace text, task text, priority int, lease_time int, retry_limit int,
               retry_delay int, ttl int, dead boolean, error text, attempts int)
language plpgsql set enable_hashjoin = on set enable_sort = on as $$
begin
    return query
    with wanted as materialized (
        select a.ordinal, a.id, a.message_offset, s.base_offset
        from unnest(p_partitions, p_offsets) with ordinality a (id, message_offset, ordinal)
        cross join lateral queen.head_of(a.id) h
        cross join lateral (
            select g.base_offset from queen.segments g
            where g.partition_id = a.id and g.base_offset <= a.message_offset
            order by g.base_offset desc limit 1) s
        where a.message_offset >= h.tail and a.message_offset < h.head),
    taken as materialized (
        select w.id, w.base_offset, g.created_at, string_to_array(g.frames, e'\n') as frames
        from (select distinct w.id, w.base_offset from wanted w) w
        cross join lateral (select g.created_at, g.frames from queen.segments g
                            where g.partition_id = w.id and g.base_offset = w.base_offset limit 1) g)
    select w.ordinal::int, t.created_at, t.frames[w.message_offset - w.base_offset + 1], p.number, q.name, p.name,
           q.namespace, q.task, q.priority, q.lease_time, q.retry_limit, q.retry_delay, q.ttl,
           d.partition_id is not null, d.error, d.attempts
    from wanted w
    join taken t on t.id = w.id and t.base_offset = w.base_offset
    join queen.partitions p on p.id = any (array[w.id])
    join queen.queues q on q.id = any (array[p.queue_id])
    left join lateral (
        select k.partition_id, k.error, k.attempts from queen.dead_letter_rows k
        where k.queue_id = p.queue_id and k.partition_id = w.id and k.message_offset = w.message_offset
        order by k.failed_at desc limit 1) d on true;
end $$;

-- queen.dead_message: a message that may have left the log, from its latest dead letter.
-- in:     p_partition uuid, p_transaction text
-- out:    as queen.messages_at, with message_id uuid and message_offset bigint; no row if there is no such dead letter
-- locks:  none
-- raises: never
create or replace function queen.dead_message(p_partition uuid, p_transaction text)
returns table (message_id uuid, message_offset bigint, created_at timestamptz, frame text, number bigint,
               queue_name text, partition_name text, namespace text, task text, priority int, lease_time int,
               retry_limit int, retry_delay int, ttl int, dead boolean, error text, attempts int)
language plpgsql stable set enable_sort = on as $$
begin
    return query
    select d.message_id, d.message_offset, d.created_at, d.frame, p.number, q.name, p.name, q.namespace, q.task,
           q.priority, q.lease_time, q.retry_limit, q.retry_delay, q.ttl, true, d.error, d.attempts
    from queen.dead_letter_rows d
    join queen.partitions p on p.id = any (array[d.partition_id])
    join queen.queues q on q.id = any (array[p.queue_id])
    where d.partition_id = p_partition and d.transaction_id = p_transaction
    order by d.failed_at desc, d.id limit 1;
end $$;

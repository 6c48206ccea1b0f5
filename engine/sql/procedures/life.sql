-- queen.note_life: records events of traced messages.
-- in:     arrays, an element per event: p_partitions uuid[], p_offsets bigint[], p_messages uuid[], p_transactions text[],
--         p_ages float8[] (seconds since it happened), p_events text[], p_groups text[], p_attempts int[], p_errors text[],
--         p_operations uuid[], p_other_partitions uuid[], p_other_messages uuid[], p_other_queues text[],
--         p_other_names text[] (of partitions), p_other_transactions text[]
-- out:    int: the number of recorded events; those of deleted partitions are ignored
-- locks:  partitions rows in id order, against their deletion only
-- raises: never for a single event
-- Ages instead of times, because brokers' clocks differ and everything else uses the database's.
create or replace function queen.note_life(
    p_partitions uuid[], p_offsets bigint[], p_messages uuid[], p_transactions text[], p_ages float8[], p_events text[],
    p_groups text[], p_attempts int[], p_errors text[], p_operations uuid[], p_other_partitions uuid[],
    p_other_messages uuid[], p_other_queues text[], p_other_names text[], p_other_transactions text[])
returns int language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_live uuid[];
    v_written int;
begin
    select array_agg(l.id) into v_live
    from (select p.id from (select distinct a.id from unnest(p_partitions) a (id) order by a.id) a
          join queen.partitions p on p.id = any (array[a.id])
          order by p.id for key share of p) l;
    insert into queen.life_events as e (partition_id, message_offset, message_id, transaction_id, at, event,
                                        consumer_group, attempt, error, operation, other_partition_id,
                                        other_message_id, other_queue, other_partition, other_transaction_id)
    select a.partition_id, a.message_offset, a.message_id, a.transaction_id, v_now - make_interval(secs => a.age),
           a.event, a.consumer_group, a.attempt, a.error, a.operation, a.other_partition_id, a.other_message_id,
           a.other_queue, a.other_partition, a.other_transaction_id
    from unnest(p_partitions, p_offsets, p_messages, p_transactions, p_ages, p_events, p_groups, p_attempts, p_errors,
                p_operations, p_other_partitions, p_other_messages, p_other_queues, p_other_names,
                p_other_transactions)
         with ordinality a (partition_id, message_offset, message_id, transaction_id, age, event, consumer_group,
                            attempt, error, operation, other_partition_id, other_message_id, other_queue,
                            other_partition, other_transaction_id, ordinal)
    where a.partition_id = any (v_live)
    order by a.ordinal;
    get diagnostics v_written = row_count;
    return v_written;
end $$;

-- queen.life_traced: the traced messages of a range, for a broker that has not delivered them.
-- in:     p_partition uuid, p_first bigint, p_last bigint (end excluded)
-- out:    message_offset bigint, message_id uuid, transaction_id text, in order
-- locks:  none
-- raises: never
-- Only segments that contain the field's name are parsed.
create or replace function queen.life_traced(p_partition uuid, p_first bigint, p_last bigint)
returns table (message_offset bigint, message_id uuid, transaction_id text)
language plpgsql set plan_cache_mode = force_custom_plan set enable_sort = on set jit = off as $$
begin
    return query
    select m.message_offset,
           coalesce((m.header ->> 'messageId')::uuid, queen.message_id(m.created_at, m.message_offset, p.number)),
           m.header ->> 'transactionId'
    from (select s.created_at, s.base_offset + l.ordinal - 1 as message_offset, queen.frame_header(l.frame) as header
          from (select g.* from queen.segments g
                where g.partition_id = p_partition and g.base_offset < p_last and g.base_offset + g.count > p_first
                  and g.base_offset >= coalesce((select k.base_offset from queen.segments k
                                                 where k.partition_id = p_partition and k.base_offset <= p_first
                                                 order by k.base_offset desc limit 1), 0)
                  and (position('"traceparent":"' in g.frames) > 0 or position('"traceId":"' in g.frames) > 0)
                offset 0) s
          cross join lateral unnest(string_to_array(s.frames, e'\n')) with ordinality l (frame, ordinal)
          where s.base_offset + l.ordinal - 1 >= p_first and s.base_offset + l.ordinal - 1 < p_last) m
    join queen.partitions p on p.id = p_partition
    where m.header ->> 'traceparent' is not null or m.header ->> 'traceId' is not null
    order by m.message_offset;
end $$;

-- queen.sweep_life: removes the oldest events.
-- in:     p_age interval, p_limit int
-- out:    int: the number of removed events
-- locks:  the removed rows
-- raises: never
-- In order of their number, which is roughly their age, so that one look at the first of them is enough if none is expired.
create or replace function queen.sweep_life(p_age interval, p_limit int)
returns int language plpgsql as $$
declare
    v_swept int;
begin
    delete from queen.life_events e
    where e.number = any (array(
        select o.number
        from (select k.number, k.at from queen.life_events k order by k.number limit p_limit) o
        where o.at < queen.now() - p_age));
    get diagnostics v_swept = row_count;
    return v_swept;
end $$;

-- queen.life_message: finds a message by its transaction id, or what is left of it.
-- in:     p_partition uuid, p_transaction text, p_hashes bytea (both variants of its hash, 16 bytes each)
-- out:    queue_name text, partition_name text, message_offset bigint, message_id uuid, created_at timestamptz,
--         header text (its frame without the payload), base_offset bigint, count int, extent int (its segment; null if
--         it is no longer in the log). Then the data comes from a dead letter, or without header and time from an event. No
--         row: unknown. If several have this id, the oldest stored one
-- locks:  none
-- raises: never
-- Reads the hashes of the whole partition, 16 bytes per message: for interactive use only.
create or replace function queen.life_message(p_partition uuid, p_transaction text, p_hashes bytea)
returns table (queue_name text, partition_name text, message_offset bigint, message_id uuid, created_at timestamptz,
               header text, base_offset bigint, count int, extent int)
language plpgsql set plan_cache_mode = force_custom_plan set enable_sort = on set jit = off as $$
declare
    v_partition record;
    v_from bigint;
begin
    select q.name as queue_name, p.name as partition_name, p.number, h.tail into v_partition
    from queen.partitions p
    join queen.queues q on q.id = p.queue_id
    cross join lateral queen.head_of(p.id) h
    where p.id = p_partition;
    if not found then
        return;
    end if;
    v_from := coalesce((select s.base_offset from queen.segments s
                        where s.partition_id = p_partition and s.base_offset <= v_partition.tail
                        order by s.base_offset desc limit 1), 0);
    return query
    select v_partition.queue_name, v_partition.partition_name, f.message_offset,
           coalesce((queen.frame_header(l.frame) ->> 'messageId')::uuid,
                    queen.message_id(s.created_at, f.message_offset, v_partition.number)),
           s.created_at, left(l.frame, position(',"payload":' in l.frame) - 1), s.base_offset, s.count, s.extent
    from (select t.message_offset from queen.find_transactions(p_partition, v_from, null, '-infinity', p_hashes) t
          where t.message_offset >= v_partition.tail
          order by t.message_offset limit 1) f
    cross join lateral (
        select g.base_offset, g.created_at, g.count, g.extent, g.frames from queen.segments g
        where g.partition_id = p_partition and g.base_offset <= f.message_offset
        order by g.base_offset desc limit 1) s
    cross join lateral (
        select split_part(s.frames, e'\n', (f.message_offset - s.base_offset + 1)::int) as frame) l;
    if found then
        return;
    end if;
    return query
    select v_partition.queue_name, v_partition.partition_name, d.message_offset, d.message_id, d.created_at,
           left(d.frame, position(',"payload":' in d.frame) - 1), null::bigint, null::int, null::int
    from queen.dead_letter_rows d
    where d.partition_id = p_partition and d.transaction_id = p_transaction
    order by d.message_offset limit 1;
    if found then
        return;
    end if;
    return query
    select v_partition.queue_name, v_partition.partition_name, e.message_offset, e.message_id, null::timestamptz,
           null::text, null::bigint, null::int, null::int
    from queen.life_events e
    where e.partition_id = p_partition and e.transaction_id = p_transaction
    order by e.number limit 1;
end $$;

-- queen.life_groups: the state of a message in each group that reads its partition.
-- in:     p_partition uuid, p_offset bigint, p_transaction text, p_limit int
-- out:    consumer_group text, delivered boolean (if known: now, by an event, or because it is finished),
--         consumed boolean (the cursor is past it), leased_until timestamptz (null: not leased now), attempts int (failures
--         so far), dead boolean, dead_error text, dead_attempts int, dead_at timestamptz
-- locks:  none
-- raises: never
-- Groups with a cursor there, and groups registered for the queue that have not read the partition yet.
create or replace function queen.life_groups(p_partition uuid, p_offset bigint, p_transaction text, p_limit int)
returns table (consumer_group text, delivered boolean, consumed boolean, leased_until timestamptz, attempts int,
               dead boolean, dead_error text, dead_attempts int, dead_at timestamptz)
language plpgsql stable
set plan_cache_mode = force_custom_plan set enable_sort = on set enable_seqscan = on set jit = off as $$
declare
    v_now timestamptz := queen.now();
begin
    return query
    select g.name,
           r.consumed or r.leased or d.failed_at is not null
               or exists (select 1 from queen.life_events e
                          where e.partition_id = p_partition and e.transaction_id = p_transaction
                            and e.message_offset = p_offset and e.consumer_group = g.name
                            and e.event = 'delivered'),
           r.consumed, case when r.leased then r.lease_until end, r.attempts,
           d.failed_at is not null, d.error, d.attempts, d.failed_at
    from (select c.consumer_group as name from queen.readers_of(p_partition) c
          union
          select s.consumer_group collate "C" from queen.partitions p
          join queen.queues q on q.id = p.queue_id
          join queen.groups s on s.queue_name = q.name and s.partition_name in ('', p.name)
          where p.id = p_partition
          order by 1 limit p_limit) g
    left join lateral (
        select c.*, greatest(c.cursor, h.tail) as reached
        from queen.reader_of(p_partition, g.name) c cross join queen.head_of(p_partition) h) c on true
    cross join lateral (
        select coalesce(c.reached > p_offset, false) as consumed,
               coalesce(c.reached <= p_offset and c.lease_end > p_offset and c.lease_until > v_now, false) as leased,
               coalesce(c.lease_own_until, c.lease_until) as lease_until,
               case when c.failed_from = p_offset and c.reached <= p_offset then c.attempts else 0 end as attempts) r
    left join lateral (
        select l.error, l.attempts, l.failed_at from queen.dead_letter_rows l
        where l.partition_id = p_partition and l.message_offset = p_offset and l.consumer_group = g.name
        order by l.failed_at desc limit 1) d on true
    order by g.name;
end $$;

-- queen.life_events_of: the recorded events of a message.
-- in:     p_partition uuid, p_offset bigint, p_transaction text, p_limit int
-- out:    at timestamptz, event text, consumer_group text, attempt int, error text, operation uuid, other_queue text,
--         other_partition text, other_partition_id uuid, other_transaction_id text, other_message_id uuid; in order of time
-- locks:  none
-- raises: never
create or replace function queen.life_events_of(p_partition uuid, p_offset bigint, p_transaction text, p_limit int)
returns table (at timestamptz, event text, consumer_group text, attempt int, error text, operation uuid,
               other_queue text, other_partition text, other_partition_id uuid, other_transaction_id text,
               other_message_id uuid)
language plpgsql stable set plan_cache_mode = force_custom_plan set enable_sort = on set jit = off as $$
begin
    return query
    select e.at, e.event, e.consumer_group, e.attempt, e.error, e.operation, e.other_queue, e.other_partition,
           e.other_partition_id, e.other_transaction_id, e.other_message_id
    from (select k.* from queen.life_events k
          where k.partition_id = p_partition and k.transaction_id = p_transaction and k.message_offset = p_offset
          order by k.number limit p_limit) e
    order by e.at, e.number;
end $$;

-- Traces: notes of consumers about messages, found by message or by name.

-- queen.add_trace: stores a note.
-- in:     p_id uuid, p_partition uuid, p_transaction text, p_hashes bytea (as queen.find_message), p_offset bigint (null = to
--         search for it), p_group text, p_worker text, p_event text, p_names text[] (distinct), p_data text (JSON)
-- out:    boolean: the message exists
-- locks:  a share lock on the partition only
-- raises: never
-- For a message that has left the log, a dead letter is sufficient. A repeated call stores it once.
create or replace function queen.add_trace(
    p_id uuid, p_partition uuid, p_transaction text, p_hashes bytea, p_offset bigint, p_group text, p_worker text,
    p_event text, p_names text[], p_data text)
returns boolean language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_offset bigint := coalesce(p_offset, queen.find_message(p_partition, p_hashes));
begin
    perform 1 from queen.partitions p where p.id = p_partition for key share;
    if not found then
        return false;
    end if;
    if v_offset is null
       and not exists (select 1 from queen.dead_letter_rows d
                       where d.partition_id = p_partition and d.transaction_id = p_transaction) then
        return false;
    end if;
    insert into queen.traces as t (id, partition_id, message_offset, created_at, transaction_id, event_type,
                                   consumer_group, worker_id, trace_names, data)
    values (p_id, p_partition, v_offset, v_now, p_transaction, p_event, p_group, p_worker, p_names, p_data)
    on conflict (id) do nothing;
    if found then
        insert into queen.trace_names as n (name, created_at, trace_id)
        select a.name, v_now, p_id from unnest(p_names) a (name);
    end if;
    return true;
end $$;

-- queen.message_traces: the notes about one message, oldest first.
-- in:     p_partition uuid, p_transaction text, p_limit bigint
-- out:    id uuid, event_type text, data text, consumer_group text, worker_id text, created_at timestamptz, trace_names text[]
-- locks:  none
-- raises: never
create or replace function queen.message_traces(p_partition uuid, p_transaction text, p_limit bigint)
returns table (id uuid, event_type text, data text, consumer_group text, worker_id text, created_at timestamptz,
               trace_names text[])
language plpgsql stable as $$
begin
    return query
    select t.id, t.event_type, t.data, t.consumer_group, t.worker_id, t.created_at, t.trace_names
    from queen.traces t
    where t.partition_id = p_partition and t.transaction_id = p_transaction
    order by t.created_at, t.id
    limit p_limit;
end $$;

-- queen.named_traces: the notes under one name, newest first.
-- in:     p_name text, p_limit bigint, p_offset bigint
-- out:    as queen.message_traces, and transaction_id text, partition_id uuid, message_offset bigint, queue_name text,
--         partition_name text
-- locks:  none
-- raises: never
create or replace function queen.named_traces(p_name text, p_limit bigint, p_offset bigint)
returns table (id uuid, event_type text, data text, consumer_group text, worker_id text, created_at timestamptz,
               trace_names text[], transaction_id text, partition_id uuid, message_offset bigint, queue_name text,
               partition_name text)
language plpgsql stable set enable_sort = on as $$
begin
    return query
    select t.id, t.event_type, t.data, t.consumer_group, t.worker_id, t.created_at, t.trace_names, t.transaction_id,
           t.partition_id, t.message_offset, q.name, p.name
    from (select n.trace_id, n.created_at from queen.trace_names n where n.name = p_name
          order by n.created_at desc, n.trace_id desc
          limit p_limit offset p_offset) n
    join queen.traces t on t.id = any (array[n.trace_id])
    join queen.partitions p on p.id = any (array[t.partition_id])
    join queen.queues q on q.id = any (array[p.queue_id])
    order by n.created_at desc, n.trace_id desc;
end $$;

-- queen.count_named_traces: the number of notes under one name.
-- in:     p_name text
-- out:    bigint
-- locks:  none
-- raises: never
create or replace function queen.count_named_traces(p_name text)
returns bigint language sql stable as $$
    select count(*) from queen.trace_names n where n.name = p_name
$$;

-- queen.list_trace_names: all names, most recently used first.
-- in:     p_limit bigint, p_offset bigint
-- out:    name text, traces bigint, messages bigint (distinct), last_seen timestamptz, total bigint (of names, on every row)
-- locks:  none
-- raises: never
-- Reads all names; their number is bounded by the retention of traces. Messages are counted for the page only.
create or replace function queen.list_trace_names(p_limit bigint, p_offset bigint)
returns table (name text, traces bigint, messages bigint, last_seen timestamptz, total bigint)
language plpgsql stable
set enable_seqscan = on set enable_sort = on set enable_hashjoin = on set plan_cache_mode = force_custom_plan
set jit = off as $$
begin
    return query
    select g.name::text, g.traces,
           (select count(distinct (t.partition_id, t.transaction_id))
            from queen.trace_names n join queen.traces t on t.id = n.trace_id where n.name = g.name),
           g.last_seen, g.total
    from (select n.name, count(*) as traces, max(n.created_at) as last_seen, count(*) over () as total
          from queen.trace_names n
          group by n.name
          order by max(n.created_at) desc, n.name
          limit p_limit offset p_offset) g
    order by g.last_seen desc, g.name;
end $$;

-- queen.sweep_traces: removes expired notes.
-- in:     p_older_than interval, p_batch int
-- out:    bigint: the number; fewer than p_batch = all are done
-- locks:  traces rows
-- raises: never
create or replace function queen.sweep_traces(p_older_than interval, p_batch int)
returns bigint language plpgsql as $$
declare
    v_swept bigint;
begin
    delete from queen.traces t
    where t.id = any (array(select k.id from queen.traces k where k.created_at < queen.now() - p_older_than
                            order by k.created_at limit p_batch for update skip locked));
    get diagnostics v_swept = row_count;
    return v_swept;
end $$;

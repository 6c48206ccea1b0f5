-- queen.configure_queue: creates a queue or changes its options.
-- in:     p_queue text, p_namespace text, p_task text (null = as stored; for a new queue, from its name),
--         p_options jsonb (column → value; other columns keep what is stored)
-- out:    the row as it now is; none if the maximum number of queues exists (queen.queue_limit), and this is not one of them
-- locks:  queen.queues_refused, one queues row
-- raises: never: names and values are validated by the broker
-- The merge happens in the update itself, on the newest row, so two concurrent callers keep each other's changes. It names
-- the columns that it is called with, so that a new option needs no change here.
create or replace function queen.configure_queue(p_queue text, p_namespace text, p_task text, p_options jsonb)
returns setof queen.queues language plpgsql as $$
declare
    v_update constant text := 'update queen.queues as q
        set namespace = coalesce($2, q.namespace), task = coalesce($3, q.task)'
        || (select coalesce(string_agg(format(', %I = %L', o.key, o.value), ''), '') from jsonb_each_text(p_options) o)
        || ' where q.name = $1 returning q.*';
begin
    -- Repeats only if the queue was deleted between the two statements.
    loop
        if 2 = any (queen.queues_refused(array[p_queue], array[true], true)) then
            return;
        end if;
        insert into queen.queues as q (name, namespace, task)
        values (p_queue, coalesce(p_namespace, split_part(p_queue, '.', 1)),
                coalesce(p_task, split_part(p_queue, '.', 2)))
        on conflict (name) do nothing;
        return query execute v_update using p_queue, p_namespace, p_task;
        exit when found;
    end loop;
end $$;

-- queen.configure: the same for brokers of 0.1.0, with the options that they know. To be dropped in the release after this
-- one.
-- in:     p_queue text, p_namespace text, p_task text (null = as stored; for a new queue, from its name),
--         p_changes jsonb (API name → value; null = the default; other keys are ignored),
--         p_replace boolean (start from the defaults instead of the stored values)
-- out:    one row: id uuid, namespace text, task text, then all options in force; no row if the maximum number of queues
--         exists (queen.queue_limit), and this is not one of them
-- locks:  queen.queues_refused, one queues row
-- raises: never: names and values are validated by the broker
create or replace function queen.configure(
    p_queue text, p_namespace text, p_task text, p_changes jsonb, p_replace boolean)
returns table (id uuid, namespace text, task text, lease_time int, retry_limit int, retry_delay int, ttl int,
               max_size bigint, priority int, delayed_processing int, window_buffer int,
               dead_letter_queue boolean, dlq_after_max_retries boolean, retention_enabled boolean,
               retention_seconds int, completed_retention_seconds int, max_wait_time_seconds int,
               encryption_enabled boolean, dedup_window_seconds int, min_pop_wait_time int)
language plpgsql as $$
declare
    v_defaults constant jsonb := '{
        "leaseTime": 300, "retryLimit": 3, "retryDelay": 1000, "ttl": 3600, "maxSize": 0, "priority": 0,
        "delayedProcessing": 0, "windowBuffer": 0, "deadLetterQueue": true, "dlqAfterMaxRetries": true,
        "retentionEnabled": false, "retentionSeconds": 0, "completedRetentionSeconds": 0,
        "maxWaitTimeSeconds": 0, "encryptionEnabled": false, "dedupWindowSeconds": 3600, "minPopWaitTime": 0}';
    v_set jsonb;
begin
    select coalesce(jsonb_object_agg(d.key, coalesce(nullif(p_changes -> d.key, 'null'), d.value)), '{}')
    into v_set
    from jsonb_each(v_defaults) d
    where p_replace or p_changes ? d.key;

    -- Repeats only if the queue was deleted between the two statements.
    loop
        if 2 = any (queen.queues_refused(array[p_queue], array[true], true)) then
            return;
        end if;
        insert into queen.queues as q (name, namespace, task)
        values (p_queue, coalesce(p_namespace, split_part(p_queue, '.', 1)),
                coalesce(p_task, split_part(p_queue, '.', 2)))
        on conflict (name) do nothing;

        -- Converted through numeric, because 60.0 is a whole number too.
        return query
        update queen.queues as q
        set namespace = coalesce(p_namespace, q.namespace),
            task = coalesce(p_task, q.task),
            lease_time = coalesce((v_set ->> 'leaseTime')::numeric::int, q.lease_time),
            retry_limit = coalesce((v_set ->> 'retryLimit')::numeric::int, q.retry_limit),
            retry_delay = coalesce((v_set ->> 'retryDelay')::numeric::int, q.retry_delay),
            ttl = coalesce((v_set ->> 'ttl')::numeric::int, q.ttl),
            max_size = coalesce((v_set ->> 'maxSize')::numeric::bigint, q.max_size),
            priority = coalesce((v_set ->> 'priority')::numeric::int, q.priority),
            delayed_processing = coalesce((v_set ->> 'delayedProcessing')::numeric::int, q.delayed_processing),
            window_buffer = coalesce((v_set ->> 'windowBuffer')::numeric::int, q.window_buffer),
            dead_letter_queue = coalesce((v_set ->> 'deadLetterQueue')::boolean, q.dead_letter_queue),
            dlq_after_max_retries = coalesce((v_set ->> 'dlqAfterMaxRetries')::boolean, q.dlq_after_max_retries),
            retention_enabled = coalesce((v_set ->> 'retentionEnabled')::boolean, q.retention_enabled),
            retention_seconds = coalesce((v_set ->> 'retentionSeconds')::numeric::int, q.retention_seconds),
            completed_retention_seconds =
                coalesce((v_set ->> 'completedRetentionSeconds')::numeric::int, q.completed_retention_seconds),
            max_wait_time_seconds =
                coalesce((v_set ->> 'maxWaitTimeSeconds')::numeric::int, q.max_wait_time_seconds),
            encryption_enabled = coalesce((v_set ->> 'encryptionEnabled')::boolean, q.encryption_enabled),
            dedup_window_seconds =
                coalesce((v_set ->> 'dedupWindowSeconds')::numeric::int, q.dedup_window_seconds),
            min_pop_wait_time =
                least(greatest(coalesce((v_set ->> 'minPopWaitTime')::numeric, q.min_pop_wait_time), 0), 60000)::int
        where q.name = p_queue
        returning q.id, q.namespace, q.task, q.lease_time, q.retry_limit, q.retry_delay, q.ttl, q.max_size,
                  q.priority, q.delayed_processing, q.window_buffer, q.dead_letter_queue,
                  q.dlq_after_max_retries, q.retention_enabled, q.retention_seconds,
                  q.completed_retention_seconds, q.max_wait_time_seconds, q.encryption_enabled,
                  q.dedup_window_seconds, q.min_pop_wait_time;
        exit when found;
    end loop;
end $$;

-- queen.queue_exists: whether a queue exists.
-- in:     p_queue text
-- out:    boolean
-- locks:  none
-- raises: never
create or replace function queen.queue_exists(p_queue text)
returns boolean language plpgsql stable as $$
begin
    return exists (select 1 from queen.queues q where q.name = p_queue);
end $$;

-- queen.delete_queue: deletes a queue with everything in it. Its segments stay until their extents are dropped.
-- in:     p_queue text
-- out:    boolean: it existed
-- locks:  the queues row, its partitions and heads rows in id order, its consumers rows in (partition_id,
--         consumer_group) order; then all of them again for the deletion, then dead_letter_rows, groups, consumer_watermarks
-- raises: lock_not_available when rows stay busy for 5 s
-- Why the locks are taken twice: a session that holds a consumers row may go on to ask for a share of its partition and
-- queue (the foreign keys of a dead letter), so the strong locks that refuse such shares are only taken when hardly any
-- session can be at that point, and are not waited for. If one is not available, or a wait takes 200 ms and so may be for a
-- session that waits for us, everything is released for another round, long before PostgreSQL detects a deadlock. Index
-- scans only: the cascade's own statements are planned here and kept by the session for larger tables.
create or replace function queen.delete_queue(p_queue text)
returns boolean language plpgsql set lock_timeout = '200ms' set enable_seqscan = off set enable_sort = on as $$
declare
    v_queue uuid;
    v_until timestamptz := clock_timestamp() + interval '5 seconds';
begin
    loop
        begin
            select q.id into v_queue from queen.queues q where q.name = p_queue for no key update;
            if not found then
                return false;
            end if;
            perform 1 from queen.partitions p where p.queue_id = v_queue order by p.id for no key update;
            perform 1 from queen.partitions p join queen.heads h on h.partition_id = p.id
            where p.queue_id = v_queue
            order by p.id
            for update of h;
            perform 1 from queen.partitions p join queen.consumers c on c.partition_id = p.id
            where p.queue_id = v_queue
            order by c.partition_id, c.consumer_group
            for update of c;

            perform 1 from queen.queues q where q.id = v_queue for update nowait;
            perform 1 from queen.partitions p where p.queue_id = v_queue for update nowait;
            perform 1 from queen.partitions p join queen.consumers c on c.partition_id = p.id
            where p.queue_id = v_queue
            for update of c nowait;
            delete from queen.queues q where q.id = v_queue;
            return true;
        exception when lock_not_available then
            if clock_timestamp() > v_until then
                raise;
            end if;
            perform pg_sleep(0.01);
        end;
    end loop;
end $$;

-- queen.queue_labels: the labels and priorities used by discovery.
-- in:     nothing
-- out:    name text, namespace text, task text, priority int: every queue
-- locks:  none
-- raises: never
create or replace function queen.queue_labels()
returns table (name text, namespace text, task text, priority int)
language plpgsql stable as $$
begin
    return query select q.name, q.namespace, q.task, q.priority from queen.queues q;
end $$;

-- queen.queues_matching: the queues that a discovery pop may take from.
-- in:     p_namespace text, p_task text (null = any)
-- out:    name text, the highest priority first
-- locks:  none
-- raises: never
create or replace function queen.queues_matching(p_namespace text, p_task text)
returns table (name text)
language plpgsql stable as $$
begin
    return query
    select q.name from queen.queues q
    where (p_namespace is null or q.namespace = p_namespace) and (p_task is null or q.task = p_task)
    order by q.priority desc, q.name;
end $$;

-- queen.queues_labelled: the queues with one of these names or labels.
-- in:     p_names text[], p_namespaces text[], p_tasks text[]
-- out:    name text, namespace text, task text
-- locks:  none
-- raises: never
create or replace function queen.queues_labelled(p_names text[], p_namespaces text[], p_tasks text[])
returns table (name text, namespace text, task text)
language plpgsql stable as $$
begin
    return query
    select q.name, q.namespace, q.task from queen.queues q
    where q.name = any (p_names) or q.namespace = any (p_namespaces) or q.task = any (p_tasks);
end $$;

-- queen.dedup_window: how long transaction ids of a queue are remembered, in seconds.
-- in:     p_dedup_window int, p_retention_enabled boolean, p_retention int: the options of the queue, in seconds
-- out:    int; 0 = not at all
-- locks:  none
-- raises: never
-- A message that has outlived its retention may be pushed again. Its id is remembered a while longer, because the message is
-- removed a while later, but not for the whole window: brokers would keep ids of removed messages in memory.
create or replace function queen.dedup_window(p_dedup_window int, p_retention_enabled boolean, p_retention int)
returns int language sql immutable as $$
    select least(p_dedup_window::bigint,
                 case when p_retention_enabled and p_retention > 0 then 2 * p_retention::bigint + 60 end)::int
$$;

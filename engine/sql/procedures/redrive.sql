-- Replaying dead letters: their snapshots are pushed again, each message once however many groups gave up on it. The push
-- itself is the broker's (engine/src/intake/dead_letters.rs); these read the letters, and delete them in its transaction.

-- queen.letters_of: the dead letters of one message, for a replay.
-- in:     p_partition uuid, p_transaction text
-- out:    id uuid, queue_name text, partition_name text, frame text: all of the message that failed last, newest first
-- locks:  none
-- raises: never
create or replace function queen.letters_of(p_partition uuid, p_transaction text)
returns table (id uuid, queue_name text, partition_name text, frame text)
language plpgsql stable set enable_sort = on as $$
begin
    return query
    select d.id, q.name, p.name, d.frame
    from queen.dead_letter_rows d
    join queen.partitions p on p.id = any (array[d.partition_id])
    join queen.queues q on q.id = any (array[p.queue_id])
    where d.partition_id = p_partition and d.transaction_id = p_transaction
      and d.message_offset = (select n.message_offset from queen.dead_letter_rows n
                              where n.partition_id = p_partition and n.transaction_id = p_transaction
                              order by n.failed_at desc, n.id limit 1)
    order by d.failed_at desc, d.id;
end $$;

-- queen.drop_letters: deletes dead letters that are replayed in this transaction.
-- in:     p_ids uuid[]
-- out:    bigint: the number deleted; if it is lower than passed, another session was faster: roll back
-- locks:  dead_letter_rows, then queue_counts rows
-- raises: never
create or replace function queen.drop_letters(p_ids uuid[])
returns bigint language plpgsql as $$
declare
    v_queues uuid[];
    v_dropped bigint;
begin
    v_queues := array(select distinct d.queue_id from queen.dead_letter_rows d where d.id = any (p_ids));
    delete from queen.dead_letter_rows d where d.id = any (p_ids);
    get diagnostics v_dropped = row_count;
    perform queen.doubt(v_queues);
    return v_dropped;
end $$;

-- queen.count_redrive: how many dead letters a redrive started now would take.
-- in:     p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text, p_shape text (as
--         queen.letter_matches); null = any
-- out:    total bigint, until timestamptz (for queen.add_redrive); no row: the queue does not exist
-- locks:  none
-- raises: never
create or replace function queen.count_redrive(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text, p_shape text)
returns table (total bigint, until timestamptz) language plpgsql as $$
begin
    if exists (select 1 from queen.queues q where q.name = p_queue) then
        until := least(p_to, queen.now());
        total := queen.count_letters(p_queue, p_partition, p_group, p_from, until, p_error, p_shape);
        return next;
    end if;
end $$;

-- queen.add_redrive: starts a redrive of counted dead letters.
-- in:     p_id uuid, p_queue text, p_target text (null = the queue itself), p_partition text, p_group text, p_from timestamptz,
--         p_until timestamptz, p_error text, p_shape text (as queen.count_redrive), p_per_second int, p_total bigint
-- out:    int: 0 started; 1 the queue does not exist; 2 or 3 the target must not be created, as in queen.queues_refused
-- locks:  as queen.queues_refused, if the target does not exist
-- raises: never
-- Letters that fail after p_until are excluded, because a message that fails again would be redriven forever. A repeated
-- call starts it once.
create or replace function queen.add_redrive(
    p_id uuid, p_queue text, p_target text, p_partition text, p_group text, p_from timestamptz, p_until timestamptz,
    p_error text, p_shape text, p_per_second int, p_total bigint)
returns int language plpgsql as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_refused int;
begin
    if v_queue is null then
        return 1;
    end if;
    if p_target is not null then
        v_refused := (queen.queues_refused(array[p_target], array[true], false))[1];
        if v_refused > 0 then
            return v_refused;
        end if;
    end if;
    insert into queen.redrives as r (id, queue_id, queue_name, target_queue, partition_name, consumer_group,
                                     failed_from, failed_to, error_filter, error_shape, per_second, total, created_at)
    values (p_id, v_queue, p_queue, p_target, p_partition, p_group, p_from, p_until, p_error, p_shape, p_per_second,
            p_total, queen.now())
    on conflict (id) do nothing;
    return 0;
end $$;

-- queen.begin_redrive: queen.count_redrive and queen.add_redrive in one, for any target. Called by earlier builds of 0.2.0;
-- to be removed with 0.3.0.
-- in:     p_id uuid (null = only count), p_queue text, p_target text (null = the queue itself), p_partition text, p_group text,
--         p_from timestamptz, p_to timestamptz, p_error text, p_shape text (as queen.letter_matches); null = any;
--         p_per_second int
-- out:    bigint: the number of matches; null = the queue does not exist
-- locks:  none
-- raises: never
-- Letters that fail from now on are excluded, because a message that fails again would be redriven forever. A repeated call
-- starts it once.
create or replace function queen.begin_redrive(
    p_id uuid, p_queue text, p_target text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz,
    p_error text, p_shape text, p_per_second int)
returns bigint language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_until timestamptz := least(p_to, v_now);
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_total bigint;
begin
    if v_queue is null then
        return null;
    end if;
    v_total := queen.count_letters(p_queue, p_partition, p_group, p_from, v_until, p_error, p_shape);
    if p_id is not null then
        insert into queen.redrives as r (id, queue_id, queue_name, target_queue, partition_name, consumer_group,
                                         failed_from, failed_to, error_filter, error_shape, per_second, total, created_at)
        values (p_id, v_queue, p_queue, p_target, p_partition, p_group, p_from, v_until, p_error, p_shape, p_per_second,
                v_total, v_now)
        on conflict (id) do nothing;
    end if;
    return v_total;
end $$;

-- queen.start_redrive: queen.begin_redrive for any shape. Called by brokers of 0.1.0; to be removed with 0.3.0.
-- in:     as queen.begin_redrive without p_shape
-- out:    as queen.begin_redrive
-- locks:  none
-- raises: never
create or replace function queen.start_redrive(
    p_id uuid, p_queue text, p_target text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz,
    p_error text, p_per_second int)
returns bigint language plpgsql as $$
begin
    return queen.begin_redrive(p_id, p_queue, p_target, p_partition, p_group, p_from, p_to, p_error, null, p_per_second);
end $$;

-- queen.claim_redrives: claims redrives without an active worker.
-- in:     p_worker uuid, p_hold interval (how long the claim lasts), p_limit int
-- out:    uuid: the claimed redrives
-- locks:  redrives rows, skipping busy ones
-- raises: never
create or replace function queen.claim_redrives(p_worker uuid, p_hold interval, p_limit int)
returns setof uuid language plpgsql set enable_sort = on as $$
declare
    v_now timestamptz := queen.now();
begin
    return query
    update queen.redrives as r
    set worker = p_worker, held_until = v_now + p_hold, started_at = coalesce(r.started_at, v_now)
    where r.id = any (array(
        select k.id from queen.redrives k
        where k.status = 'running' and (k.held_until is null or k.held_until < v_now)
        order by k.created_at
        limit p_limit
        for update skip locked))
    returning r.id;
end $$;

-- queen.redrive_letters: the dead letters of a redrive's next step.
-- in:     p_id uuid, p_worker uuid, p_limit int (messages), p_bytes bigint (approximate limit of their frames)
-- out:    per_second int, next_offset bigint and next_partition uuid (its position) on every row, and a dead letter: id
--         uuid, partition_id uuid, message_offset bigint, queue_name text (the target), partition_name text, frame text (all
--         null on a single row: it is done); no row: it is no longer the worker's, or not running
-- locks:  none
-- raises: never
-- In the order of partitions and offsets, with all matching letters of a message together.
create or replace function queen.redrive_letters(p_id uuid, p_worker uuid, p_limit int, p_bytes bigint)
returns table (per_second int, next_partition uuid, next_offset bigint, id uuid, partition_id uuid,
               message_offset bigint, queue_name text, partition_name text, frame text)
language plpgsql stable set enable_sort = on set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_job queen.redrives;
begin
    select * into v_job from queen.redrives r where r.id = p_id and r.worker = p_worker and r.status = 'running';
    if not found then
        return;
    end if;
    return query
    with letters as materialized (
        select d.id, d.partition_id, d.message_offset, p.name, d.frame,
               dense_rank() over (order by d.partition_id, d.message_offset) as rank,
               sum(pg_column_size(d.frame)) over (order by d.partition_id, d.message_offset) as bytes
        from (select k.id, k.partition_id, k.message_offset, k.frame, k.consumer_group, k.failed_at, k.error
              from queen.dead_letter_rows k
              where k.queue_id = v_job.queue_id
                and (k.partition_id, k.message_offset) >= (v_job.next_partition, v_job.next_offset)
                and queen.letter_matches(k.consumer_group, k.failed_at, k.error, v_job.consumer_group, v_job.failed_from,
                                         v_job.failed_to, v_job.error_filter, v_job.error_shape)
                and (v_job.partition_name is null
                     or k.partition_id = (select n.id from queen.partitions n
                                          where n.queue_id = v_job.queue_id and n.name = v_job.partition_name))
              order by k.partition_id, k.message_offset
              limit p_limit) d
        join queen.partitions p on p.id = any (array[d.partition_id])),
    -- The last message of the page may have more letters than were read.
    chosen as (
        select l.partition_id, l.message_offset, l.name, l.frame, l.id from letters l
        where l.bytes <= p_bytes or l.rank = 1)
    select v_job.per_second, v_job.next_partition, v_job.next_offset, c.id, c.partition_id, c.message_offset,
           coalesce(v_job.target_queue, v_job.queue_name), c.name, c.frame
    from (select 1) one
    left join (
        select c.partition_id, c.message_offset, c.name, c.frame, c.id from chosen c
        union
        select k.partition_id, k.message_offset, l.name, k.frame, k.id
        from (select c.partition_id, c.message_offset, c.name from chosen c
              order by c.partition_id desc, c.message_offset desc limit 1) l
        join queen.dead_letter_rows k on k.queue_id = v_job.queue_id and k.partition_id = l.partition_id
                                 and k.message_offset = l.message_offset
        where queen.letter_matches(k.consumer_group, k.failed_at, k.error, v_job.consumer_group, v_job.failed_from,
                                   v_job.failed_to, v_job.error_filter, v_job.error_shape)) c on true
    order by c.partition_id, c.message_offset, c.id;
end $$;

-- queen.hold_redrive: locks a redrive for a step.
-- in:     p_id uuid, p_worker uuid, p_partition uuid, p_offset bigint (its position according to the step)
-- out:    boolean: it is the worker's, running, and at this position
-- locks:  the redrives row, before anything else in its transaction
-- raises: never
create or replace function queen.hold_redrive(p_id uuid, p_worker uuid, p_partition uuid, p_offset bigint)
returns boolean language plpgsql as $$
begin
    perform 1 from queen.redrives r
    where r.id = p_id and r.worker = p_worker and r.status = 'running'
      and r.next_partition = p_partition and r.next_offset = p_offset
    for update;
    return found;
end $$;

-- queen.step_redrive: stores the progress of a redrive that the caller has locked.
-- in:     p_id uuid, p_partition uuid, p_offset bigint (where the next step begins), p_done bigint, p_failed bigint (dead
--         letters), p_error text (of those that failed), p_finished boolean, p_hold interval
-- out:    nothing
-- locks:  the redrives row
-- raises: never
create or replace function queen.step_redrive(
    p_id uuid, p_partition uuid, p_offset bigint, p_done bigint, p_failed bigint, p_error text, p_finished boolean,
    p_hold interval)
returns void language plpgsql as $$
declare
    v_now timestamptz := queen.now();
begin
    update queen.redrives as r
    set next_partition = p_partition, next_offset = p_offset, done = r.done + p_done, failed = r.failed + p_failed,
        error = coalesce(p_error, r.error), held_until = v_now + p_hold,
        status = case when p_finished then 'completed' else r.status end,
        finished_at = case when p_finished then v_now end
    where r.id = p_id;
end $$;

-- queen.cancel_redrive: stops a redrive after its current step.
-- in:     p_id uuid
-- out:    text: its status afterwards; null = no such redrive
-- locks:  the redrives row
-- raises: never
create or replace function queen.cancel_redrive(p_id uuid)
returns text language plpgsql as $$
begin
    update queen.redrives as r set status = 'cancelled', finished_at = queen.now()
    where r.id = p_id and r.status = 'running';
    return (select r.status from queen.redrives r where r.id = p_id);
end $$;

-- queen.redrive_states: redrives, newest first.
-- in:     p_id uuid (null = all), p_limit bigint, p_offset bigint
-- out:    redrives rows, and rate double precision: dead letters per second since it started
-- locks:  none
-- raises: never
create or replace function queen.redrive_states(p_id uuid, p_limit bigint, p_offset bigint)
returns table (id uuid, queue_name text, target_queue text, partition_name text, consumer_group text,
               failed_from timestamptz, failed_to timestamptz, error_filter text, error_shape text, per_second int,
               status text, total bigint, done bigint, failed bigint, created_at timestamptz, started_at timestamptz,
               finished_at timestamptz, error text, rate double precision)
language plpgsql stable as $$
begin
    return query
    select r.id, r.queue_name, r.target_queue, r.partition_name, r.consumer_group, r.failed_from, r.failed_to,
           r.error_filter, r.error_shape, r.per_second, r.status, r.total, r.done, r.failed, r.created_at, r.started_at,
           r.finished_at, r.error,
           coalesce(r.done / greatest(0.001, extract(epoch from coalesce(r.finished_at, queen.now()) - r.started_at)),
                    0)::double precision
    from queen.redrives r
    where p_id is null or r.id = p_id
    order by r.created_at desc, r.id desc
    limit p_limit offset p_offset;
end $$;

-- queen.list_redrives: queen.redrive_states without shapes. Called by brokers of 0.1.0; to be removed with 0.3.0.
-- in:     p_id uuid (null = all), p_limit bigint, p_offset bigint
-- out:    as queen.redrive_states without error_shape
-- locks:  none
-- raises: never
create or replace function queen.list_redrives(p_id uuid, p_limit bigint, p_offset bigint)
returns table (id uuid, queue_name text, target_queue text, partition_name text, consumer_group text,
               failed_from timestamptz, failed_to timestamptz, error_filter text, per_second int, status text,
               total bigint, done bigint, failed bigint, created_at timestamptz, started_at timestamptz,
               finished_at timestamptz, error text, rate double precision)
language plpgsql stable as $$
begin
    return query
    select r.id, r.queue_name, r.target_queue, r.partition_name, r.consumer_group, r.failed_from, r.failed_to,
           r.error_filter, r.per_second, r.status, r.total, r.done, r.failed, r.created_at, r.started_at, r.finished_at,
           r.error, r.rate
    from queen.redrive_states(p_id, p_limit, p_offset) r;
end $$;

-- queen.sweep_redrives: removes redrives that ended long ago.
-- in:     p_older_than interval
-- out:    bigint: the number of removed redrives
-- locks:  redrives rows
-- raises: never
create or replace function queen.sweep_redrives(p_older_than interval)
returns bigint language plpgsql set enable_seqscan = on as $$
declare
    v_swept bigint;
begin
    delete from queen.redrives r where r.status <> 'running' and r.finished_at < queen.now() - p_older_than;
    get diagnostics v_swept = row_count;
    return v_swept;
end $$;

-- queen.find_letters: one page of dead letters, newest failure first.
-- in:     p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text, p_shape text (as
--         queen.letter_matches); null = any; p_limit bigint, p_offset bigint
-- out:    id uuid (the message's), partition_id uuid, queue_name text, partition_name text, consumer_group text,
--         error text, attempts int, frame text, created_at timestamptz (of the message), failed_at timestamptz
-- locks:  none
-- raises: never
-- Planned for each call: a queue or one of its partitions uses an index, anything wider is a scan.
create or replace function queen.find_letters(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz,
    p_error text, p_shape text, p_limit bigint, p_offset bigint)
returns table (id uuid, partition_id uuid, queue_name text, partition_name text, consumer_group text,
               error text, attempts int, frame text, created_at timestamptz, failed_at timestamptz)
language plpgsql stable set plan_cache_mode = force_custom_plan set enable_sort = on set jit = off as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_partitions uuid[] := queen.partitions_named(p_queue, p_partition);
begin
    return query
    select d.message_id, d.partition_id, q.name, p.name, d.consumer_group, d.error, d.attempts, d.frame,
           d.created_at, d.failed_at
    from (select k.* from queen.dead_letter_rows k
          where (p_queue is null or k.queue_id = v_queue)
            and (p_partition is null or k.partition_id = any (v_partitions))
            and queen.letter_matches(k.consumer_group, k.failed_at, k.error, p_group, p_from, p_to, p_error, p_shape)
          order by k.failed_at desc, k.message_id desc, k.id
          limit p_limit offset p_offset) d
    join queen.partitions p on p.id = any (array[d.partition_id])
    join queen.queues q on q.id = any (array[d.queue_id])
    order by d.failed_at desc, d.message_id desc, d.id;
end $$;

-- queen.count_letters: the number of dead letters for the same filters.
-- in:     as queen.find_letters, without the page
-- out:    bigint
-- locks:  none
-- raises: never
create or replace function queen.count_letters(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text, p_shape text)
returns bigint language plpgsql stable set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_partitions uuid[] := queen.partitions_named(p_queue, p_partition);
begin
    return (
        select count(*) from queen.dead_letter_rows d
        where (p_queue is null or d.queue_id = v_queue)
          and (p_partition is null or d.partition_id = any (v_partitions))
          and queen.letter_matches(d.consumer_group, d.failed_at, d.error, p_group, p_from, p_to, p_error, p_shape));
end $$;

-- queen.letter_shapes: dead letters grouped by the shape of their errors.
-- in:     as queen.find_letters without a shape and a page; p_letters_max bigint (how many of the newest failures are
--         examined), p_limit bigint (shapes)
-- out:    total bigint (matching letters), counted bigint (examined letters) on every row, and a shape: shape text, count
--         bigint (letters), queues bigint, example text (one of the errors, cut to what a shape considers), first_failed_at
--         timestamptz, last_failed_at timestamptz; most letters first; all null on a single row if there are none
-- locks:  none
-- raises: never
-- Identical errors are counted first, because computing shapes is expensive.
create or replace function queen.letter_shapes(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text,
    p_letters_max bigint, p_limit bigint)
returns table (total bigint, counted bigint, shape text, count bigint, queues bigint, example text,
               first_failed_at timestamptz, last_failed_at timestamptz)
language plpgsql stable
set plan_cache_mode = force_custom_plan set enable_sort = on set enable_hashagg = on set work_mem = '16MB' set jit = off as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_partitions uuid[] := queen.partitions_named(p_queue, p_partition);
    v_total bigint := queen.count_letters(p_queue, p_partition, p_group, p_from, p_to, p_error, null);
begin
    return query
    with newest as materialized (
        select d.queue_id, left(d.error, 500) as error, d.failed_at from queen.dead_letter_rows d
        where (p_queue is null or d.queue_id = v_queue)
          and (p_partition is null or d.partition_id = any (v_partitions))
          and queen.letter_matches(d.consumer_group, d.failed_at, d.error, p_group, p_from, p_to, p_error, null)
        order by d.failed_at desc
        limit p_letters_max),
    alike as materialized (
        select n.queue_id, n.error, queen.error_shape(n.error) as shape, count(*) as letters,
               min(n.failed_at) as first_at, max(n.failed_at) as last_at
        from newest n group by n.queue_id, n.error)
    select v_total, (select count(*) from newest), s.shape, s.letters, s.queues, s.example, s.first_at, s.last_at
    from (select 1) one
    left join (
        select a.shape, sum(a.letters)::bigint as letters, count(distinct a.queue_id) as queues,
               coalesce(min(a.error), '') as example, min(a.first_at) as first_at, max(a.last_at) as last_at
        from alike a group by a.shape
        order by 2 desc, 6 desc, a.shape
        limit p_limit) s on true
    order by s.letters desc, s.last_at desc, s.shape;
end $$;

-- queen.dead_letters, queen.dead_letters_count: queen.find_letters and queen.count_letters for any shape. Called by brokers of
-- 0.1.0; to be removed with 0.3.0.
-- in:     as queen.find_letters without p_shape
-- out:    as queen.find_letters, as queen.count_letters
-- locks:  none
-- raises: never
create or replace function queen.dead_letters(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz,
    p_error text, p_limit bigint, p_offset bigint)
returns table (id uuid, partition_id uuid, queue_name text, partition_name text, consumer_group text,
               error text, attempts int, frame text, created_at timestamptz, failed_at timestamptz)
language plpgsql stable as $$
begin
    return query
    select * from queen.find_letters(p_queue, p_partition, p_group, p_from, p_to, p_error, null, p_limit, p_offset);
end $$;
create or replace function queen.dead_letters_count(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text)
returns bigint language plpgsql stable as $$
begin
    return queen.count_letters(p_queue, p_partition, p_group, p_from, p_to, p_error, null);
end $$;

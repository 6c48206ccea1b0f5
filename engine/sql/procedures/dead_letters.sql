-- queen.dead_letters: one page of the dead letters, the newest failure first.
-- in:     p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz (of the failure, both
--         included), p_error text (a part of the error, in any case); null = any; p_limit bigint, p_offset bigint
-- out:    id uuid (the message's), partition_id uuid, queue_name text, partition_name text, consumer_group text,
--         error text, attempts int, frame text, created_at timestamptz (of the message), failed_at timestamptz
-- locks:  none
-- raises: never
-- Planned for each call: a queue or one of its partitions goes by an index, anything wider is a scan.
create or replace function queen.dead_letters(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz,
    p_error text, p_limit bigint, p_offset bigint)
returns table (id uuid, partition_id uuid, queue_name text, partition_name text, consumer_group text,
               error text, attempts int, frame text, created_at timestamptz, failed_at timestamptz)
language plpgsql stable set plan_cache_mode = force_custom_plan set enable_sort = on set jit = off as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
begin
    return query
    select d.message_id, d.partition_id, q.name, p.name, d.consumer_group, d.error, d.attempts, d.frame,
           d.created_at, d.failed_at
    from queen.dead_letter_rows d
    join queen.partitions p on p.id = d.partition_id and p.queue_id = d.queue_id
    join queen.queues q on q.id = d.queue_id
    where (p_queue is null or d.queue_id = v_queue)
      and (p_partition is null or p.name = p_partition)
      and (p_group is null or d.consumer_group = p_group)
      and (p_from is null or d.failed_at >= p_from)
      and (p_to is null or d.failed_at <= p_to)
      and (p_error is null or position(lower(p_error) in lower(d.error)) > 0)
    order by d.failed_at desc, d.message_id desc, d.id
    limit p_limit offset p_offset;
end $$;

-- queen.dead_letters_count: how many there are for the same filters.
-- in:     as queen.dead_letters, without the page
-- out:    bigint
-- locks:  none
-- raises: never
create or replace function queen.dead_letters_count(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz,
    p_error text)
returns bigint language plpgsql stable set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
begin
    return (
        select count(*)
        from queen.dead_letter_rows d
        join queen.partitions p on p.id = d.partition_id and p.queue_id = d.queue_id
        where (p_queue is null or d.queue_id = v_queue)
          and (p_partition is null or p.name = p_partition)
          and (p_group is null or d.consumer_group = p_group)
          and (p_from is null or d.failed_at >= p_from)
          and (p_to is null or d.failed_at <= p_to)
          and (p_error is null or position(lower(p_error) in lower(d.error)) > 0));
end $$;

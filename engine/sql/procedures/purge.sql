-- queen.purge_letters: deletes matching dead letters of a queue, a slice at a time.
-- in:     p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text, p_shape text (as
--         queen.letter_matches); null = any; p_next_partition uuid, p_next_offset bigint (the slice begins after it), p_limit int
--         (letters that are examined, whether they match or not; all of a message are examined together)
-- out:    purged bigint, until timestamptz (p_to of the next slice), next_partition uuid, next_offset
--         bigint (start of the next slice; null = done); no row: the queue does not exist
-- locks:  dead_letter_rows, skipping busy ones; then the queue_counts row
-- raises: never
-- Busy letters are being replayed or deleted by another session; neither session waits for the other. Letters added after
-- the first slice are excluded, otherwise a purge might never end. In order of partitions and offsets, so that no slice
-- rereads what an earlier one has examined.
create or replace function queen.purge_letters(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text, p_shape text,
    p_next_partition uuid, p_next_offset bigint, p_limit int)
returns table (purged bigint, until timestamptz, next_partition uuid, next_offset bigint)
language plpgsql set enable_sort = on set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_looked int;
    v_letters uuid[];
begin
    if v_queue is null then
        return;
    end if;
    until := least(p_to, queen.now());
    with looked as materialized (
        select k.id, k.partition_id, k.message_offset, k.consumer_group, k.failed_at, k.error
        from queen.dead_letter_rows k
        where k.queue_id = v_queue
          and (k.partition_id, k.message_offset) > (p_next_partition, p_next_offset)
          and (p_partition is null
               or k.partition_id = (select n.id from queen.partitions n
                                    where n.queue_id = v_queue and n.name = p_partition))
        order by k.partition_id, k.message_offset
        fetch first p_limit rows with ties)
    select count(*), (array_agg(l.partition_id))[count(*)::int], (array_agg(l.message_offset))[count(*)::int],
           array_agg(l.id) filter (where queen.letter_matches(l.consumer_group, l.failed_at, l.error, p_group, p_from, until,
                                                              p_error, p_shape))
    into v_looked, next_partition, next_offset, v_letters
    from looked l;
    if v_looked < p_limit then
        next_partition := null;
        next_offset := null;
    end if;
    delete from queen.dead_letter_rows d
    where d.id = any (array(select k.id from queen.dead_letter_rows k where k.id = any (v_letters) for update skip locked));
    get diagnostics purged = row_count;
    if purged > 0 then
        perform queen.doubt(array[v_queue]);
    end if;
    return next;
end $$;

-- queen.purge_letters: throws away dead letters of a queue that match, a slice at a time.
-- in:     p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text, p_shape text (as
--         queen.letter_matches); null = any; p_next_partition uuid, p_next_offset bigint (where the slice begins), p_limit int
-- out:    purged bigint (fewer than p_limit = that was all), until timestamptz (to be handed in as p_to with the next slice),
--         next_partition uuid, next_offset bigint (where that begins); no row: there is no such queue
-- locks:  dead_letter_rows, skipping busy ones; then the queue_counts row
-- raises: never
-- A busy one is being replayed or deleted by somebody else, who must not wait for us, nor we for him. What fails after the
-- first slice is not taken, or a purge could go on for ever. In the order of partitions and offsets, so that no slice walks
-- over what an earlier one has looked at.
create or replace function queen.purge_letters(
    p_queue text, p_partition text, p_group text, p_from timestamptz, p_to timestamptz, p_error text, p_shape text,
    p_next_partition uuid, p_next_offset bigint, p_limit int)
returns table (purged bigint, until timestamptz, next_partition uuid, next_offset bigint)
language plpgsql set enable_sort = on set plan_cache_mode = force_custom_plan set jit = off as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_letters uuid[];
begin
    if v_queue is null then
        return;
    end if;
    until := least(p_to, queen.now());
    select array_agg(c.id), (array_agg(c.partition_id))[count(*)::int], (array_agg(c.message_offset))[count(*)::int]
    into v_letters, next_partition, next_offset
    from (select k.id, k.partition_id, k.message_offset
          from queen.dead_letter_rows k
          where k.queue_id = v_queue
            and (k.partition_id, k.message_offset) >= (p_next_partition, p_next_offset)
            and queen.letter_matches(k.consumer_group, k.failed_at, k.error, p_group, p_from, until, p_error, p_shape)
            and (p_partition is null
                 or k.partition_id = (select n.id from queen.partitions n
                                      where n.queue_id = v_queue and n.name = p_partition))
          order by k.partition_id, k.message_offset
          limit p_limit
          for update skip locked) c;
    purged := coalesce(cardinality(v_letters), 0);
    if purged > 0 then
        delete from queen.dead_letter_rows d where d.id = any (v_letters);
        perform queen.doubt(array[v_queue]);
    end if;
    return next;
end $$;

-- queen.register_group: registers where a group starts, on its first contact with a queue or a partition.
-- in:     p_queue text, p_group text, p_partition text ('' = the whole queue), p_mode text (as requested, to be
--         shown), p_new boolean (new messages only), p_since timestamptz (from a time on; null = from the oldest message)
-- out:    boolean: the queue exists. An existing registration stays, and counts as used
-- locks:  one groups row, one consumer_watermarks row, one queue_counts row
-- raises: never
-- A group may come before its queue. It is registered then as well, so that messages pushed before it comes again count as
-- unread and are retained for it; but not if queues are not created automatically (queen.creates_queues).
create or replace function queen.register_group(
    p_queue text, p_group text, p_partition text, p_mode text, p_new boolean, p_since timestamptz)
returns boolean language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
begin
    if v_queue is null and (p_group = '__QUEUE_MODE__' or not queen.creates_queues()) then
        return false;
    end if;
    if p_group <> '__QUEUE_MODE__' then
        insert into queen.groups as g (queue_name, consumer_group, partition_name, mode, since, used_at)
        values (p_queue, p_group, p_partition, p_mode, case when p_new then v_now else p_since end, v_now)
        on conflict (queue_name, consumer_group, partition_name) do nothing;
        if found then
            perform queen.doubt(array_remove(array[v_queue], null));
        else
            update queen.groups as g set used_at = v_now
            where g.queue_name = p_queue and g.consumer_group = p_group and g.partition_name = p_partition
              and g.used_at < v_now - interval '1 hour';
        end if;
    end if;
    if p_partition = '' then
        insert into queen.consumer_watermarks as w (queue_name, consumer_group)
        values (p_queue, p_group)
        on conflict (queue_name, consumer_group) do update set updated_at = now();
    end if;
    return v_queue is not null;
end $$;

-- queen.subscribe: queen.register_group without a mode. Called by brokers of 0.1.0; to be removed with 0.3.0.
-- in:     as queen.register_group, without p_mode
-- out:    nothing
-- locks:  as queen.register_group
-- raises: never
create or replace function queen.subscribe(
    p_queue text, p_group text, p_partition text, p_new boolean, p_since timestamptz)
returns void language plpgsql as $$
begin
    perform queen.register_group(p_queue, p_group, p_partition, null, p_new, p_since);
end $$;

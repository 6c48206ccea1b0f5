-- queen.subscribe: registers where a group starts, on its first contact with a queue or a partition.
-- in:     p_queue text, p_group text, p_partition text ('' = the whole queue), p_new boolean (from now on),
--         p_since timestamptz (from a time on; null = from the oldest message)
-- out:    nothing: an existing registration stands
-- locks:  one groups row, one consumer_watermarks row, one queue_counts row
-- raises: never
-- A group that starts at the oldest message of a queue nobody has made yet says nothing new and is not written.
create or replace function queen.subscribe(
    p_queue text, p_group text, p_partition text, p_new boolean, p_since timestamptz)
returns void language plpgsql as $$
declare
    v_new boolean := false;
begin
    if p_new or p_since is not null or exists (select 1 from queen.queues q where q.name = p_queue) then
        if p_group <> '__QUEUE_MODE__' then
            insert into queen.groups as g (queue_name, consumer_group, partition_name, since)
            values (p_queue, p_group, p_partition, case when p_new then queen.now() else p_since end)
            on conflict (queue_name, consumer_group, partition_name) do nothing;
            v_new := found;
        end if;
        if p_partition = '' then
            insert into queen.consumer_watermarks as w (queue_name, consumer_group)
            values (p_queue, p_group)
            on conflict (queue_name, consumer_group) do update set updated_at = now();
        end if;
        if v_new then
            perform queen.doubt(array(select q.id from queen.queues q where q.name = p_queue));
        end if;
    end if;
end $$;

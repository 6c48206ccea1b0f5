-- queen.seed: the partitions of a queue in which a group has unread messages. Fills a broker's ready list.
-- in:     p_queue text, p_group text, p_after uuid (page on from here), p_limit int
-- out:    id uuid, number bigint, name text, wait_ms bigint (until a live lease ends, else null),
--         served_at timestamptz (null = never)
-- locks:  none
-- raises: never
-- The cost grows with the queue's partitions, so a broker calls it once per (queue, group) and uses hints from then on.
create or replace function queen.seed(p_queue text, p_group text, p_after uuid, p_limit int)
returns table (id uuid, number bigint, name text, wait_ms bigint, served_at timestamptz)
language plpgsql stable set enable_hashjoin = on set enable_seqscan = on as $$
declare
    v_now timestamptz := queen.now();
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
    v_since timestamptz := (select g.since from queen.groups g
                            where g.queue_name = p_queue and g.consumer_group = p_group and g.partition_name = '');
begin
    return query
    select p.id, p.number, p.name,
           case when c.lease_until > v_now then ceil(extract(epoch from c.lease_until - v_now) * 1000)::bigint end,
           c.served_at
    from queen.partitions p
    join queen.heads h on h.partition_id = p.id
    left join queen.consumers c on c.partition_id = p.id and c.consumer_group = p_group
    left join queen.groups g on g.queue_name = p_queue and g.consumer_group = p_group and g.partition_name = p.name
                            and p.name <> ''
    where p.queue_id = v_queue and p.id > p_after and h.head > h.tail
      and (case when c.partition_id is not null then c.cursor < h.head
                when g.queue_name is not null then g.since is null or h.last_push_at > g.since
                else v_since is null or h.last_push_at > v_since end)
    order by p.id
    limit p_limit;
end $$;

-- Views for people: the log and its readers as rows. The broker itself does not use them. They find a row of heads from its
-- highest generation down (newest.sql), spelled out in each view: tables in a view are read with its owner's rights, but
-- functions are called with those of the caller, in a session with any search_path (frame.sql). New columns go to the end,
-- because dropping a view would lose its grants.

-- queen.messages: every stored message.
create or replace view queen.messages as
select coalesce((h.header ->> 'messageId')::uuid,
                queen.message_id(s.created_at, s.base_offset + f.ordinal - 1, p.number)) as id,
       p.id as partition_id,
       q.name as queue,
       p.name as partition,
       s.base_offset + f.ordinal - 1 as message_offset,
       h.header ->> 'transactionId' as transaction_id,
       (h.header ->> 'traceId')::uuid as trace_id,
       h.header ->> 'producerSub' as producer_sub,
       s.created_at,
       queen.frame_payload(f.frame) as payload,
       s.base_offset as segment_offset,
       h.header ->> 'keyId' as key_id
from queen.queues q
join queen.partitions p on p.queue_id = q.id
join queen.segments s on s.partition_id = p.id
cross join lateral (select k.tail from queen.heads k where k.partition_id = p.id
                    order by k.generation desc limit 1) t
cross join lateral unnest(string_to_array(s.frames, e'\n')) with ordinality f (frame, ordinal)
cross join lateral (select queen.frame_header(f.frame) as header) h
where s.base_offset + f.ordinal - 1 >= t.tail
  and not exists (select 1 from queen.skips k
                  where k.partition_id = s.partition_id and k.message_offset = s.base_offset + f.ordinal - 1
                    and k.consumer_group is null);

-- queen.lag: the position of every group in every partition that it reads. In one that it has not read yet, where it would
-- start, as in queen.start_of; queue mode counts as a reader of the whole queue once it has read anything there.
create or replace view queen.lag as
select q.name as queue, p.name as partition, c.consumer_group, r.cursor, h.head, h.head - r.cursor as pending,
       o.created_at as oldest_pending_at, queen.now() - o.created_at as oldest_pending_age, p.id as partition_id
from queen.queues q
join queen.partitions p on p.queue_id = q.id
cross join lateral (select k.head, k.tail, k.last_push_at from queen.heads k where k.partition_id = p.id
                    order by k.generation desc limit 1) h
cross join lateral (
    select n.consumer_group, n.cursor from queen.consumers n where n.partition_id = p.id
    union all
    select g.consumer_group collate "C",
           case when g.since is null then h.tail
                when h.last_push_at <= g.since then h.head
                else coalesce((select s.base_offset from queen.segments s
                               where s.partition_id = p.id and s.created_at > g.since
                                 and s.extent >= coalesce((select max(e.number) from queen.extents e
                                                           where e.created_at < g.since - interval '1 minute'), 0)
                               order by s.base_offset limit 1), h.head) end
    from (select distinct on (k.consumer_group) k.consumer_group, k.since from queen.groups k
          where k.queue_name = q.name and k.partition_name in ('', p.name)
          -- A registration for the partition takes precedence over the one for its queue.
          order by k.consumer_group, k.partition_name desc) g
    where not exists (select 1 from queen.consumers n
                      where n.partition_id = p.id and n.consumer_group = g.consumer_group)
    union all
    select k.consumer_group, h.tail from queen.group_counts k
    where k.queue_id = q.id and k.consumer_group = '__QUEUE_MODE__' and k.members > 0
      and not exists (select 1 from queen.consumers n
                      where n.partition_id = p.id and n.consumer_group = k.consumer_group)) c
cross join lateral (select greatest(c.cursor, h.tail) as cursor) r
left join lateral (select s.created_at from queen.segments s
                   where s.partition_id = p.id and s.base_offset <= r.cursor
                   order by s.base_offset desc limit 1) o on r.cursor < h.head;

-- queen.leases: every live lease. One that waits for deferred acknowledgements is held far beyond its own time.
create or replace view queen.leases as
select q.name as queue, p.name as partition, c.consumer_group, c.lease_id, c.cursor, c.lease_end, c.lease_until,
       c.attempts, c.served_at, c.deferred_pending > 0 as is_held, p.id as partition_id
from queen.queues q
join queen.partitions p on p.queue_id = q.id
join queen.consumers c on c.partition_id = p.id
where c.lease_until > queen.now();

-- queen.dead_letters: messages that groups gave up on. Rows may be deleted.
create or replace view queen.dead_letters as
select q.name as queue, p.name as partition, d.consumer_group, h.header ->> 'transactionId' as transaction_id,
       queen.frame_payload(d.frame) as payload, d.error, d.attempts, d.created_at, d.failed_at, d.message_id,
       d.message_offset, (h.header ->> 'traceId')::uuid as trace_id, h.header ->> 'producerSub' as producer_sub,
       d.partition_id, d.queue_id, d.id, h.header ->> 'keyId' as key_id
from queen.dead_letter_rows d
join queen.partitions p on p.id = d.partition_id
join queen.queues q on q.id = d.queue_id
cross join lateral (select queen.frame_header(d.frame) as header) h;

create or replace function queen.delete_dead_letter() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    delete from queen.dead_letter_rows d where d.id = old.id;
    return case when found then old end;
end $$;
create or replace trigger delete_dead_letter instead of delete on queen.dead_letters
    for each row execute function queen.delete_dead_letter();

-- Functions that the views call. They read nothing.
grant execute on function queen.message_id(timestamptz, bigint, bigint), queen.frame_header(text),
                          queen.frame_payload(text), queen.now() to public;

-- Views for people: the log and its readers as rows. The broker itself uses none of them.
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
       queen.frame_payload(f.frame) as payload
from queen.segments s
join queen.partitions p on p.id = s.partition_id
join queen.heads t on t.partition_id = s.partition_id
join queen.queues q on q.id = p.queue_id
cross join lateral unnest(string_to_array(s.frames, e'\n')) with ordinality f (frame, ordinal)
cross join lateral (select queen.frame_header(f.frame) as header) h
where s.base_offset + f.ordinal - 1 >= t.tail
  and not exists (select 1 from queen.skips k
                  where k.partition_id = s.partition_id and k.message_offset = s.base_offset + f.ordinal - 1
                    and k.consumer_group is null);

create or replace view queen.lag as
select q.name as queue, p.name as partition, c.consumer_group,
       greatest(c.cursor, h.tail) as cursor, h.head,
       h.head - greatest(c.cursor, h.tail) as pending
from queen.consumers c
join queen.partitions p on p.id = c.partition_id
join queen.heads h on h.partition_id = c.partition_id
join queen.queues q on q.id = p.queue_id;

create or replace view queen.leases as
select q.name as queue, p.name as partition, c.consumer_group, c.lease_id,
       c.cursor, c.lease_end, c.lease_until, c.attempts
from queen.consumers c
join queen.partitions p on p.id = c.partition_id
join queen.queues q on q.id = p.queue_id
where c.lease_until > queen.now();

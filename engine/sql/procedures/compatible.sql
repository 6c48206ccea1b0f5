-- Functions that published tools and test suites call by these names, with JSON arguments and results. They work on the log
-- directly and hold a partition's lock until their transaction ends, so applications should call queen.push (inbox.sql) instead.
-- A broker sees their writes when it next reads the log: immediately for a pop that does not wait, within a second for one
-- that does. They run with the settings of a broker's session, including the search_path.

-- queen.push_messages_v3: appends messages to the log.
-- in:     p_items jsonb: an array of {queue, partition, payload, transactionId, traceId, producerSub}; all but the queue
--         may be missing; an empty producerSub counts as missing
-- out:    jsonb: an array of results as a push over HTTP returns them
-- locks:  new queues and partitions, then heads rows in id order, until the transaction ends
-- raises: invalid_parameter_value; serialization_failure when a queue is deleted concurrently;
--         feature_not_supported for an encrypted queue
create or replace function queen.push_messages_v3(p_items jsonb)
returns jsonb language plpgsql set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
    v_items record;
    v_results jsonb[];
    v_partition record;
    v_open int[];
    v_run int[];
    v_seen jsonb;
    v_chosen boolean;
    v_answer record;
    v_id uuid;
    v_operation uuid;
    i int;
begin
    if jsonb_typeof(p_items) is distinct from 'array' then
        raise 'an array of messages is expected' using errcode = 'invalid_parameter_value';
    end if;
    if jsonb_array_length(p_items) = 0 then
        return '[]';
    end if;
    select array_agg(m.queue order by m.ordinal) as queues, array_agg(m.partition order by m.ordinal) as partitions,
           array_agg(m.transaction_id order by m.ordinal) as transaction_ids,
           array_agg(m.chosen order by m.ordinal) as chosen, array_agg(m.trace_id order by m.ordinal) as trace_ids,
           array_agg(queen.transaction_hash(m.transaction_id, m.chosen) order by m.ordinal) as hashes,
           array_agg(queen.new_partition_id() order by m.ordinal) as ids,
           -- Two halves of a frame; a promised id is inserted in between.
           array_agg('{"transactionId":' || to_json(m.transaction_id)::text order by m.ordinal) as starts,
           array_agg(coalesce(',"traceId":"' || m.trace_id || '"', '')
                     || coalesce(',"producerSub":' || to_json(m.producer_sub)::text, '')
                     || ',"payload":' || m.payload || '}' order by m.ordinal) as ends
    into v_items
    from (select a.ordinal, a.item ->> 'queue' as queue,
                 coalesce(nullif(a.item ->> 'partition', ''), 'Default') as partition,
                 coalesce(a.item ->> 'transactionId', gen_random_uuid()::text) as transaction_id,
                 a.item ->> 'transactionId' is not null as chosen,
                 case when a.item ->> 'traceId' ~* '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                      then (a.item ->> 'traceId')::uuid end as trace_id,
                 nullif(a.item ->> 'producerSub', '') as producer_sub,
                 coalesce(a.item -> 'payload', a.item -> 'data', '{}')::text as payload
          from jsonb_array_elements(p_items) with ordinality a (item, ordinal)) m;
    for i in 1 .. cardinality(v_items.queues) loop
        if v_items.queues[i] is null then
            raise 'message % has no queue', i - 1 using errcode = 'invalid_parameter_value';
        elsif char_length(v_items.queues[i]) > 255 or char_length(v_items.partitions[i]) > 255
              or char_length(v_items.transaction_ids[i]) not between 1 and 255 then
            raise 'message %: names and transaction ids have 1 to 255 characters', i - 1
                using errcode = 'invalid_parameter_value';
        end if;
    end loop;

    perform queen.open(v_items.queues, v_items.partitions, v_items.ids,
                       array_fill(null::text, array[cardinality(v_items.queues)]),
                       array_fill(null::text, array[cardinality(v_items.queues)]),
                       array_fill(true, array[cardinality(v_items.queues)]));
    if exists (select 1 from queen.queues q where q.name = any (v_items.queues) and q.encryption_enabled) then
        raise 'a queue asks for encryption, which only a broker can do: use queen.push, or HTTP'
            using errcode = 'feature_not_supported';
    end if;
    v_results := array_fill(null::jsonb, array[cardinality(v_items.queues)]);
    for v_partition in
        select o.id, min(o.number) as number, min(o.dedup_seconds) as dedup_seconds,
               array_agg(o.position order by o.position) as members
        from queen.open(v_items.queues, v_items.partitions, v_items.ids, null, null, null) o
        group by o.id order by o.id
    loop
        v_open := v_partition.members;
        v_seen := '{}';
        while cardinality(v_open) > 0 loop
            -- One segment. A message that repeats an earlier one of the same call waits until that is stored.
            v_run := '{}';
            v_chosen := false;
            foreach i in array v_open loop
                exit when cardinality(v_run) = 1000;
                if v_partition.dedup_seconds > 0 and v_items.chosen[i] then
                    continue when v_seen ? v_items.transaction_ids[i];
                    v_seen := v_seen || jsonb_build_object(v_items.transaction_ids[i], i);
                end if;
                v_chosen := v_chosen or v_items.chosen[i];
                v_run := v_run || i;
            end loop;
            if v_run = '{}' then
                foreach i in array v_open loop
                    v_results[i] := v_results[(v_seen ->> v_items.transaction_ids[i])::int]
                                    || jsonb_build_object('index', i - 1, 'status', 'duplicate');
                end loop;
                exit;
            end if;
            select p.*, f.transactions, f.frames into v_answer
            from (select string_agg(v_items.hashes[r.item], ''::bytea order by r.ordinal) as transactions,
                         string_agg(v_items.starts[r.item] || v_items.ends[r.item], e'\n' order by r.ordinal) as frames,
                         max(octet_length(v_items.starts[r.item] || v_items.ends[r.item])) as bytes
                  from unnest(v_run) with ordinality r (item, ordinal)) f
            cross join lateral queen.push(array[v_partition.id], array[case when v_chosen then -3 else -2 end::bigint],
                                          array[cardinality(v_run)], array[f.bytes], array[f.transactions],
                                          array[f.frames], array[v_chosen], array[9223372036854775807], false) p;
            if v_answer.statuses[1] = 2 then
                raise 'queue % was deleted in the same moment', v_items.queues[v_run[1]]
                    using errcode = 'serialization_failure';
            elsif v_answer.statuses[1] = 3 then
                v_operation := gen_random_uuid();
                v_answer.frames := '';
                for i in 1 .. cardinality(v_run) loop
                    v_id := queen.message_id(queen.now(), i, 2147483648 + floor(random() * 2147483648)::bigint);
                    v_answer.frames := v_answer.frames || case when i > 1 then e'\n' else '' end
                        || v_items.starts[v_run[i]] || ',"messageId":"' || v_id || '"' || v_items.ends[v_run[i]];
                    v_results[v_run[i]] := queen.push_result(v_run[i] - 1, v_id, v_items.transaction_ids[v_run[i]],
                        v_items.queues[v_run[i]], 'queued', v_partition.id, v_items.trace_ids[v_run[i]])
                        || jsonb_build_object('operationId', v_operation);
                end loop;
                perform queen.defer_pushes(array[v_operation], array[v_partition.id], array[cardinality(v_run)],
                                           array[v_answer.transactions], array[v_answer.frames], 300, 3, 5);
            elsif v_answer.statuses[1] = 0 then
                for i in 1 .. cardinality(v_run) loop
                    v_results[v_run[i]] := queen.push_result(v_run[i] - 1,
                        queen.message_id(v_answer.created_at[1], v_answer.base_offsets[1] + i - 1, v_partition.number),
                        v_items.transaction_ids[v_run[i]], v_items.queues[v_run[i]], 'queued', v_partition.id,
                        v_items.trace_ids[v_run[i]]);
                end loop;
            else
                for i in 1 .. cardinality(v_answer.dup_indexes) loop
                    v_results[v_run[v_answer.dup_indexes[i] + 1]] := queen.push_result(
                        v_run[v_answer.dup_indexes[i] + 1] - 1,
                        coalesce(v_answer.dup_ids[i], queen.message_id(v_answer.dup_created_at[i],
                                                                       v_answer.dup_offsets[i], v_partition.number)),
                        v_items.transaction_ids[v_run[v_answer.dup_indexes[i] + 1]],
                        v_items.queues[v_run[v_answer.dup_indexes[i] + 1]], 'duplicate', v_partition.id,
                        v_items.trace_ids[v_run[v_answer.dup_indexes[i] + 1]]);
                end loop;
                -- Process the rest again.
                foreach i in array v_run loop
                    if v_results[i] is null then
                        v_seen := v_seen - v_items.transaction_ids[i];
                    end if;
                end loop;
            end if;
            v_open := array(select o.item from unnest(v_open) with ordinality o (item, ordinal)
                            where v_results[o.item] is null order by o.ordinal);
        end loop;
    end loop;
    return to_jsonb(v_results);
end $$;

-- queen.push_messages_v2: queen.push_messages_v3 under an older name.
create or replace function queen.push_messages_v2(p_items jsonb)
returns jsonb language sql set search_path = pg_catalog, pg_temp as $$
    select queen.push_messages_v3(p_items)
$$;

-- queen.push_result: the result of one message, as a push over HTTP returns it.
-- in:     see the declaration
-- out:    jsonb
-- locks:  none
-- raises: never
create or replace function queen.push_result(
    p_index int, p_message_id uuid, p_transaction_id text, p_queue text, p_status text, p_partition_id uuid, p_trace_id uuid)
returns jsonb language sql immutable as $$
    select jsonb_build_object('index', p_index, 'message_id', p_message_id, 'transaction_id', p_transaction_id,
                              'queueName', p_queue, 'status', p_status, 'partition_id', p_partition_id,
                              'trace_id', p_trace_id)
$$;

-- queen.transaction_hash: the sixteen bytes that represent a transaction id in the log, as in engine/src/log/ids.rs.
-- in:     p_transaction_id text, p_chosen boolean (by the client)
-- out:    bytea
-- locks:  none
-- raises: never
create or replace function queen.transaction_hash(p_transaction_id text, p_chosen boolean)
returns bytea language sql immutable as $$
    select set_bit(substr(sha256(convert_to(p_transaction_id, 'UTF8')), 1, 16), 7, p_chosen::int)
$$;

-- queen.new_partition_id: a UUIDv7 whose last byte is the shard, 0 while there is one database.
-- in:     nothing
-- out:    uuid
-- locks:  none
-- raises: never
create or replace function queen.new_partition_id()
returns uuid language sql volatile as $$
    select (left(queen.message_id(clock_timestamp(), floor(random() * 4398046511104)::bigint,
                                  floor(random() * 4294967296)::bigint)::text, 34) || '00')::uuid
$$;

-- queen.pop_specific_batch: leases messages of named partitions.
-- in:     p_requests jsonb: an array of {idx, queue_name, partition_name, consumer_group, lease_seconds, batch_size,
--         sub_mode, sub_from}; worker_id is accepted and ignored
-- out:    jsonb: an array of {idx, result}, the result as a pop over HTTP returns it, with an empty list if there are no messages
-- locks:  partitions rows of new readers in id order, then consumers rows, skipping busy ones, until the transaction ends
-- raises: invalid_parameter_value
create or replace function queen.pop_specific_batch(p_requests jsonb)
returns jsonb language plpgsql set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan set enable_seqscan = off set enable_bitmapscan = off
set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
    v_pops record;
    v_pop record;
    v_lease uuid;
    v_first bigint;
    v_last bigint;
    v_attempts int;
    v_results jsonb := '[]';
begin
    if jsonb_typeof(p_requests) is distinct from 'array' then
        raise 'an array of requests is expected' using errcode = 'invalid_parameter_value';
    end if;
    for v_pop in
        select r.queue, r.partition, r.consumer_group, r.since, r.is_new,
               case when r.since is null then 'new' else 'timestamp' end as mode
        from queen.pops_of(p_requests) r
        where r.is_new or r.since is not null
    loop
        perform queen.register_group(v_pop.queue, v_pop.consumer_group, v_pop.partition, v_pop.mode, v_pop.is_new, v_pop.since);
    end loop;
    select array_agg(distinct_pairs.id) as ids, array_agg(distinct_pairs.consumer_group) as groups into v_pops
    from (select distinct r.id, r.consumer_group from queen.pops_of(p_requests) r
          where r.id is not null) distinct_pairs;
    if v_pops.ids is not null then
        perform queen.add_readers(v_pops.ids, v_pops.groups);
    end if;
    for v_pop in select r.* from queen.pops_of(p_requests) r order by r.id, r.consumer_group, r.ordinal loop
        v_lease := gen_random_uuid();
        v_last := null;
        if v_pop.id is not null then
            select l.firsts[1], l.lasts[1], l.attempts[1] into v_first, v_last, v_attempts
            from queen.lease(array[1], array[v_pop.id], array[v_pop.consumer_group], array[v_lease],
                             array[v_pop.seconds], array[v_pop.batch], array[1], array[false], 67108864, false, true) l
            where l.statuses[1] = 0;
        end if;
        v_results := v_results || jsonb_build_object('idx', v_pop.idx, 'result', jsonb_build_object(
            'success', true, 'queue', v_pop.queue, 'partition', v_pop.partition, 'partitionId', v_pop.id,
            'leaseId', case when v_last is not null then v_lease || '.' || to_hex(v_pop.number) else '' end,
            'consumerGroup', v_pop.consumer_group,
            'messages', case when v_last is null then '[]' else queen.leased_messages(
                v_pop.id, v_pop.number, v_first, v_last, jsonb_build_object(
                    'partitionId', v_pop.id, 'partition', v_pop.partition, 'queue', v_pop.queue,
                    'leaseId', v_lease || '.' || to_hex(v_pop.number), 'consumerGroup', v_pop.consumer_group,
                    'retryCount', v_attempts)) end));
    end loop;
    return (select coalesce(jsonb_agg(r order by (r ->> 'idx')::bigint), '[]') from jsonb_array_elements(v_results) r);
end $$;

-- queen.pops_of: the requests of queen.pop_specific_batch, with the partitions they name.
-- in:     p_requests jsonb
-- out:    a row each; id and number are null if the partition does not exist
-- locks:  none
-- raises: errors of the casts
create or replace function queen.pops_of(p_requests jsonb)
returns table (ordinal bigint, idx bigint, queue text, partition text, consumer_group text, seconds int, batch int,
               is_new boolean, since timestamptz, id uuid, number bigint)
language sql stable as $$
    select a.ordinal, coalesce((a.item ->> 'idx')::bigint, a.ordinal - 1), n.queue, n.partition,
           coalesce(nullif(a.item ->> 'consumer_group', ''), '__QUEUE_MODE__'),
           least(greatest(coalesce((a.item ->> 'lease_seconds')::int, 0), 0), 86400),
           least(greatest(coalesce((a.item ->> 'batch_size')::int, 1), 1), 10000),
           case when n.since = '' then coalesce(a.item ->> 'sub_mode' in ('new', 'new-only', 'new_only', 'newonly'), false)
                else n.since = 'now' end,
           case when n.since not in ('', 'now') then n.since::timestamptz end,
           p.id, p.number
    from jsonb_array_elements(p_requests) with ordinality a (item, ordinal)
    cross join lateral (select coalesce(a.item ->> 'queue_name', '') as queue,
                               coalesce(nullif(a.item ->> 'partition_name', ''), 'Default') as partition,
                               coalesce(a.item ->> 'sub_from', '') as since) n
    left join queen.queues q on q.name = n.queue
    left join queen.partitions p on p.queue_id = q.id and p.name = n.partition
$$;

-- queen.leased_messages: messages of one partition, as a pop returns them.
-- in:     p_partition uuid, p_number bigint (the partition's), p_first bigint, p_last bigint (end excluded),
--         p_common jsonb (fields common to all, except that retryCount applies to the first one)
-- out:    jsonb: an array. A payload that jsonb cannot hold is null: use HTTP for those, and for messages with a keyId,
--         whose data is encrypted with that key
-- locks:  none
-- raises: never
create or replace function queen.leased_messages(
    p_partition uuid, p_number bigint, p_first bigint, p_last bigint, p_common jsonb)
returns jsonb language sql volatile as $$
    select coalesce(jsonb_agg(
               p_common || jsonb_build_object(
                   'id', coalesce((h.header ->> 'messageId')::uuid, queen.message_id(s.created_at, o.at, p_number)),
                   'transactionId', h.header ->> 'transactionId', 'traceId', h.header ->> 'traceId',
                   'data', queen.frame_payload(f.frame), 'producerSub', h.header ->> 'producerSub',
                   'retryCount', case when o.at = p_first then p_common -> 'retryCount' else '0' end,
                   'createdAt', to_char(s.created_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'))
               || case when h.header ? 'keyId' then jsonb_build_object('keyId', h.header -> 'keyId') else '{}' end
               order by o.at), '[]')
    from queen.fetch(array[p_partition], array[p_first], array[p_last]) s
    cross join lateral unnest(string_to_array(s.frames, e'\n')) with ordinality f (frame, ordinal)
    cross join lateral (select s.base_offset + f.ordinal - 1 as at) o
    cross join lateral (select queen.frame_header(f.frame) as header) h
    where o.at >= p_first and o.at < p_last
$$;

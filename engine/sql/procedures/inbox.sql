-- Pushes from SQL. An application calls queen.push in its own transaction; the row waits in queen.inbox, invisible until
-- the commit and gone with a rollback. One broker moves what is committed into the log (engine/src/intake/inbox.rs).
--
-- How the broker learns of commits: while there is traffic it looks every 10 ms, by transaction number like discover.sql, so
-- a look costs what was committed since the last one, however many old rows a forgotten transaction keeps in the table.
-- After a second without traffic it rests: it holds the lock "queen.inbox.rest", which pushers see during their commit
-- (queen.number_commit) and only then notify. A prepared transaction cannot notify, and is found by the look that a resting
-- broker takes every second. A lock rather than a row, because a transaction of a higher isolation level would not see the
-- row change, and because it is released when the broker dies.

-- queen.put_in_inbox: the common part of queen.push and queen.push_json. Not for applications.
-- in:     as queen.push, the payload as JSON text
-- out:    uuid: the message's id
-- locks:  none but the new row
-- raises: invalid_parameter_value, program_limit_exceeded, undefined_object
-- A setting of the transaction marks its first row. Savepoints undo it together with the row; searching for the row instead
-- would make serializable transactions conflict with each other.
create or replace function queen.put_in_inbox(
    p_queue text, p_partition text, p_payload text, p_transaction_id text, p_trace_id uuid)
returns uuid language plpgsql as $$
declare
    v_xid text := pg_current_xact_id()::text;
    v_first boolean := current_setting('queen.pushed', true) is distinct from v_xid;
    v_number bigint := nextval('queen.inbox_numbers');
    v_id uuid;
    v_rules record;
begin
    if p_queue is null then
        raise 'the queue must not be null' using errcode = 'invalid_parameter_value';
    elsif char_length(p_queue) > 255 then
        raise 'the queue''s name is longer than 255 characters' using errcode = 'invalid_parameter_value';
    elsif char_length(p_partition) > 255 then
        raise 'the partition''s name is longer than 255 characters' using errcode = 'invalid_parameter_value';
    elsif char_length(p_transaction_id) > 255 then
        raise 'the transaction id is longer than 255 characters' using errcode = 'invalid_parameter_value';
    elsif p_transaction_id = '' then
        raise 'the transaction id must not be empty' using errcode = 'invalid_parameter_value';
    elsif octet_length(p_payload) > 67108864 then
        raise 'the payload is larger than 64 MiB' using errcode = 'program_limit_exceeded';
    end if;
    -- Brokers store their settings here, because the session is not theirs.
    select (s.value ->> 'auto')::boolean as auto, (s.value ->> 'max')::int as max into v_rules
    from queen.settings s where s.name = 'queues';
    if found and not exists (select 1 from queen.queues q where q.name = p_queue) then
        if not v_rules.auto then
            raise 'queue "%" does not exist', p_queue
                using errcode = 'undefined_object', hint = 'Create it with POST /api/v1/configure: QUEEN_AUTO_CREATE is off.';
        elsif v_rules.max > 0 and v_rules.max <= (select count(*) from (select 1 from queen.queues q limit v_rules.max) q) then
            raise 'there are % queues, the most allowed (QUEEN_MAX_QUEUES)', v_rules.max
                using errcode = 'program_limit_exceeded';
        end if;
    end if;
    -- The bits of queen.message_id, with a bit that no partition number reaches where computed ids have the partition's
    -- number. Spelled out, because PL/pgSQL plans an SQL function again in every transaction, which would take longer than
    -- the rest.
    v_id := encode(substr(int8send(floor(extract(epoch from queen.now()) * 1000)::bigint), 3)
                   || int2send((28672 | ((v_number >> 30) & 4095))::int2)
                   || int8send((-9223372036854775808)::bigint | ((v_number & 1073741823) << 32)
                               | (2147483648 + floor(random() * 2147483648)::bigint)), 'hex')::uuid;
    insert into queen.inbox as i (number, message_id, trace_id, is_first, queue, partition, transaction_id, payload)
    values (v_number, v_id, p_trace_id, v_first, p_queue, coalesce(nullif(p_partition, ''), 'Default'),
            p_transaction_id, coalesce(p_payload, 'null'));
    if v_first then
        perform set_config('queen.pushed', v_xid, true);
    end if;
    return v_id;
end $$;

-- queen.push: pushes a message when, and only when, the caller's transaction commits. For applications.
-- in:     queue text, partition text (null or '' = Default), payload jsonb (null = the JSON null), transaction_id text (as
--         with a push over HTTP: a repeated id within the queue's window is dropped), trace_id uuid
-- out:    uuid: the id that the message will have
-- locks:  none but the new row
-- raises: invalid_parameter_value, program_limit_exceeded, undefined_object (the queue does not exist and is not created
--         automatically)
-- Runs as its owner, so that callers only need EXECUTE. Never drop it, because that would drop the grants.
create or replace function queen.push(
    queue text, partition text, payload jsonb, transaction_id text default null, trace_id uuid default null)
returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return queen.put_in_inbox(queue, partition, payload::text, transaction_id, trace_id);
end $$;

-- queen.push_json: queen.push for a payload that keeps its exact text: white space, order and repetition of keys.
-- in:     as queen.push, the payload as json
-- out:    uuid
-- locks:  none but the new row
-- raises: as queen.push
-- A separate name, because a literal would fit json and jsonb alike.
create or replace function queen.push_json(
    queue text, partition text, payload json, transaction_id text default null, trace_id uuid default null)
returns uuid language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return queen.put_in_inbox(queue, partition, payload::text, transaction_id, trace_id);
end $$;

-- queen.rule_queues: stores the limits for queues that queen.push would create. Brokers call it at startup; the last one wins.
-- in:     p_auto boolean (whether queues are created), p_max int (maximum number of queues; 0 = unlimited)
-- out:    nothing
-- locks:  one settings row, if it changes
-- raises: never
-- No row means no limits, which keeps queen.push short.
create or replace function queen.rule_queues(p_auto boolean, p_max int)
returns void language plpgsql as $$
begin
    if p_auto and p_max = 0 then
        delete from queen.settings s where s.name = 'queues';
    else
        insert into queen.settings as s (name, value) values ('queues', jsonb_build_object('auto', p_auto, 'max', p_max))
        on conflict (name) do update set value = excluded.value where s.value <> excluded.value;
    end if;
end $$;

-- queen.lead_inbox: makes this session the only one that moves rows, until it ends.
-- in:     nothing
-- out:    boolean: false while there is another
-- locks:  an advisory lock
-- raises: never
create or replace function queen.lead_inbox()
returns boolean language sql as $$
    select pg_try_advisory_lock(hashtextextended('queen.inbox.lead', 0))
$$;

-- queen.inbox_is_led: whether some session moves rows. May be wrong while another session asks the same.
-- in:     nothing
-- out:    boolean
-- locks:  an advisory lock, until the end of the statement
-- raises: never
create or replace function queen.inbox_is_led()
returns boolean language sql as $$
    select not pg_try_advisory_xact_lock_shared(hashtextextended('queen.inbox.lead', 0))
$$;

-- queen.rest_inbox: from here on, pushers notify. Everything committed without a notification is visible by then.
-- in:     nothing
-- out:    boolean: false while another session is committing
-- locks:  an advisory lock, until queen.wake_inbox or the end of the session
-- raises: never
create or replace function queen.rest_inbox()
returns boolean language sql as $$
    select pg_try_advisory_lock(hashtextextended('queen.inbox.rest', 0))
$$;

-- queen.wake_inbox: pushers need not notify anymore.
-- in:     nothing
-- out:    boolean: false if it was not resting
-- locks:  releases the lock of queen.rest_inbox
-- raises: never
create or replace function queen.wake_inbox()
returns boolean language sql as $$
    select pg_advisory_unlock(hashtextextended('queen.inbox.rest', 0))
$$;

-- queen.look_inbox: the transactions with rows in the inbox that were committed since the last look, in order.
-- in:     p_xmax bigint, p_running bigint[]   from the previous result; p_xmax null = all existing ones
-- out:    xmax bigint, running bigint[] (for the next call), xids bigint[]
-- locks:  none
-- raises: never
-- All existing ones include rows without a place in the order, which come last. Pushing cannot create such rows, but
-- triggers can be disabled, and the settings of a transaction can be set by hand.
create or replace function queen.look_inbox(
    p_xmax bigint, p_running bigint[], out xmax bigint, out running bigint[], out xids bigint[])
language plpgsql stable set enable_sort = on as $$
begin
    xmax := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    running := array(select x::text::bigint from pg_snapshot_xip(pg_current_snapshot()) x);
    if p_xmax is null then
        xids := array(
            with recursive present as (
                (select i.xid from queen.inbox i order by i.xid limit 1)
                union all
                select n.xid from present p
                cross join lateral (select i.xid from queen.inbox i where i.xid > p.xid order by i.xid limit 1) n)
            select f.xid::text::bigint
            from (select c.xid, c.number from queen.inbox_commits c
                  union all
                  select p.xid, null from present p
                  where not exists (select 1 from queen.inbox_commits c where c.xid = any (array[p.xid]))) f
            order by f.number nulls last, f.xid);
    else
        xids := array(
            select f.xid::text::bigint
            from (select c.xid, c.number from queen.inbox_commits c
                  where c.xid >= p_xmax::text::xid8 and c.xid < pg_snapshot_xmax(pg_current_snapshot())
                  union all
                  select c.xid, c.number from unnest(p_running) r (xid)
                  join queen.inbox_commits c on c.xid = any (array[r.xid::text::xid8])) f
            order by f.number);
    end if;
end $$;

-- queen.take_inbox: the next rows of some transactions, in order.
-- in:     p_xids bigint[] (in order), p_after bigint (the last row taken of the first of them), p_limit int,
--         p_bytes bigint (of payloads, but at least one row)
-- out:    a row each; one more of nulls if there is more
-- locks:  none: there is only one leader, which clears them in the transaction that appends them
-- raises: never
create or replace function queen.take_inbox(p_xids bigint[], p_after bigint, p_limit int, p_bytes bigint)
returns table (xid bigint, number bigint, message_id uuid, trace_id uuid, queue text, partition text,
               transaction_id text, payload text)
language plpgsql stable as $$
declare
    v_xid bigint;
    v_after bigint := p_after;
    v_count int := 0;
    v_bytes bigint := 0;
begin
    foreach v_xid in array p_xids loop
        for xid, number, message_id, trace_id, queue, partition, transaction_id, payload in
            select v_xid, i.number, i.message_id, i.trace_id, i.queue, i.partition, i.transaction_id, i.payload
            from queen.inbox i
            where i.xid = v_xid::text::xid8 and i.number > v_after and i.error is null
            order by i.number
            limit p_limit - v_count + 1
        loop
            v_bytes := v_bytes + octet_length(payload);
            if v_count = p_limit or v_count > 0 and v_bytes > p_bytes then
                return query select null::bigint, null::bigint, null::uuid, null::uuid, null, null, null, null;
                return;
            end if;
            v_count := v_count + 1;
            return next;
        end loop;
        v_after := 0;
    end loop;
end $$;

-- queen.clear_inbox: removes rows that are appended to the log in the same transaction.
-- in:     p_xids bigint[], p_numbers bigint[] (the rows), p_done bigint[] (transactions without remaining rows)
-- out:    bigint: the number of removed rows. Fewer than passed: a queue was deleted meanwhile, and its rows with it
-- locks:  the rows, after the heads of their partitions, like the deletion of a queue
-- raises: never
create or replace function queen.clear_inbox(p_xids bigint[], p_numbers bigint[], p_done bigint[])
returns bigint language plpgsql as $$
declare
    v_cleared bigint;
begin
    with cleared as (
        delete from queen.inbox i using unnest(p_xids, p_numbers) a (xid, number)
        where i.xid = any (array[a.xid::text::xid8]) and i.number = a.number
        returning 1)
    select count(*) into v_cleared from cleared;
    delete from queen.inbox_commits c using unnest(p_done) a (xid) where c.xid = any (array[a.xid::text::xid8]);
    return v_cleared;
end $$;

-- queen.refuse_inbox: marks a row that the log cannot store. It stays for inspection; when its error is set to null, it is
-- retried within a minute.
-- in:     p_xid bigint, p_number bigint, p_error text
-- out:    nothing
-- locks:  the row
-- raises: never
create or replace function queen.refuse_inbox(p_xid bigint, p_number bigint, p_error text)
returns void language sql as $$
    update queen.inbox as i set error = p_error where i.xid = p_xid::text::xid8 and i.number = p_number
$$;

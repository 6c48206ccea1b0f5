-- queen.locate_acks: a group's position in a partition, and the positions of the messages that it acknowledges. For leases that
-- this broker did not serve or no longer remembers.
-- in:     p_partition uuid, p_group text, p_lease uuid (null = no lease)
--         p_hashes bytea          32 bytes per message: the hash of its transaction id as chosen by a client, and as generated
--         p_ids bytea             16 bytes per message: its id, or zeros
-- out:    cursor bigint (where the group would start, if it has not read here yet), live boolean (the lease is), index int
--         (0-based, null when nothing was found), message_offset bigint
--         (no row if the partition does not exist)
-- locks:  none
-- raises: never
-- A transaction id may occur twice in a partition, once its deduplication window has passed. The first message in the lease is
-- meant, even if it is settled, because the same acknowledgement may have come before. Under a live lease, messages behind its
-- end are not found. Under an ended one, only settled messages just below the cursor are found, and only if the lease cannot
-- have contained another message with that transaction id that the group still has to read.
create or replace function queen.locate_acks(p_partition uuid, p_group text, p_lease uuid, p_hashes bytea, p_ids bytea)
returns table (cursor bigint, live boolean, index int, message_offset bigint)
language plpgsql as $$
declare
    v_count int := length(p_ids) / 16;
    v_ids uuid[];
    v_place record;
    v_reader record;
    v_cursor bigint;
    v_live boolean;
    v_from bigint[];
    v_to bigint[];
    v_found int[] := '{}';
    v_offsets bigint[] := '{}';
    v_more record;
begin
    select p.number, h.head, h.tail into v_place
    from queen.partitions p cross join lateral queen.head_of(p.id) h
    where p.id = p_partition;
    if not found then
        return;
    end if;
    select c.cursor, c.lease_start, c.lease_end, c.lease_id = p_lease and c.lease_until > queen.now() as live into v_reader
    from queen.reader_of(p_partition, p_group) c;
    v_cursor := greatest(coalesce(v_reader.cursor, queen.first_read(p_partition, p_group)), v_place.tail);
    v_live := coalesce(v_reader.live, false);

    -- The parts to search, in order: the lease, the part just below it, what was not delivered, and the rest.
    v_from[1] := v_cursor;
    v_to[1] := v_cursor;
    if v_live or p_lease is null and v_reader.lease_end is not null then
        -- Retention may have moved the tail into the lease.
        v_from[1] := coalesce(v_reader.lease_start, v_reader.cursor, v_cursor);
        v_to[1] := v_reader.lease_end;
    end if;
    v_from[2] := greatest(v_from[1] - 10000, 0);
    v_to[2] := v_from[1];
    v_from[3] := greatest(v_to[1], v_cursor);
    v_to[3] := case when p_lease is null then v_place.head else 0 end;
    v_from[4] := 0;
    v_to[4] := case when v_live or p_lease is null then v_from[2] else 0 end;
    if not v_live and p_lease is not null then
        -- Unsettled messages that the lease may have contained come first, and are excluded from the result.
        v_to[1] := least(v_cursor + 10000, v_place.head);
    end if;

    -- Most ids are computed and contain the position of their message.
    v_ids := array(select case when b.id <> decode(repeat('00', 16), 'hex') then encode(b.id, 'hex')::uuid end
                   from generate_series(0, v_count - 1) i (index)
                   cross join lateral (select substr(p_ids, i.index * 16 + 1, 16) as id) b
                   order by i.index);
    select coalesce(array_agg(a.ordinal::int - 1), '{}') as found, coalesce(array_agg(o.message_offset), '{}') as offsets
    into v_more
    from unnest(v_ids) with ordinality a (id, ordinal)
    cross join lateral (select queen.offset_of(a.id) as message_offset) o
    cross join lateral (
        select g.base_offset, g.count, g.created_at, g.transactions from queen.segments g
        where g.partition_id = p_partition and g.base_offset <= o.message_offset
        order by g.base_offset desc limit 1) s
    where o.message_offset < s.base_offset + s.count
      and o.message_offset < case when v_live then v_to[1] when p_lease is null then v_place.head else v_cursor end
      and queen.message_id(s.created_at, o.message_offset, v_place.number) = a.id
      and substr(s.transactions, (o.message_offset - s.base_offset)::int * 16 + 1, 16)
          in (substr(p_hashes, (a.ordinal::int - 1) * 16 + 1, 16),
              substr(p_hashes, (v_count + a.ordinal::int - 1) * 16 + 1, 16));
    v_found := v_more.found;
    v_offsets := v_more.offsets;
    for i in 1 .. 4 loop
        exit when cardinality(v_found) >= v_count;
        continue when v_from[i] >= v_to[i];
        select array_agg(m.index) as found, array_agg(m.message_offset) as offsets into v_more
        from (select f.index, f.message_offset
              from queen.first_messages(p_partition, v_from[i], v_to[i], p_hashes, v_count) f
              where v_ids[f.index + 1] is null
              union all
              select f.index, f.message_offset
              from queen.promised_messages(p_partition, v_from[i], v_to[i], p_hashes, v_ids) f) m
        where m.index <> all (v_found);
        v_found := v_found || v_more.found;
        v_offsets := v_offsets || v_more.offsets;
    end loop;
    if not v_live and p_lease is not null then
        select coalesce(array_agg(f.index), '{}') as found, coalesce(array_agg(f.message_offset), '{}') as offsets into v_more
        from unnest(v_found, v_offsets) f (index, message_offset)
        where f.message_offset < v_cursor;
        v_found := v_more.found;
        v_offsets := v_more.offsets;
    end if;
    return query
    select v_cursor, v_live, f.index, f.message_offset
    from unnest(v_found, v_offsets) f (index, message_offset)
    union all
    select v_cursor, v_live, null, null where v_found = '{}';
end $$;

-- queen.offset_of: the offset contained in a computed message id.
-- in:     p_id uuid
-- out:    bigint: arbitrary for an id that was not computed
-- locks:  none
-- raises: never
create or replace function queen.offset_of(p_id uuid)
returns bigint language sql immutable parallel safe
return (('x' || substr(p_id::text, 16, 3))::bit(12)::int::bigint << 30)
       | (('x' || substr(p_id::text, 20, 4) || substr(p_id::text, 25, 4))::bit(32)::bigint & 1073741823);

-- queen.first_messages: for each of some transactions, the first message in a part of a partition.
-- in:     p_partition uuid, p_from bigint, p_to bigint (end excluded), p_hashes bytea (16 bytes each), p_count int (how many
--         messages they belong to: those from p_count on are the other variants)
-- out:    index int (0-based), message_offset bigint
-- locks:  none
-- raises: never
-- Off the hot path, like queen.find_transactions, and may hash-join as well.
create or replace function queen.first_messages(p_partition uuid, p_from bigint, p_to bigint, p_hashes bytea, p_count int)
returns table (index int, message_offset bigint)
language plpgsql set enable_hashjoin = on set enable_sort = on as $$
declare
    v_first bigint := queen.segment_of(p_partition, p_from);
begin
    return query
    select distinct on (n.index % p_count) n.index % p_count, s.base_offset + o.place
    from (select g.base_offset, g.count, g.transactions || ''::bytea as hashes
          from queen.segments g
          where g.partition_id = p_partition and g.base_offset >= v_first and g.base_offset < p_to
          offset 0) s
    cross join lateral (
        select p.place
        from generate_series(greatest(p_from - s.base_offset, 0)::int, least(s.count, p_to - s.base_offset)::int - 1)
             p (place)
        where length(p_hashes) > 16 * 16
           or exists (select 1 from generate_series(0, length(p_hashes) / 16 - 1) i (index)
                      where position(substr(p_hashes, i.index * 16 + 1, 16) in s.hashes) > 0)
        offset 0) o
    join (select i.index, substr(p_hashes, i.index * 16 + 1, 16) as hash
          from generate_series(0, length(p_hashes) / 16 - 1) i (index)) n
      on n.hash = substr(s.hashes, o.place * 16 + 1, 16)
    order by n.index % p_count, s.base_offset + o.place;
end $$;

-- queen.promised_messages: messages in a part of a partition that have one of these promised ids.
-- in:     p_partition uuid, p_from bigint, p_to bigint (end excluded), p_hashes bytea (as queen.locate_acks), p_ids uuid[] (null
--         = not wanted)
-- out:    index int (0-based), message_offset bigint
-- locks:  none
-- raises: never
-- Only parses segments that contain one of the transactions.
create or replace function queen.promised_messages(
    p_partition uuid, p_from bigint, p_to bigint, p_hashes bytea, p_ids uuid[])
returns table (index int, message_offset bigint)
language plpgsql set enable_hashjoin = on as $$
declare
    v_count int := cardinality(p_ids);
    v_first bigint := queen.segment_of(p_partition, p_from);
begin
    if num_nonnulls(variadic p_ids) = 0 then
        return;
    end if;
    return query
    with asked as materialized (
        select a.ordinal::int - 1 as index, a.id, substr(p_hashes, (a.ordinal::int - 1) * 16 + 1, 16) as chosen,
               substr(p_hashes, (v_count + a.ordinal::int - 1) * 16 + 1, 16) as minted
        from unnest(p_ids) with ordinality a (id, ordinal)
        where a.id is not null),
    promised as materialized (
        select s.base_offset + f.ordinal - 1 as message_offset,
               substr(s.hashes, (f.ordinal::int - 1) * 16 + 1, 16) as hash,
               (queen.frame_header(f.frame) ->> 'messageId')::uuid as id
        from (select g.base_offset, g.transactions || ''::bytea as hashes, g.frames from queen.segments g
              where g.partition_id = p_partition and g.base_offset >= v_first and g.base_offset < p_to
                and exists (select 1 from asked a where position(a.chosen in g.transactions) > 0
                                                     or position(a.minted in g.transactions) > 0)
              offset 0) s
        cross join lateral unnest(string_to_array(s.frames, e'\n')) with ordinality f (frame, ordinal)
        where position('"messageId":"' in f.frame) > 0)
    select a.index, m.message_offset
    from promised m join asked a on a.id = m.id
    where m.hash in (a.chosen, a.minted) and m.message_offset >= p_from and m.message_offset < p_to;
end $$;

-- queen.locate: called by brokers of 0.1.0 instead of queen.locate_acks. To be removed with 0.3.0.
-- in:     p_partition uuid, p_group text, p_hashes bytea (16 bytes each), p_wanted int (how many messages they belong
--         to: a message may have two hashes)
-- out:    cursor bigint, index int (0-based, null when nothing was found), message_offset bigint
--         (no row if the partition does not exist)
-- locks:  the partitions row, if a consumers row has to be added
-- raises: never
-- Looks first where acks usually belong: in the lease, then just below the cursor, where late or repeated acks point. Only for
-- messages in neither does it read the whole partition.
create or replace function queen.locate(p_partition uuid, p_group text, p_hashes bytea, p_wanted int)
returns table (cursor bigint, index int, message_offset bigint)
language plpgsql as $$
declare
    v_cursor bigint;
    v_lease_end bigint;
    v_from bigint[];
    v_to bigint[];
    v_found int[] := '{}';
    v_offsets bigint[] := '{}';
    v_index int;
    v_offset bigint;
begin
    perform queen.add_readers(array[p_partition], array[p_group]);
    select greatest(c.cursor, h.tail), greatest(c.lease_end, c.cursor, h.tail) into v_cursor, v_lease_end
    from queen.reader_of(p_partition, p_group) c cross join queen.head_of(p_partition) h;
    if not found then
        return;
    end if;
    -- A transaction id may occur twice in the log once its deduplication window has passed; the first unread message is meant.
    v_from := array[queen.segment_of(p_partition, v_cursor), queen.segment_of(p_partition, v_lease_end),
                    queen.segment_of(p_partition, v_cursor - 10000), 0];
    v_to := array[v_lease_end, null, v_cursor, v_cursor];
    for i in 1 .. 4 loop
        for v_index, v_offset in
            select distinct on (f.index) f.index, f.message_offset
            from queen.find_transactions(p_partition, v_from[i], v_to[i], '-infinity', p_hashes) f
            where i > 2 or f.message_offset >= v_cursor
            order by f.index, f.message_offset
        loop
            if not v_index = any (v_found) then
                v_found := v_found || v_index;
                v_offsets := v_offsets || v_offset;
            end if;
        end loop;
        exit when cardinality(v_found) >= p_wanted;
    end loop;
    return query
    select v_cursor, f.index, f.message_offset
    from unnest(v_found, v_offsets) f (index, message_offset)
    union all
    select v_cursor, null, null where v_found = '{}';
end $$;

-- queen.segment_of: the base offset of the segment that contains an offset.
-- in:     p_partition uuid, p_offset bigint
-- out:    bigint: 0 if there is none
-- locks:  none
-- raises: never
create or replace function queen.segment_of(p_partition uuid, p_offset bigint)
returns bigint language sql volatile as $$
    select coalesce((select s.base_offset from queen.segments s
                     where s.partition_id = p_partition and s.base_offset <= p_offset
                     order by s.base_offset desc limit 1), 0)
$$;

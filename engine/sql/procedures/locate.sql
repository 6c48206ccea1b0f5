-- queen.locate: where a group stands in a partition and where some of its messages are. For acks of leases that
-- this broker did not serve or no longer remembers.
-- in:     p_partition uuid, p_group text, p_hashes bytea (16 bytes each), p_wanted int (how many messages they stand
--         for: a message may be asked for under two hashes)
-- out:    cursor bigint, index int (0-based, null when nothing was found), message_offset bigint
--         (no row at all when the partition does not exist)
-- locks:  the partitions row, if a consumers row has to be added
-- raises: never
-- Looks where acks belong first: in the lease, then just below the cursor, where a late or repeated ack points to.
-- Only for what is in neither does it read the whole partition.
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
    -- A transaction id may stand in the log twice once its dedup window has passed; the unread one is meant, and of
    -- those the first.
    v_from := array[queen.segment_of(p_partition, v_cursor), queen.segment_of(p_partition, v_lease_end),
                    queen.segment_of(p_partition, v_cursor - 10000), 0];
    v_to := array[v_lease_end, null, v_cursor, v_cursor];
    for i in 1 .. 4 loop
        for v_index, v_offset in
            select f.index, f.message_offset
            from queen.find_transactions(p_partition, v_from[i], v_to[i], '-infinity', p_hashes) f
        loop
            if (i > 2 or v_offset >= v_cursor) and not v_index = any (v_found) then
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

-- queen.segment_of: the base offset of the segment that holds an offset.
-- in:     p_partition uuid, p_offset bigint
-- out:    bigint: 0 when there is none
-- locks:  none
-- raises: never
create or replace function queen.segment_of(p_partition uuid, p_offset bigint)
returns bigint language sql volatile as $$
    select coalesce((select s.base_offset from queen.segments s
                     where s.partition_id = p_partition and s.base_offset <= p_offset
                     order by s.base_offset desc limit 1), 0)
$$;

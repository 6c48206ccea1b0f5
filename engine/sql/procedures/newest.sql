-- Finds rows whose key ends in a generation (schema/0003_generations.sql), from the highest generation down: however many old
-- versions an open transaction keeps alive, these read only a few. Plain SQL, so that they are inlined into the calling
-- statement. Statements that lock cannot use them and repeat them in a lateral select. Statements that then update the row name
-- its generation, from a select that ends in `offset 0`: otherwise the update might be planned to run first.

-- queen.next_generation: the generation of the next version of a row.
-- in:     p_generation bigint, p_version bigint   of the version that is replaced
-- out:    bigint
-- locks:  none
-- raises: never
-- Generations start seldom enough that few index entries are left behind, and often enough that a lookup walks past few dead
-- versions while an open transaction keeps them (docs/performance.md).
create or replace function queen.next_generation(p_generation bigint, p_version bigint)
returns bigint language sql immutable as $$
    select p_generation + (p_version % 64 = 63)::int
$$;

-- queen.head_of: the heads row of a partition.
-- in:     p_partition uuid
-- out:    the row; none if the partition does not exist
-- locks:  none
-- raises: never
create or replace function queen.head_of(p_partition uuid)
returns setof queen.heads language sql stable rows 1 as $$
    select h.* from queen.heads h where h.partition_id = p_partition order by h.generation desc limit 1
$$;

-- queen.reader_of: the consumers row of a group in a partition.
-- in:     p_partition uuid, p_group text
-- out:    the row; none if the group has not read there yet
-- locks:  none
-- raises: never
create or replace function queen.reader_of(p_partition uuid, p_group text)
returns setof queen.consumers language sql stable rows 1 as $$
    select c.* from queen.consumers c where c.partition_id = p_partition and c.consumer_group = p_group
    order by c.generation desc limit 1
$$;

-- queen.readers_of: the consumers rows of all groups in a partition.
-- in:     p_partition uuid
-- out:    the rows, last group first
-- locks:  none
-- raises: never
-- Steps from one group to the previous one, because a range scan would read every old version.
create or replace function queen.readers_of(p_partition uuid)
returns setof queen.consumers language sql stable as $$
    with recursive readers as (
        (select c.* from queen.consumers c where c.partition_id = p_partition
         order by c.consumer_group desc, c.generation desc limit 1)
        union all
        select n.* from readers r
        cross join lateral (
            select c.* from queen.consumers c
            where c.partition_id = p_partition and c.consumer_group < r.consumer_group
            order by c.consumer_group desc, c.generation desc limit 1) n)
    select * from readers
$$;

-- queen.lock_readers: locks consumers rows before they are read and changed.
-- in:     p_partitions uuid[], p_groups text[]
-- out:    nothing
-- locks:  consumers rows in (partition_id, consumer_group) order
-- raises: never
create or replace function queen.lock_readers(p_partitions uuid[], p_groups text[])
returns void language plpgsql as $$
begin
    perform 1
    from (select a.* from unnest(p_partitions, p_groups) a (partition_id, consumer_group)
          order by a.partition_id, a.consumer_group collate "C") a
    cross join lateral (
        select 1 from queen.consumers c
        where c.partition_id = a.partition_id and c.consumer_group = a.consumer_group
        order by c.generation desc limit 1
        for no key update) l;
end $$;

-- queen.try_readers: locks the consumers rows that no other session has locked.
-- in:     p_partitions uuid[], p_groups text[], p_wait int (milliseconds to wait for the others; 0 = omit them, null =
--         as long as lock_timeout allows)
-- out:    locked int[] (their positions, from 1), busy int[] (the positions of omitted rows). A row that does not
--         exist is in neither
-- locks:  consumers rows, skipping busy ones; in (partition_id, consumer_group) order if p_wait allows waiting
-- raises: lock_not_available when the wait times out
create or replace function queen.try_readers(
    p_partitions uuid[], p_groups text[], p_wait int, out locked int[], out busy int[])
language plpgsql as $$
begin
    if p_wait is distinct from 0 then
        perform queen.limit_wait(p_wait);
        perform queen.lock_readers(p_partitions, p_groups);
    end if;
    locked := array(
        select a.ordinal::int
        from unnest(p_partitions, p_groups) with ordinality a (partition_id, consumer_group, ordinal)
        cross join lateral (
            select 1 from queen.consumers c
            where c.partition_id = a.partition_id and c.consumer_group = a.consumer_group
            order by c.generation desc limit 1
            for no key update skip locked) l);
    busy := '{}';
    if cardinality(locked) < cardinality(p_partitions) then
        busy := array(
            select a.ordinal::int
            from unnest(p_partitions, p_groups) with ordinality a (partition_id, consumer_group, ordinal)
            where a.ordinal <> all (locked)
              and exists (select 1 from queen.reader_of(a.partition_id, a.consumer_group)));
    end if;
end $$;

-- queen.limit_wait: sets the lock timeout for the rest of this transaction.
-- in:     p_wait int: milliseconds; null = the session's setting
-- out:    nothing
-- locks:  none
-- raises: never
create or replace function queen.limit_wait(p_wait int)
returns void language plpgsql as $$
begin
    if p_wait is not null then
        perform set_config('lock_timeout', p_wait::text, true);
    end if;
end $$;

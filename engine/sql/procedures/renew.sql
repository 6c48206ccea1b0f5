-- queen.renew_unlocked: extends leases that are still held.
-- in:     p_leases uuid[], p_numbers bigint[] (partition numbers), p_seconds int[]: one row per partition of a lease
--         p_wait int: milliseconds to wait for locked cursors; 0 omits them, null waits as long as lock_timeout allows
-- out:    lease_id uuid, lease_until timestamptz: one row per extended partition lease, and one without a time per
--         partition lease whose cursor another session has locked
-- locks:  consumers rows in (partition_id, consumer_group) order, skipping busy ones unless p_wait allows waiting
-- raises: lock_not_available when the wait times out
create or replace function queen.renew_unlocked(p_leases uuid[], p_numbers bigint[], p_seconds int[], p_wait int)
returns table (lease_id uuid, lease_until timestamptz)
language plpgsql as $$
declare
    v_now timestamptz := queen.now();
    v_held record;
    v_tried record;
begin
    select array_agg(c.partition_id) as partitions, array_agg(c.consumer_group) as groups,
           array_agg(a.lease_id) as leases, array_agg(a.seconds) as seconds
    into v_held
    from unnest(p_leases, p_numbers, p_seconds) a (lease_id, number, seconds)
    join queen.partitions p on p.number = any (array[a.number])
    cross join lateral queen.readers_of(p.id) c
    where c.lease_id = a.lease_id;
    if v_held.partitions is null then
        return;
    end if;
    select t.locked, t.busy into v_tried from queen.try_readers(v_held.partitions, v_held.groups, p_wait) t;
    return query select v_held.leases[b.position], null::timestamptz from unnest(v_tried.busy) b (position);
    return query
    update queen.consumers as c
    set lease_until = greatest(c.lease_until, v_now + make_interval(secs => a.seconds)),
        lease_own_until = case when queen.is_held(c.lease_until, v_now)
                               then greatest(c.lease_own_until, v_now + make_interval(secs => a.seconds))
                               else c.lease_own_until end,
        version = c.version + 1, generation = queen.next_generation(c.generation, c.version)
    from (select a.*, l.generation
          from unnest(v_held.partitions, v_held.groups, v_held.leases, v_held.seconds)
               with ordinality a (partition_id, consumer_group, lease_id, seconds, ordinal)
          cross join lateral queen.reader_of(a.partition_id, a.consumer_group) l
          where a.ordinal = any (v_tried.locked)
          offset 0) a
    where c.partition_id = any (array[a.partition_id]) and c.consumer_group = a.consumer_group
      and c.generation = a.generation and c.lease_id = a.lease_id and c.lease_until > v_now
    returning c.lease_id, case when queen.is_held(c.lease_until, v_now) then c.lease_own_until else c.lease_until end;
end $$;

-- queen.renew: queen.renew_unlocked, waiting for locked cursors. Called by brokers of 0.1.0; to be removed with 0.3.0.
-- in:     as queen.renew_unlocked without p_wait
-- out:    lease_id uuid, lease_until timestamptz: one row per extended partition lease
-- locks:  consumers rows in (partition_id, consumer_group) order
-- raises: never for a single item
create or replace function queen.renew(p_leases uuid[], p_numbers bigint[], p_seconds int[])
returns table (lease_id uuid, lease_until timestamptz) language sql as $$
    select r.lease_id, r.lease_until from queen.renew_unlocked(p_leases, p_numbers, p_seconds, null) r
$$;

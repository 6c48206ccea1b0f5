-- queen.pulse: state that every broker polls, in one call.
-- in:     nothing
-- out:    depth bigint, oldest_seconds double precision (age of open deferred operations), maintenance boolean,
--         pop_maintenance boolean
-- locks:  none
-- raises: never
create or replace function queen.pulse(
    out depth bigint, out oldest_seconds double precision, out maintenance boolean, out pop_maintenance boolean)
language sql stable as $$
    select o.depth, coalesce(extract(epoch from queen.now() - o.oldest), 0)::double precision,
           coalesce((select s.value = 'true' from queen.settings s where s.name = 'maintenance'), false),
           coalesce((select s.value = 'true' from queen.settings s where s.name = 'pop_maintenance'), false)
    from (select count(*) as depth, min(d.created_at) as oldest from queen.deferred d
          where d.status in ('pending', 'processing')) o
$$;

-- queen.set_setting: stores a setting for all brokers.
-- in:     p_name text, p_value jsonb
-- out:    nothing
-- locks:  one settings row
-- raises: never
create or replace function queen.set_setting(p_name text, p_value jsonb)
returns void language sql as $$
    insert into queen.settings as s (name, value) values (p_name, p_value)
    on conflict (name) do update set value = excluded.value
$$;

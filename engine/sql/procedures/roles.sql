-- queen.lead_to_public: makes tables that this role creates without naming a schema go to `public`. By default PostgreSQL
-- first uses the schema named like the role, which is ours if the role is called queen; and ours is dropped when a backup is
-- restored.
-- in:     nothing
-- out:    nothing
-- locks:  the setting of the role
-- raises: never
-- For the embedded server. An existing setting stays. Brokers do not depend on it (engine/src/db/connect.rs).
create or replace function queen.lead_to_public()
returns void language plpgsql set enable_seqscan = on as $$
begin
    if not exists (select 1 from pg_db_role_setting s
                   join pg_roles r on r.oid = s.setrole
                   cross join lateral unnest(s.setconfig) c (setting)
                   where r.rolname = current_user and c.setting like 'search_path=%') then
        execute format('alter role %I set search_path = public', current_user);
    end if;
end $$;

-- By default, PostgreSQL lets every role execute a new function, so a role that may use the schema, for example to push, could call
-- all of Queen's procedures. This revokes execution of procedures without explicit grants. Brokers own them and need no grant.
-- Existing grants stay: procedures are replaced, never dropped, unless their signature changes.
do $$
declare
    v_routine regprocedure;
begin
    for v_routine in
        select p.oid from pg_proc p
        where p.pronamespace = 'queen'::regnamespace and p.proacl is null and pg_has_role(p.proowner, 'member')
        order by p.oid
    loop
        execute format('revoke execute on routine %s from public', v_routine);
    end loop;
end $$;

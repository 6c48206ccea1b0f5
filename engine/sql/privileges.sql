-- PostgreSQL lets everybody execute a new function. Once a role may use the schema, to push for example, it could call all
-- of Queen's procedures; so the ones that nobody has decided about yet are closed. Brokers own them and need no grant. What
-- was granted stays: procedures are replaced, never dropped, unless their signature changes.
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

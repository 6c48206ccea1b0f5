-- queen.spool_position: how far the spool of a broker was stored.
-- in:     p_spool uuid
-- out:    the number of the next record
-- locks:  one spools row, if it is new
-- raises: never
create or replace function queen.spool_position(p_spool uuid)
returns bigint language plpgsql as $$
begin
    insert into queen.spools as s (id) values (p_spool) on conflict (id) do nothing;
    return (select s.position from queen.spools s where s.id = p_spool);
end $$;

-- queen.move_spool: records that the spool was stored up to a record, in the transaction that stores it.
-- in:     p_spool uuid, p_from bigint (the next record, as the broker knows it), p_to bigint
-- out:    false if the position differs: then nothing must be stored
-- locks:  one spools row
-- raises: never
create or replace function queen.move_spool(p_spool uuid, p_from bigint, p_to bigint)
returns boolean language plpgsql as $$
begin
    update queen.spools as s set position = p_to, seen_at = queen.now() where s.id = p_spool and s.position = p_from;
    return found;
end $$;

-- queen.number_commit as in 0007_inbox.sql, but that a transaction which is about to be prepared never notifies: PostgreSQL would
-- refuse to prepare it. A trigger is not told what it runs for, but PREPARE TRANSACTION is always a statement that the client has
-- sent, so its text says so. A text that only looks like it costs a broker that rests the second until it looks by itself, as
-- does COMMIT PREPARED, for which no trigger runs.
create or replace function queen.number_commit() returns trigger
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    insert into queen.inbox_commits as c (xid, number) values (new.xid, nextval('queen.inbox_numbers'))
    on conflict (xid) do nothing;
    if not pg_try_advisory_xact_lock_shared(hashtextextended('queen.inbox.rest', 0))
       and (current_setting('max_prepared_transactions')::int = 0
            or coalesce(current_query() !~* '\mprepare\M.*\mtransaction\M', true)) then
        perform pg_notify('queen_inbox', '');
    end if;
    return null;
end $$;

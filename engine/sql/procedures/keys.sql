-- queen.create_key: adds an API key.
-- in:     p_id text, p_name text, p_role text, p_grants jsonb (null: all queues), p_hash bytea (SHA-256 of its secret),
--         p_seconds bigint (null: it never expires)
-- out:    timestamptz: when it expires
-- locks:  none
-- raises: if the id is taken, or a check of the table fails
create or replace function queen.create_key(
    p_id text, p_name text, p_role text, p_grants jsonb, p_hash bytea, p_seconds bigint)
returns timestamptz language sql as $$
    insert into queen.api_keys (id, name, role, grants, hash, expires_at)
    values (p_id, p_name, p_role, p_grants, p_hash, now() + make_interval(secs => p_seconds))
    returning expires_at
$$;

-- queen.keys: lists API keys.
-- in:     p_live boolean (only those that are valid now)
-- out:    the columns of queen.api_keys, grants as text, the oldest first
-- locks:  none
-- raises: never
-- Brokers read all of them every few seconds, so that unknown ids cost nothing; suitable for thousands of keys.
create or replace function queen.keys(p_live boolean)
returns table (id text, name text, role text, grants text, hash bytea, created_at timestamptz, expires_at timestamptz,
               revoked_at timestamptz)
language plpgsql set enable_sort = on set enable_seqscan = on set plan_cache_mode = force_custom_plan set jit = off as $$
begin
    return query
    select k.id, k.name, k.role, k.grants::text, k.hash, k.created_at, k.expires_at, k.revoked_at
    from queen.api_keys k
    where not p_live or (k.revoked_at is null and (k.expires_at is null or k.expires_at > now()))
    order by k.created_at, k.id;
end $$;

-- queen.revoke_key: revokes an API key. Its row stays for later reference.
-- in:     p_id text
-- out:    boolean: false if there is no such key, or it was revoked before
-- locks:  the row
-- raises: never
create or replace function queen.revoke_key(p_id text)
returns boolean language sql as $$
    with revoked as (
        update queen.api_keys set revoked_at = now() where id = p_id and revoked_at is null returning id)
    select exists (select from revoked)
$$;

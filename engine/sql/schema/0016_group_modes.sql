-- `mode`: how a group asked where to start, in its own word; null if an earlier release registered it. `used_at`: when a broker last saw
-- the group in use, to the hour, so that registrations that nothing uses can be removed (procedures/groups.sql).
alter table queen.groups
    add column mode text,
    add column used_at timestamptz not null default now();

-- It says why it refuses now, and was in no release.
drop function if exists queen.open_with_options(text[], text[], uuid[], text[], text[], boolean[]);

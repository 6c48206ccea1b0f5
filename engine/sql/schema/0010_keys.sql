-- Keys for people without an identity provider. Only the SHA-256 of a key's secret is kept: the secret is 256 random bits, so
-- there is nothing to guess that a slow hash would have to protect.
create table queen.api_keys (
    id         text primary key check (id ~ '^[0-9a-f]{16}$'),
    name       text not null check (char_length(name) between 1 and 255),
    role       text not null check (role in ('read-only', 'read-write', 'admin')),
    -- An array as in the claim of a token; null = all queues.
    grants     jsonb,
    hash       bytea not null check (octet_length(hash) = 32),
    created_at timestamptz not null default now(),
    expires_at timestamptz,
    revoked_at timestamptz
);

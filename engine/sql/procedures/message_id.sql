-- queen.message_id: the id of a message, computed from its segment and partition.
-- in:     p_created_at timestamptz, p_offset bigint, p_number bigint (the partition's)
-- out:    a UUIDv7: 48 bits of milliseconds, 42 bits of offset, 32 bits of partition number
-- locks:  none
-- raises: never
-- The same bits in the same order as engine/src/log/ids.rs; a test compares the two.
-- Views call it in any session, so its names are resolved when it is created (frame.sql).
create or replace function queen.message_id(p_created_at timestamptz, p_offset bigint, p_number bigint)
returns uuid language sql immutable parallel safe
return (lpad(to_hex((floor(extract(epoch from p_created_at) * 1000))::bigint), 12, '0')
        || to_hex(x'7000'::int | ((p_offset >> 30) & 4095)::int)
        || to_hex((-9223372036854775808)::bigint | ((p_offset & 1073741823) << 32) | (p_number & 4294967295)))::uuid;

-- queen.frame_header, queen.frame_payload: the two halves of a line of `segments.frames`.
-- in:     p_frame text, as written by engine/src/log/frames.rs: {"transactionId":…,…,"payload":…}. A message that was
--         accepted before it had an offset has the "messageId" that it was promised
-- out:    the header as jsonb; the payload as jsonb, or null if jsonb cannot represent it
-- locks:  none
-- raises: never: a payload that is JSON but not jsonb (\u0000, a lone surrogate, 1e200000) must not break a view
-- Views call these in any session, so they must not depend on its search_path. A body that is an expression is resolved when the
-- function is created, and can still be inlined; PL/pgSQL needs a setting.
create or replace function queen.frame_header(p_frame text)
returns jsonb language sql immutable parallel safe
return (left(p_frame, position(',"payload":' in p_frame) - 1) || '}')::jsonb;

create or replace function queen.frame_payload(p_frame text)
returns jsonb language plpgsql immutable set search_path = pg_catalog, pg_temp as $$
begin
    return substr(p_frame, position(',"payload":' in p_frame) + 11,
                  length(p_frame) - position(',"payload":' in p_frame) - 11)::jsonb;
exception when data_exception then
    return null;
end $$;

-- queen.promised_ids: the promised ids of stored messages.
-- in:     p_partition uuid, p_offsets bigint[]
-- out:    uuid[], an element per offset; null for a message whose id is computed
-- locks:  none
-- raises: never
-- Each segment is parsed once, and only if it contains such an id.
create or replace function queen.promised_ids(p_partition uuid, p_offsets bigint[])
returns uuid[] language sql as $$
    with wanted as materialized (
        select a.ordinal, a.message_offset, s.base_offset
        from unnest(p_offsets) with ordinality a (message_offset, ordinal)
        cross join lateral (
            select g.base_offset from queen.segments g
            where g.partition_id = p_partition and g.base_offset <= a.message_offset
            order by g.base_offset desc limit 1) s),
    taken as materialized (
        select w.base_offset, string_to_array(g.frames, e'\n') as frames
        from (select distinct w.base_offset from wanted w) w
        cross join lateral (select g.frames from queen.segments g
                            where g.partition_id = p_partition and g.base_offset = w.base_offset limit 1) g
        where position('"messageId":"' in g.frames) > 0)
    select array_agg((queen.frame_header(t.frames[w.message_offset - w.base_offset + 1]) ->> 'messageId')::uuid
                     order by w.ordinal)
    from wanted w left join taken t on t.base_offset = w.base_offset
$$;

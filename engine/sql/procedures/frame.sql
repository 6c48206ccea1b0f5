-- queen.frame_header, queen.frame_payload: the two halves of one line of `segments.frames`.
-- in:     p_frame text, as engine/src/log/frames.rs writes it: {"transactionId":…,…,"payload":…}. A message that was
--         accepted before it had a place in the log has the "messageId" it was promised then
-- out:    the header as jsonb; the payload as jsonb, or null where jsonb cannot hold it
-- locks:  none
-- raises: never: a payload that is JSON but not jsonb (\u0000, a lone surrogate, 1e200000) must not break a view
create or replace function queen.frame_header(p_frame text)
returns jsonb language sql immutable parallel safe as $$
    select (left(p_frame, position(',"payload":' in p_frame) - 1) || '}')::jsonb
$$;

create or replace function queen.frame_payload(p_frame text)
returns jsonb language plpgsql immutable as $$
begin
    return substr(p_frame, position(',"payload":' in p_frame) + 11,
                  length(p_frame) - position(',"payload":' in p_frame) - 11)::jsonb;
exception when data_exception then
    return null;
end $$;

-- queen.promised_id: the id a stored message was promised before it had a place in the log.
-- in:     p_partition uuid, p_offset bigint
-- out:    uuid; null for a message whose id is computed
-- locks:  none
-- raises: never
create or replace function queen.promised_id(p_partition uuid, p_offset bigint)
returns uuid language sql as $$
    select (queen.frame_header(split_part(s.frames, e'\n', (p_offset - s.base_offset + 1)::int)) ->> 'messageId')::uuid
    from (select g.base_offset, g.frames from queen.segments g
          where g.partition_id = p_partition and g.base_offset <= p_offset
          order by g.base_offset desc limit 1) s
$$;

-- queen.frame_header, queen.frame_payload: the two halves of one line of `segments.frames`.
-- in:     p_frame text, as engine/src/log/frames.rs writes it: {"transactionId":…,…,"payload":…}
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

-- Filters of dead letters: shared by lists, counts, purges and redrives, so that each applies to exactly what the others show.

-- queen.error_shape: an error without its variable parts, so that errors of one kind have the same shape.
-- in:     p_error text (null = no error)
-- out:    text, up to 200 characters; '' = no error
-- locks:  none
-- raises: never
-- Quoted text, UUIDs, hexadecimal and other numbers become #; field names in JSON stay. Only the first 500 characters are used,
-- because an error may contain a whole document. A redrive stores its shape, so changing this changes what running redrives
-- match.
create or replace function queen.error_shape(p_error text)
returns text language sql immutable parallel safe as $$
    select left(btrim(translate(regexp_replace(
        case when p_error ~ '^\s*[{[]' then regexp_replace(left(p_error, 500), '"([^"]*)"(\s*:)', '\1\2', 'g')
             else left(coalesce(p_error, ''), 500) end,
        '"(?:[^"\\]|\\.)*"|`[^`]*`|\Y''[^'']*''\Y'
        '|\m[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\M|\m(?:0x)?[0-9a-fA-F]{8,}\M|0x[0-9a-fA-F]+'
        '|[0-9]+(?:[-.,:/_T][0-9]+)*',
        '#', 'g'), e'\n\r\t', '   ')), 200)
$$;

-- queen.letter_matches: whether a dead letter matches a filter.
-- in:     of the letter: p_its_group text, p_failed_at timestamptz, p_its_error text; of the filter: p_group text, p_from
--         timestamptz, p_to timestamptz (of the failure, both included), p_error text (a part of the error, case-insensitive),
--         p_shape text (of the error); null = any
-- out:    boolean; null = no
-- locks:  none
-- raises: never
-- Plain SQL, so that it is inlined into the calling statement, and an index can still be used.
create or replace function queen.letter_matches(
    p_its_group text, p_failed_at timestamptz, p_its_error text, p_group text, p_from timestamptz, p_to timestamptz,
    p_error text, p_shape text)
returns boolean language sql immutable parallel safe as $$
    select (p_group is null or p_its_group = p_group)
       and (p_from is null or p_failed_at >= p_from)
       and (p_to is null or p_failed_at <= p_to)
       and (p_error is null or position(lower(p_error) in lower(p_its_error)) > 0)
       and (p_shape is null or queen.error_shape(p_its_error) = p_shape)
$$;

-- queen.partitions_named: the partitions with a name.
-- in:     p_queue text (null = of all queues), p_partition text
-- out:    uuid[]
-- locks:  none
-- raises: never
create or replace function queen.partitions_named(p_queue text, p_partition text)
returns uuid[] language plpgsql stable set plan_cache_mode = force_custom_plan as $$
declare
    v_queue uuid := (select q.id from queen.queues q where q.name = p_queue);
begin
    return array(select p.id from queen.partitions p
                 where p.name = p_partition and (p_queue is null or p.queue_id = v_queue));
end $$;

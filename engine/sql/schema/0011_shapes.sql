-- Dead letters can be chosen by the shape of their error (procedures/letters.sql), also by a replay.
alter table queen.redrives add column error_shape text;

-- It asks for a shape now, and was in no release.
drop function if exists queen.purge_letters(text, text, text, timestamptz, timestamptz, text, uuid, bigint, int);

-- push, lease and ack answer in one row of arrays. A function's answer cannot be replaced in place.
drop function if exists queen.push(uuid[], bigint[], int[], int[], bytea[], text[], boolean[], bigint[]);
drop function if exists queen.lease(int[], uuid[], text[], uuid[], int[], int[], int[], boolean[], bigint);
drop function if exists queen.ack(uuid[], uuid[], text[], uuid[], bigint[], boolean[], bigint[], boolean[], boolean[],
                                  bigint[], boolean[], boolean[], int[], boolean[], bigint[], text[]);
-- Replaced by queen.add_readers.
drop function if exists queen.start_cursor(uuid, text);

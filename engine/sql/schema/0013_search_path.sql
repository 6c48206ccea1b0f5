-- A session's search_path decides which function or operator a name means, and schema `public` may be open to everybody. Sessions of
-- brokers have a path of their own (engine/src/db/connect.rs). These run in sessions of others too: triggers when a queue is deleted
-- by hand, the clock when somebody reads a view.
create or replace function queen.now() returns timestamptz language sql volatile parallel safe
return clock_timestamp();

alter function queen.forget_queue() set search_path = pg_catalog, pg_temp;
alter function queen.forget_partition() set search_path = pg_catalog, pg_temp;
alter function queen.forget_inbox() set search_path = pg_catalog, pg_temp;
alter function queen.forget_minutes() set search_path = pg_catalog, pg_temp;
alter function queen.count_deleted_partitions() set search_path = pg_catalog, pg_temp;

//! The engine on a real PostgreSQL: one binary, one file per area, every test on a database of its own.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails like the test itself: by panicking")]

mod ack;
mod awkward;
mod crypt;
mod dedup;
mod defects;
mod deferred;
mod deferred_acks;
mod doctor;
mod forecast;
mod history;
mod inbox;
mod keys;
mod letters;
mod life;
mod limits;
mod lock_order;
mod memory;
mod messages;
mod migrate;
mod nack;
mod partitions;
mod pop;
mod pop_brokers;
mod pop_cost;
mod pop_held;
mod pop_wait;
mod purge;
mod push;
mod push_retry;
mod redrive;
mod renew;
mod restart;
mod retention;
mod skips;
mod spool;
mod sql_face;
mod standby;
mod statistics;
mod subscription;
mod support;
mod tls;
mod trace;
mod traces;
mod transaction;

//! The server as its clients see it: real HTTP, a real PostgreSQL, one binary for all areas.

#![expect(clippy::unwrap_used, reason = "a helper of a test fails like the test itself: by panicking")]

mod ack;
mod analytics;
mod auth;
mod bad_input;
mod brokers;
mod commands;
mod conventions;
mod crypt;
mod dead_letters;
mod doctor;
mod exposition;
mod groups;
mod health;
mod inbox;
mod life;
mod limits;
mod load;
mod messages;
mod metrics;
mod observability;
mod openapi;
mod ordering;
mod outage;
mod pop;
mod process;
mod push;
mod queues;
mod raw_socket;
mod redrives;
mod renew;
mod resources;
mod retries;
mod scenarios;
mod spool;
mod status;
mod subscription;
mod support;
mod telemetry;
mod time;
mod tls;
mod trace;
mod traces;
mod transaction;
mod waiting;

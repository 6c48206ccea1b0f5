//! One file per group of routes; each handler reads: parse, submit, answer. No SQL, no batching, no waiting
//! of its own.

pub mod accepted;
pub mod ack;
pub mod analytics;
pub mod answer;
pub mod cluster;
pub mod cors;
pub mod dead_letters;
pub mod error;
pub mod groups;
pub mod health;
pub mod maintenance;
pub mod metrics;
pub mod openapi;
pub mod operations;
pub mod pop;
pub mod push;
pub mod queue_history;
pub mod queues;
pub mod renew;
pub mod request;
pub mod series;
#[cfg_attr(not(test), expect(dead_code, reason = "waits for GET /api/v1/status"))]
pub mod throughput;
pub mod transaction;

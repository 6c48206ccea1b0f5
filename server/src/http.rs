//! The handlers, one file per group of routes. Each handler reads: parse, submit, answer. They use no SQL, do no batching and wait
//! for nothing themselves.

pub mod accepted;
pub mod ack;
pub mod analytics;
pub mod answer;
pub mod cluster;
pub mod dead_letters;
pub mod doctor;
pub mod error;
pub mod groups;
pub mod health;
pub mod life;
pub mod maintenance;
pub mod messages;
pub mod metrics;
mod misspelt;
pub mod openapi;
pub mod operations;
pub mod origins;
pub mod pop;
pub mod push;
pub mod queue_history;
pub mod queues;
pub mod redrives;
pub mod renew;
pub mod request;
pub mod resources;
pub mod seeks;
pub mod series;
pub mod settings;
pub mod statistics;
pub mod status;
pub mod throughput;
pub mod trace;
pub mod traces;
pub mod transaction;
pub mod whoami;

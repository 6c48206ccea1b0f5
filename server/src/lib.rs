//! The HTTP server of Queen, and everything a broker process needs around it: settings, access control, limits, metrics. It knows
//! no SQL.

#![warn(clippy::print_stdout, clippy::print_stderr, reason = "panics if nobody reads it")]

pub mod app;
mod auth;
pub mod cli;
pub mod config;
mod connections;
mod dashboard;
pub mod doctor;
#[doc(hidden)]
pub mod fuzzing;
mod http;
pub mod key;
mod limits;
pub mod logging;
mod meter;
pub mod migrate;
pub mod openapi;
mod outgoing;
pub mod psql;
pub mod routes;
pub mod serve;
mod signals;
mod telemetry;
pub mod tls;
mod waits;

pub use app::Options;
pub use connections::{name, run};

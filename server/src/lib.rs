//! The door of Queen: HTTP in, HTTP out, and everything a process needs around it. It knows no SQL.

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
pub mod serve;
mod signals;
mod telemetry;
mod templates;
pub mod tls;
mod waits;

pub use app::Options;
pub use connections::{name, run};

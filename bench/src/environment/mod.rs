//! What a series of scenarios runs against: a fresh PostgreSQL with a broker, or a broker that is already running.

mod account;
mod broker;
mod cluster;
mod machine;
mod session;
mod site;

pub use account::Account;
pub use cluster::{free_port, programs};
pub use machine::{Machine, kilobytes};
pub use session::Session;
pub use site::{Site, Source};

//! The database: connections, migrations, and one typed function per procedure. SQL text is called from
//! `procedures.rs` and lives in `engine/sql`.

mod connect;
mod connections;
mod error;
pub mod migrate;
pub mod procedures;

pub use connect::{ConnectError, Connector, error_chain};
pub use connections::{Checkout, Connection, Connections, Priority};
pub use error::Error;

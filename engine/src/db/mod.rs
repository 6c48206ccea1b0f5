//! The database: connections, migrations, and one typed function per procedure. The SQL text lives in `engine/sql` and
//! is called from `procedures.rs` (message plane), `control.rs` and its neighbors (control plane).

mod backend;
mod connect;
mod connections;
pub mod control;
mod error;
pub mod history;
pub mod keys;
pub mod letters;
pub mod life;
pub mod messages;
pub mod migrate;
pub mod procedures;
pub mod purge;
pub mod redrive;
pub mod resources;
mod server;
pub mod statistics;
mod tls;
pub mod traces;
pub mod transaction;

pub use backend::Backend;
pub use connect::{ConnectError, Connector, error_chain};
pub use connections::{Checkout, Connection, Connections, Priority, RETRY_PAUSE};
pub use error::Error;

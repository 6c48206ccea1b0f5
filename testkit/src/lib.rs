//! Infrastructure for tests: a PostgreSQL in a temporary folder, databases, a network that can break, a broker as a real
//! process. If any of these cannot be provided, the test panics at once.
//!
//! `cargo run -p queen-testkit -- cargo nextest run` shares one cluster among all tests. Without it, each test starts its own,
//! which is slower. With `--template COMMAND` in front, tests get copies of a database that the command has filled.
//! `queen-testkit scenarios -- COMMAND` is the environment of `clients/scenarios`.

mod broker;
#[cfg(feature = "certificates")]
mod certificates;
mod cluster;
mod database;
mod pooler;
mod proxy;
mod random;
mod scenarios;
mod url;
mod wire;

pub use broker::Broker;
#[cfg(feature = "certificates")]
pub use certificates::{Authority, Certificate};
pub use cluster::{Cluster, cluster, cluster_template, cluster_with};
pub use database::{Database, database, empty_database};
pub use pooler::Pooler;
pub use proxy::Proxy;
pub use random::Random;
pub use scenarios::Scenarios;

use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls};

/// Connection string of the shared cluster, in keyword form; set by the `queen-testkit` program.
pub const SHARED_CLUSTER: &str = "QUEEN_TEST_POSTGRES";

/// The database on it that tests get copies of; set by the same program.
pub const TEMPLATE: &str = "QUEEN_TEST_TEMPLATE";

/// The files that tests' own clusters are copied from; set by the same program.
pub const CLUSTER_TEMPLATE: &str = "QUEEN_TEST_CLUSTER";

/// Opens a session. Its connection runs in the background until the client is dropped.
pub async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    spawn(async move {
        // The user of the client sees the failure there.
        let _ = connection.await;
    });
    Ok(client)
}

#[expect(clippy::disallowed_methods, reason = "helpers of a test may outlive the call that started them")]
fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(future)
}

//! What tests stand on: a PostgreSQL in a temporary folder, a database of one's own, a network that can
//! break, a broker as a real process. When one of these cannot be had the test panics at once.
//!
//! `cargo run -p queen-testkit -- cargo nextest run` lets all tests share one cluster. Without it each
//! test starts its own: slower, still works. `--template COMMAND` in front lets them have copies of one database that the
//! command has filled. `queen-testkit scenarios -- COMMAND` is the stage of `clients/scenarios`.

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

/// The shared cluster's connection string, in keyword form; set by the `queen-testkit` program.
pub const SHARED_CLUSTER: &str = "QUEEN_TEST_POSTGRES";

/// The database on it that tests get a copy of; set by the same.
pub const TEMPLATE: &str = "QUEEN_TEST_TEMPLATE";

/// The files of a cluster that those of tests are copied from; set by the same.
pub const CLUSTER_TEMPLATE: &str = "QUEEN_TEST_CLUSTER";

/// Opens a session. Its connection runs in the background until the client is dropped.
pub async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    spawn(async move {
        // Whoever uses the client hears of the failure there.
        let _ = connection.await;
    });
    Ok(client)
}

#[expect(clippy::disallowed_methods, reason = "helpers of a test may outlive the call that started them")]
fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(future)
}

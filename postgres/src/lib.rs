//! The embedded PostgreSQL: finds it on this machine, creates a cluster in the data folder, starts it on a private Unix socket,
//! watches it and stops it. It runs no SQL and knows nothing of queues; its result is a connection string.

mod account;
mod binaries;
mod cluster;
mod connection;
mod create;
pub mod environment;
mod error;
mod folder;
mod log;
mod pidfile;
mod postmaster;
mod socket;
mod supervisor;
mod tuning;

use std::path::{Path, PathBuf};

pub use cluster::Cluster;
pub use connection::Connection;
pub use error::Error;
pub use postmaster::Postmaster;

use supervisor::Supervisor;

/// Settings of the embedded server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Contains everything: `postgres/` (the cluster), `postgres.log`, `queen.lock`, usually `socket/`.
    pub data_dir: PathBuf,
    /// The folder of `postgres` and `initdb`; searched for in the usual places if not set.
    pub bin_dir: Option<PathBuf>,
    /// Server settings that override ours, except `port` and `unix_socket_directories`, without which the
    /// server could not be found.
    pub extra: Vec<(String, String)>,
}

/// Starts the server of this data folder, creating it first if needed, and keeps it running: if it dies it is restarted, until
/// [`Embedded::stop`].
pub async fn start(settings: Settings) -> Result<Embedded, Error> {
    let cluster = Cluster::open(settings).await?;
    let postmaster = cluster.launch().await?;
    let connection = cluster.connection().clone();
    Ok(Embedded { connection, supervisor: Supervisor::watch(cluster, postmaster) })
}

/// How to reach the server that runs in this data folder; an error if none does.
pub fn describe(data_dir: &Path) -> Result<Connection, Error> {
    let not_running = || Error::NotRunning { dir: data_dir.to_owned() };
    let cluster = data_dir.join(folder::CLUSTER);
    let file = pidfile::read(&cluster)?.filter(|file| file.ready).ok_or_else(not_running)?;
    if !pidfile::runs_on(file.pid, &cluster) {
        return Err(not_running());
    }
    Ok(Connection::new(file.socket_dir, file.port))
}

/// A running, supervised server. Dropping it stops the server without waiting.
#[derive(Debug)]
pub struct Embedded {
    connection: Connection,
    supervisor: Supervisor,
}

impl Embedded {
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// See [`Connection::url`].
    pub fn url(&self) -> String {
        self.connection.url()
    }

    /// See [`Connection::psql_command`].
    pub fn psql_command(&self) -> String {
        self.connection.psql_command()
    }

    /// Ends all sessions and shuts the server down cleanly. Returns when its process is gone and the data folder is unlocked.
    pub async fn stop(self) {
        self.supervisor.stop().await;
    }
}

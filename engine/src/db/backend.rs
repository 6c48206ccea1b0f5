//! The server process behind a connection, and how to make sure that it does nothing more.
//!
//! A call that missed its deadline, or whose caller went away, may still run: it waits for a lock, or the network has
//! not delivered it yet. Trying it again meanwhile could do it twice, and a late claim would lease messages to a
//! consumer that no longer exists. So its process is ended first, and PostgreSQL confirms that it has ended.
//!
//! A pooler in transaction mode lends server processes. Behind one, this may end another session of the pool, whose
//! call is then tried again, and the guarantee does not hold.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use tokio_postgres::Client;
use tracing::debug;

use super::connect::Connector;
use super::connections::Connection;
use super::error::Error;
use super::server;

/// How long PostgreSQL waits for a process to end before it says that it has not.
pub const ENDS_WITHIN: Duration = Duration::from_secs(5);

/// Pause between attempts while the database cannot be reached. When a server stops, its processes end as well.
const TRY_AGAIN: Duration = Duration::from_secs(1);
const TRIES_MAX: u32 = 30;

/// Processes that may wait to be ended. Beyond that, the statement timeout ends their calls.
const WAITING_MAX: usize = 1_000;

/// Identifies one server process, because process ids are reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backend {
    pub pid: i32,
    pub started: SystemTime,
}

impl Backend {
    /// The process behind a connection, with the incarnation of its server.
    pub async fn of(client: &Client) -> Result<(String, Self), Error> {
        tokio::try_join!(server::incarnation(client), server::backend(client))
    }

    /// Returns once this process can no longer change anything.
    pub async fn end(&self, db: &Connection) -> Result<(), Error> {
        let ended = db.within("pg_terminate_backend", server::end_backends(&db.client, &[*self])).await?;
        ended.then_some(()).ok_or(Error::StillRunning)
    }
}

/// Ends processes whose calls were abandoned, one task for all of them, on a connection beside the pool.
#[derive(Default)]
pub struct Enders(Arc<Mutex<Waiting>>);

#[derive(Default)]
struct Waiting {
    backends: Vec<Backend>,
    is_running: bool,
}

impl Enders {
    pub fn end(&self, backend: Backend, connector: &Connector) {
        // During shutdown there may be no runtime left to run a task.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let mut waiting = lock(&self.0);
        if waiting.backends.len() >= WAITING_MAX {
            return;
        }
        waiting.backends.push(backend);
        if !std::mem::replace(&mut waiting.is_running, true) {
            let (waiting, connector) = (self.0.clone(), connector.clone());
            connector.tasks.clone().spawn(async move { run(&waiting, &connector).await });
        }
    }
}

async fn run(waiting: &Mutex<Waiting>, connector: &Connector) {
    let mut tries = 0;
    loop {
        let backends = {
            let mut waiting = lock(waiting);
            if waiting.backends.is_empty() || tries == TRIES_MAX {
                waiting.backends.clear();
                waiting.is_running = false;
                return;
            }
            waiting.backends.clone()
        };
        match end_all(connector, &backends).await {
            Ok(()) => {
                lock(waiting).backends.drain(..backends.len());
                tries = 0;
            }
            Err(error) => {
                debug!(%error, "abandoned calls could not be ended");
                tries = if connector.tasks.is_stopping() { TRIES_MAX } else { tries + 1 };
                tokio::time::sleep(TRY_AGAIN).await;
            }
        }
    }
}

async fn end_all(connector: &Connector, backends: &[Backend]) -> Result<(), Error> {
    let client = connector.client().await?;
    let (procedure, after) = ("pg_terminate_backend", 2 * ENDS_WITHIN);
    match tokio::time::timeout(after, server::end_backends(&client, backends)).await {
        Ok(ended) => ended.map(drop).map_err(|error| Error::from_postgres(procedure, error)),
        Err(_) => Err(Error::NoAnswer { procedure, after }),
    }
}

fn lock(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

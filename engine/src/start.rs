//! Starting: checks the database, brings its schema up to date, and opens the lanes.

use std::sync::Arc;

use tokio_postgres::error::SqlState;

use crate::Engine;
use crate::config::Config;
use crate::db::{ConnectError, Connections, Connector, control, error_chain, migrate};
use crate::error::StartError;
use crate::intake;
use crate::jobs;
use crate::lanes::Lanes;
use crate::shared::Shared;
use crate::spool::Spool;
use crate::tasks::Tasks;

/// `server_version_num` of the oldest release that we test with.
const VERSION_MIN: i32 = 150_000;

/// A quarter of what the server allows, so that several brokers and a psql session fit in.
const CONNECTION_SHARE: usize = 4;
const CONNECTIONS_MAX: usize = 32;

/// Connections for lists and figures come on top: one for this many others.
const READ_SHARE: usize = 8;
const READS_MAX: usize = 4;
/// Some seconds of work.
const READS_WAITING_MAX: usize = 64;

impl Engine {
    pub async fn start(config: Config) -> Result<Self, StartError> {
        let tasks = Tasks::default();
        let connector = Connector::new(&config, tasks.clone())?;
        let allowed = prepare(&connector).await?;
        let size = pool_size(config.connections, allowed);
        let connections = Connections::new(
            connector,
            size,
            config.flights,
            config.statement_timeout,
            config.retry_for,
            config.waiting_max,
        );
        let looking = Config { statement_timeout: config.read_timeout, ..config.clone() };
        let reads = Connections::new(
            Connector::new(&looking, tasks.clone())?,
            reads_size(size),
            1,
            looking.statement_timeout,
            config.retry_for,
            READS_WAITING_MAX,
        );
        let spool = match &config.spool {
            Some(spool) => Some(Spool::open(spool).map_err(|cause| StartError::Spool {
                dir: spool.dir.display().to_string(),
                cause: cause.to_string(),
            })?),
            None => None,
        };
        let shared = Arc::new(Shared::new(config, connections, reads, tasks, spool));
        let log = Arc::downgrade(&shared);
        shared.connections.on_new_incarnation(move || {
            if let Some(shared) = log.upgrade() {
                shared.forget_log();
            }
        });
        // The first look only finds out where the log ends now.
        let refused = |error: crate::db::Error| StartError::Statement(error.to_string());
        shared.wake.discover(&shared).await.map_err(refused)?;
        shared.load.feel(&control::pulse(&shared.connections).await.map_err(refused)?);
        jobs::history::introduce(&shared).await.map_err(refused)?;
        let rules = (shared.config.auto_create, shared.config.queues_max);
        control::rule_queues(&shared.connections, rules.0, rules.1).await.map_err(refused)?;
        if shared.config.own_server {
            control::lead_to_public(&shared.connections).await.map_err(refused)?;
        }
        let lanes = Arc::new(Lanes::new(&shared));
        let spawn = &shared.tasks;
        spawn.spawn_until_stop({
            let shared = shared.clone();
            async move { shared.wake.run_listener(shared.clone()).await }
        });
        spawn.spawn_until_stop({
            let shared = shared.clone();
            async move { shared.wake.run_sender(shared.clone()).await }
        });
        spawn.spawn_until_stop({
            let shared = shared.clone();
            async move { shared.wake.run_looks(shared.clone()).await }
        });
        spawn.spawn_until_stop({
            let timers = shared.watches.timers.clone();
            async move { timers.run().await }
        });
        jobs::monitor::start(&shared, &lanes);
        jobs::retention::start(&shared);
        jobs::extents::start(&shared);
        jobs::statistics::start(&shared);
        jobs::examine::start(&shared);
        jobs::life::start(&shared);
        jobs::history::start(&shared, &lanes);
        let engine = Self { shared, lanes, claims: Arc::default() };
        intake::start(&engine);
        Ok(engine)
    }
}

/// Brings the schema up to date and returns.
pub async fn migrate(config: &Config) -> Result<(), StartError> {
    let connector = Connector::new(config, Tasks::default())?;
    prepare(&connector).await.map(drop)
}

/// `wanted`: 0 = as the server allows.
pub fn pool_size(wanted: usize, allowed: usize) -> usize {
    match wanted {
        0 => (allowed / CONNECTION_SHARE).clamp(4, CONNECTIONS_MAX),
        wanted => wanted,
    }
}

/// Connections for lists and figures, for a pool of this size.
pub fn reads_size(size: usize) -> usize {
    (size / READ_SHARE).clamp(2, READS_MAX)
}

/// Checks the server and migrates; returns how many connections it allows.
async fn prepare(connector: &Connector) -> Result<usize, StartError> {
    let (mut client, mut driver) = connector.connect().await.map_err(|error| explain(connector, error))?;
    connector.tasks.spawn_driver(async move {
        while let Some(Ok(_)) = futures_util::StreamExt::next(&mut driver).await {}
    });
    let refused = |error: tokio_postgres::Error| StartError::Statement(error_chain(&error));
    let sql = "select current_setting('server_version_num')::int, current_setting('server_version'),
                      current_setting('max_connections')::int";
    let row = client.query_one(sql, &[]).await.map_err(refused)?;
    if row.get::<_, i32>(0) < VERSION_MIN {
        return Err(StartError::TooOld { found: row.get(1) });
    }
    let allowed: i32 = row.get(2);
    migrate::migrate(&mut client).await?;
    Ok(allowed.max(1) as usize)
}

pub fn explain(connector: &Connector, error: ConnectError) -> StartError {
    let at = connector.location();
    match error {
        ConnectError::Postgres(error) => match error.code() {
            Some(code)
                if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION]
                    .contains(code) =>
            {
                StartError::Refused { at, user: connector.user().to_owned(), cause: error_chain(&error) }
            }
            _ => StartError::Unreachable { at, cause: error_chain(&error) },
        },
        timeout @ ConnectError::Timeout(_) => StartError::Unreachable { at, cause: timeout.to_string() },
    }
}

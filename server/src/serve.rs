//! `queen serve`: starts everything in order, prints where the broker listens, and stops everything in reverse order. It serves
//! no request itself.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Error, Result, bail};
use queen_engine::{Engine, Tls};
use queen_postgres::Embedded;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::app::Options;
use crate::cli::Cli;
use crate::config::{Database, Settings, environment};
use crate::tls::Door;
use crate::{connections, signals};

/// The port is opened first, so that a port in use is reported before a recovery that may take a minute.
pub async fn serve(settings: &Settings) -> Result<()> {
    complain();
    allow_many_connections();
    let shutdown = signals::stop_requests().context("cannot listen for signals")?;
    // Report invalid settings before anything is started.
    settings.engine(String::new(), Tls::OFF)?;
    if let Database::External { connection } = settings.database() {
        settings.reach(&connection)?;
    }
    let mut options = settings.options()?;
    let files = settings.tls()?;
    options.tls = files.map(Door::open).transpose().context("TLS cannot be offered")?.map(Arc::new);
    let listener = bind(&settings.host, settings.port).await?;
    let exposed = exposed(settings, &options, listener.local_addr()?)?;
    let database = settings.database();
    let embedded = match shutdown.run_until_cancelled(embedded(&database)).await {
        Some(embedded) => embedded?,
        None => return Ok(()),
    };
    let served =
        with_database(settings, options, &database, embedded.as_ref(), listener, exposed, shutdown).await;
    if let Some(embedded) = embedded {
        embedded.stop().await;
    }
    if served.is_ok() {
        info!("stopped");
    }
    served
}

async fn with_database(
    settings: &Settings,
    options: Options,
    database: &Database,
    embedded: Option<&Embedded>,
    listener: TcpListener,
    exposed: bool,
    shutdown: CancellationToken,
) -> Result<()> {
    let (connection, tls) = match (database, embedded) {
        (Database::External { connection }, _) => settings.reach(connection)?,
        (Database::Embedded { .. }, Some(embedded)) => (embedded.url(), Tls::OFF),
        (Database::Embedded { .. }, None) => bail!("the embedded PostgreSQL is not running"),
    };
    // Large, and awaited once: it belongs on the heap.
    let mut config = settings.engine(connection, tls)?;
    config.name = connections::name(connections::port(&listener));
    config.own_server = embedded.is_some();
    if settings.file_buffer_dir.is_none() {
        config.spool = settings.spool(settings.spool_dir()).filter(|spool| can_be_made(&spool.dir));
    }
    let started = Box::pin(Engine::start(config));
    let engine = match shutdown.run_until_cancelled(started).await {
        Some(engine) => engine?,
        None => return Ok(()),
    };
    let psql = embedded.map(Embedded::psql_command).or_else(|| database.psql_line()).unwrap_or_default();
    let ours = match &settings.data_dir {
        Some(dir) if embedded.is_some() => format!("queen psql --data-dir {}", dir.display()),
        _ => "queen psql".to_owned(),
    };
    let scheme = if options.tls.is_some() { "https" } else { "http" };
    let banner = banner(scheme, listener.local_addr()?, &database.shown(), &[ours, psql], exposed);
    // Standard output may have no reader; that is no reason to stop.
    _ = io::stdout().write_all(banner.as_bytes());
    connections::run(listener, engine, options, shutdown).await;
    Ok(())
}

/// A default spool directory that cannot be used does not prevent the start.
fn can_be_made(dir: &Path) -> bool {
    let probe = dir.join(format!("probe-{}", std::process::id()));
    let made = std::fs::create_dir_all(dir)
        .and_then(|()| std::fs::write(&probe, ""))
        .and_then(|()| std::fs::remove_file(&probe));
    if let Err(error) = &made {
        warn!(dir = %dir.display(), %error, "cannot use the spool, so pushes fail while the database is unreachable; set FILE_BUFFER_DIR");
    }
    made.is_ok()
}

fn complain() {
    for name in environment::without_meaning() {
        warn!(variable = name, "this variable is no longer used");
    }
    for (name, nearest) in environment::unknown(&Cli::variables()) {
        warn!(variable = name, nearest, "unknown setting");
    }
}

/// Every parked pop is a connection, and many systems allow a process only 1,024 files unless it raises the limit.
fn allow_many_connections() {
    let limit = getrlimit(Resource::Nofile);
    if setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).is_err() {
        warn!(open_files = limit.current, "cannot raise the limit on open files");
    }
}

async fn bind(host: &str, port: u16) -> Result<TcpListener> {
    TcpListener::bind((host, port)).await.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            Error::msg(format!("port {port} is already in use by another program; choose one with --port"))
        }
        _ => Error::new(error).context(format!("cannot listen on {host}:{port}")),
    })
}

/// Whether other machines can reach the broker without access control, which has to be allowed explicitly.
fn exposed(settings: &Settings, options: &Options, address: SocketAddr) -> Result<bool> {
    let closed = options.guard.is_some() || settings.tls_client_ca.is_some();
    if closed || address.ip().to_canonical().is_loopback() {
        return Ok(false);
    }
    if !settings.insecure {
        bail!(
            "{address} can be reached from other machines, and access control is off: set QUEEN_AUTH_ENABLED or JWT_ENABLED, \
             listen on 127.0.0.1, or accept that every client may read, change and delete everything with --insecure \
             (QUEEN_INSECURE=true)"
        );
    }
    warn!(%address, "listening without access control: every client that reaches this address may read, change and delete everything");
    Ok(true)
}

async fn embedded(database: &Database) -> Result<Option<Embedded>> {
    let Database::Embedded { data_dir, bin_dir } = database else { return Ok(None) };
    let settings =
        queen_postgres::Settings { data_dir: data_dir.clone(), bin_dir: bin_dir.clone(), extra: Vec::new() };
    Ok(Some(queen_postgres::start(settings).await?))
}

fn banner(scheme: &str, address: SocketAddr, database: &str, psql: &[String; 2], exposed: bool) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let [ours, theirs] = psql;
    let access =
        if exposed { "  access       open to every client that reaches it (--insecure)\n" } else { "" };
    format!(
        "Queen {version}\n  \
         listening on {scheme}://{address}\n  \
         database     {database}\n  \
         look inside  {ours}\n           or  {theirs}\n{access}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_banner_says_where_exactly_once() {
        let psql = ["queen psql".to_owned(), "psql 'host=db'".to_owned()];
        let text = banner("http", ([127, 0, 0, 1], 6632).into(), "PostgreSQL at db/app", &psql, false);
        let lines: Vec<_> = text.lines().filter(|line| line.contains("listening on")).collect();
        assert_eq!(lines, ["  listening on http://127.0.0.1:6632"]);
    }
}

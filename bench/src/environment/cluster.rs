//! A PostgreSQL in a temporary folder, new for each series. Every broker gets the same settings.
//!
//! The embedded one of `queen-postgres` listens on no port and is tuned for Queen; a comparison needs a port and neutral settings.

use std::fs::{self, File};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio_postgres::Config;

use super::account::Account;
use super::session::Session;

/// The role that creates the broker's role and database and reads counters; its name distinguishes it from the broker.
pub const OBSERVER: &str = "postgres";
/// Role, password and database of the broker.
pub const BROKER: &str = "queen";

/// Differences from PostgreSQL's defaults: durable, enough connections for any broker, and checkpoints that are rare enough not to
/// affect scenarios unevenly.
const SETTINGS: [(&str, &str); 8] = [
    ("listen_addresses", "127.0.0.1"),
    ("unix_socket_directories", ""),
    ("fsync", "on"),
    ("synchronous_commit", "on"),
    ("shared_preload_libraries", "pg_stat_statements"),
    ("max_connections", "200"),
    ("max_wal_size", "4GB"),
    ("shared_buffers", "512MB"),
];
const START_TIMEOUT: Duration = Duration::from_secs(60);
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);

/// Stopped when dropped, and its folder removed.
pub struct Cluster {
    pub port: u16,
    pub pid: u32,
    child: Child,
    folder: TempDir,
}

impl Cluster {
    pub async fn start() -> Result<Cluster> {
        let programs = programs()?;
        let account = Account::choose()?;
        let folder = tempfile::Builder::new().prefix("queen-bench-").tempdir()?;
        // The account must be able to enter this folder to reach its own.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let data = data_folder(&folder);
        fs::create_dir(&data)?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        account.own(&data)?;

        let mut initdb = account.command(&programs.join("initdb"), &data);
        initdb.arg("-D").arg(&data).args(["-U", OBSERVER, "-E", "UTF8", "--locale", "C.UTF-8"]);
        initdb.args(["--auth", "trust", "--no-sync", "--no-instructions"]);
        run(initdb).await.context("initdb")?;

        let port = free_port()?;
        let log = File::create(folder.path().join("postgres.log"))?;
        let mut postgres = account.command(&programs.join("postgres"), &data);
        postgres.arg("-D").arg(&data).arg("-p").arg(port.to_string());
        for (name, value) in SETTINGS {
            postgres.arg("-c").arg(format!("{name}={value}"));
        }
        // In its own process group: Ctrl-C in a terminal goes to us, and we stop it in order.
        postgres.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = postgres.spawn().context("cannot start postgres")?;
        let pid = child.id().context("postgres exited at once")?;
        let mut cluster = Cluster { port, pid, child, folder };
        let session = cluster.ready().await?;
        session.create_database(BROKER).await?;
        Ok(cluster)
    }

    /// As the observer, in a database other than the broker's.
    pub async fn session(&self) -> Result<Session> {
        Session::open(self.port, OBSERVER).await
    }

    /// The broker's database, as the broker sees it.
    pub fn broker_database(&self) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user(BROKER).password(BROKER).dbname(BROKER);
        config
    }

    /// Environment variables with which a broker finds its database.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let mut variables = vec![("PG_HOST", "127.0.0.1".to_owned()), ("PG_PORT", self.port.to_string())];
        // Brokers use different variables for the database's name.
        let names = ["PG_USER", "PG_PASSWORD", "PG_DB", "PG_DATABASE"];
        variables.extend(names.map(|name| (name, BROKER.to_owned())));
        variables
    }

    /// Where a broker may write its log.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn ready(&mut self) -> Result<Session> {
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                let log = fs::read_to_string(self.folder.path().join("postgres.log")).unwrap_or_default();
                bail!("postgres exited during startup, {status}: {}", log.trim());
            }
            match self.session().await {
                Ok(session) => return Ok(session),
                Err(error) if Instant::now() > deadline => return Err(error.context("postgres is not ready")),
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }
}

impl Drop for Cluster {
    /// A fast shutdown. Drop cannot await, and the folder is about to be removed.
    fn drop(&mut self) {
        if let Some(pid) = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
            // It may have exited already.
            let _ = kill_process(pid, Signal::INT);
            let deadline = Instant::now() + STOP_TIMEOUT;
            while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(POLL);
            }
        }
    }
}

/// Free a moment ago, which is the best one can know.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn data_folder(folder: &TempDir) -> PathBuf {
    folder.path().join("data")
}

/// The folder of `initdb` and `postgres`: from the PATH, otherwise Debian's newest.
pub fn programs() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places: Vec<PathBuf> = std::env::split_paths(&path).collect();
    places.extend(newest_first("/usr/lib/postgresql").into_iter().map(|version| version.join("bin")));
    let complete = |place: &PathBuf| ["initdb", "postgres"].iter().all(|name| place.join(name).is_file());
    places.into_iter().find(complete).context("PostgreSQL is not installed: no initdb and postgres found")
}

fn newest_first(parent: &str) -> Vec<PathBuf> {
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let mut versions: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| number(path).is_some()).collect();
    versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
    versions
}

async fn run(mut command: Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().await?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

//! A PostgreSQL that can be killed, stopped, started again and promoted.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio_postgres::Config;

use crate::direct::Link;
use crate::environment::{Account, free_port, programs};

/// Superuser, for us.
const OBSERVER: &str = "postgres";
/// Role and database of the brokers.
pub const BROKER: &str = "queen";
const START_PATIENCE: Duration = Duration::from_secs(60);
const STOP_PATIENCE: Duration = Duration::from_secs(20);
const POLL: Duration = Duration::from_millis(20);

/// Few connections, so that they can be used up. As durable as by default.
const SETTINGS: [&str; 9] = [
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=50",
    "shared_buffers=64MB",
    "min_wal_size=32MB",
    "max_wal_size=256MB",
    "fsync=on",
    "synchronous_commit=on",
    "wal_level=replica",
];

pub struct Postgres {
    pub port: u16,
    folder: PathBuf,
    data: PathBuf,
    settings: Vec<String>,
    account: Account,
    programs: PathBuf,
    child: Option<Child>,
}

impl Postgres {
    /// A new cluster in `data`, whose parent exists. It is not started.
    pub async fn create(folder: &Path, data: PathBuf) -> Result<Postgres> {
        let postgres = Postgres::at(folder, data)?;
        let mut initdb = postgres.command("initdb");
        initdb.arg("-D").arg(&postgres.data).args(["-U", OBSERVER, "-E", "UTF8", "--locale", "C.UTF-8"]);
        initdb.args(["--auth", "trust", "--no-sync", "--no-instructions"]);
        run(initdb).await.context("initdb")?;
        Ok(postgres)
    }

    /// A standby of the server behind this port, made from a copy of it. It is not started.
    pub async fn standby(folder: &Path, data: PathBuf, primary_port: u16, name: &str) -> Result<Postgres> {
        let standby = Postgres::at(folder, data)?;
        let mut copy = standby.command("pg_basebackup");
        let source = format!("host=127.0.0.1 port={primary_port} user={OBSERVER} application_name={name}");
        copy.arg("-D").arg(&standby.data).args([
            "-d",
            &source,
            "-R",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
        ]);
        run(copy).await.context("pg_basebackup")?;
        Ok(standby)
    }

    fn at(folder: &Path, data: PathBuf) -> Result<Postgres> {
        let account = Account::choose()?;
        fs::create_dir(&data)?;
        fs::set_permissions(&data, fs::Permissions::from_mode(0o700))?;
        account.own(&data)?;
        let settings = SETTINGS.map(str::to_owned).to_vec();
        // Links to some of its programs may be on the PATH; the others are where these lead to.
        let server = programs()?.join("postgres").canonicalize()?;
        let programs = server.parent().context("postgres is in no folder")?.to_owned();
        Ok(Postgres {
            port: free_port()?,
            folder: folder.to_owned(),
            data,
            settings,
            account,
            programs,
            child: None,
        })
    }

    fn command(&self, program: &str) -> Command {
        self.account.command(&self.programs.join(program), &self.data)
    }

    pub async fn start(&mut self) -> Result<()> {
        self.spawn()?;
        self.ready().await
    }

    fn spawn(&mut self) -> Result<()> {
        let log = self.folder.join(format!("postgres-{}.log", self.port));
        let log = File::options().create(true).append(true).open(log)?;
        let mut postgres = self.command("postgres");
        postgres.arg("-D").arg(&self.data).args(["-p", &self.port.to_string()]);
        for setting in &self.settings {
            postgres.args(["-c", setting]);
        }
        // In a group of its own: Ctrl-C in a terminal is for us.
        postgres.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(postgres.spawn().context("cannot start postgres")?);
        Ok(())
    }

    async fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            if !self.is_running() {
                bail!("postgres ended while starting; see its log in {}", self.folder.display());
            }
            match self.session().await {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => return Err(error.context("postgres is not ready")),
                Err(_) => tokio::time::sleep(POLL).await,
            }
        }
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    pub async fn create_database(&self) -> Result<()> {
        let session = self.session().await?;
        session.client.batch_execute(&format!("create role {BROKER} login")).await?;
        session.client.batch_execute(&format!("create database {BROKER} owner {BROKER}")).await?;
        Ok(())
    }

    /// As superuser, beside the brokers' database and not in it.
    pub async fn session(&self) -> Result<Link> {
        Link::open(&self.config(OBSERVER, OBSERVER)).await
    }

    /// As superuser, in the brokers' database.
    pub async fn inside(&self) -> Result<Link> {
        Link::open(&self.config(OBSERVER, BROKER)).await
    }

    /// As a broker would.
    pub async fn as_broker(&self) -> Result<Link> {
        Link::open(&self.config(BROKER, BROKER)).await
    }

    fn config(&self, user: &str, database: &str) -> Config {
        let mut config = Config::new();
        config.host("127.0.0.1").port(self.port).user(user).dbname(database);
        config.connect_timeout(Duration::from_secs(2));
        config
    }

    /// Immediate shutdown: no checkpoint, so the next start has to recover.
    pub async fn crash(&mut self) -> Result<()> {
        self.signal(Signal::QUIT);
        self.gone().await
    }

    /// The postmaster and all its processes at once, as when the power fails.
    pub async fn kill(&mut self) -> Result<()> {
        self.signal_all(Signal::KILL);
        self.gone().await
    }

    async fn gone(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            tokio::time::timeout(STOP_PATIENCE, child.wait()).await.context("postgres does not end")??;
        }
        Ok(())
    }

    pub async fn promote(&self) -> Result<()> {
        let session = self.session().await?;
        session.client.batch_execute("select pg_promote(true, 30)").await.context("cannot promote")
    }

    /// To the postmaster and every process of it that there is now.
    pub fn signal_all(&self, signal: Signal) {
        let Some(postmaster) = self.pid() else { return };
        // First, so that it starts no others.
        self.signal(signal);
        for pid in children(postmaster) {
            send(pid, signal);
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.pid() {
            send(pid, signal);
        }
    }

    fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.signal_all(Signal::KILL);
        let deadline = Instant::now() + STOP_PATIENCE;
        while self.is_running() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }
}

/// It may just have ended by itself.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal);
    }
}

fn children(parent: u32) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name before it is in brackets and may hold anything.
        let fields = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default();
        fields.split(' ').nth(1).is_some_and(|ppid| ppid == parent.to_string())
    })
    .collect()
}

async fn run(mut command: Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().await?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

//! A PostgreSQL that can be killed, stopped, restarted and promoted.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};
use tokio_postgres::Config;

use super::clock::Clock;
use crate::direct::Link;
use crate::environment::{Account, free_port, programs};

/// Our superuser.
const OBSERVER: &str = "postgres";
/// Role and database of the brokers.
pub const BROKER: &str = "queen";
const START_PATIENCE: Duration = Duration::from_secs(60);
const STOP_PATIENCE: Duration = Duration::from_secs(20);
/// How long to wait until a stopped process has noticed.
const FREEZE_PATIENCE: Duration = Duration::from_secs(1);
const POLL: Duration = Duration::from_millis(20);

/// Few connections, so that they can be used up. Durability as by default.
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
    pub clock: Clock,
    folder: PathBuf,
    data: PathBuf,
    settings: Vec<String>,
    account: Account,
    programs: PathBuf,
    child: Option<Child>,
    /// Processes of a postmaster that ended: they may outlive it briefly.
    orphans: Vec<Process>,
}

impl Postgres {
    /// A new cluster in `data`, whose parent exists. Not started yet.
    pub async fn create(folder: &Path, data: PathBuf) -> Result<Postgres> {
        let postgres = Postgres::at(folder, data)?;
        let mut initdb = postgres.command("initdb");
        initdb.arg("-D").arg(&postgres.data).args(["-U", OBSERVER, "-E", "UTF8", "--locale", "C.UTF-8"]);
        initdb.args(["--auth", "trust", "--no-sync", "--no-instructions"]);
        run(initdb).await.context("initdb")?;
        Ok(postgres)
    }

    /// A standby of the server behind this port, made from a copy of it. Not started yet.
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
        // The PATH may contain only links to some of the programs. The folder that a link leads to has all of them.
        let server = programs()?.join("postgres").canonicalize()?;
        let programs = server.parent().context("postgres is in no folder")?.to_owned();
        let port = free_port()?;
        Ok(Postgres {
            port,
            clock: Clock::new(folder.join(format!("clock-postgres-{port}")))?,
            folder: folder.to_owned(),
            data,
            settings,
            account,
            programs,
            child: None,
            orphans: Vec::new(),
        })
    }

    fn command(&self, program: &str) -> Command {
        self.account.command(&self.programs.join(program), &self.data)
    }

    pub async fn start(&mut self) -> Result<()> {
        self.orphans_gone().await?;
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
        self.clock.preload(&mut postgres);
        // In its own process group: Ctrl-C in a terminal goes to us.
        postgres.process_group(0).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.child = Some(postgres.spawn().context("cannot start postgres")?);
        Ok(())
    }

    async fn ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            if !self.is_running() {
                bail!("postgres exited during startup; see its log in {}", self.folder.display());
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

    /// As superuser, in a database other than the brokers'.
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
        self.orphans = self.pid().map(children).unwrap_or_default();
        self.signal(Signal::QUIT);
        self.gone().await
    }

    /// Kills the postmaster and all its processes at once, as in a power failure.
    pub async fn kill(&mut self) -> Result<()> {
        self.orphans = self.signal_all(Signal::KILL);
        self.gone().await
    }

    async fn gone(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            tokio::time::timeout(STOP_PATIENCE, child.wait()).await.context("postgres does not end")??;
        }
        self.orphans_gone().await
    }

    /// A new postmaster refuses to start while one of them still has the shared memory.
    async fn orphans_gone(&mut self) -> Result<()> {
        let deadline = Instant::now() + STOP_PATIENCE;
        while self.orphans.iter().any(Process::is_alive) {
            if Instant::now() > deadline {
                bail!("processes of postgres outlive their postmaster: {:?}", self.orphans);
            }
            tokio::time::sleep(POLL).await;
        }
        self.orphans.clear();
        Ok(())
    }

    pub async fn promote(&self) -> Result<()> {
        let session = self.session().await?;
        session.client.batch_execute("select pg_promote(true, 30)").await.context("cannot promote")
    }

    /// Signals the postmaster and all its processes. Returns these.
    pub fn signal_all(&self, signal: Signal) -> Vec<Process> {
        let Some(postmaster) = self.pid() else { return Vec::new() };
        // Stopped first, so that it starts no others; and signaled last, because its processes are identified by it.
        send(postmaster, Signal::STOP);
        let deadline = Instant::now() + FREEZE_PATIENCE;
        while Stat::of(postmaster).is_some_and(|stat| stat.runs()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let children = children(postmaster);
        for child in &children {
            send(child.pid, signal);
        }
        send(postmaster, signal);
        children
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

/// It may have exited already.
pub fn send(pid: u32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid.cast_signed()) {
        let _ = kill_process(pid, signal);
    }
}

/// One process. A later process with the same pid is a different one.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    started: u64,
}

impl Process {
    /// A process that has exited and was not reaped holds nothing anymore.
    fn is_alive(&self) -> bool {
        Stat::of(self.pid).is_some_and(|stat| stat.started == self.started && !stat.has_ended())
    }
}

/// What the kernel reports about a process.
struct Stat {
    state: char,
    parent: u32,
    started: u64,
}

impl Stat {
    fn of(pid: u32) -> Option<Stat> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name before it is in parentheses and may contain anything.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let state = fields.first()?.chars().next()?;
        Some(Stat { state, parent: fields.get(1)?.parse().ok()?, started: fields.get(19)?.parse().ok()? })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    fn runs(&self) -> bool {
        !self.has_ended() && self.state != 'T'
    }
}

fn children(parent: u32) -> Vec<Process> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| Some((pid, Stat::of(pid)?)))
        .filter(|(_, stat)| stat.parent == parent)
        .map(|(pid, stat)| Process { pid, started: stat.started })
        .collect()
}

async fn run(mut command: Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().await?;
    if !output.status.success() {
        bail!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_pause_and_a_kill_spare_no_process_and_it_starts_again() -> Result<()> {
        let folder = tempfile::tempdir()?;
        // PostgreSQL runs as another user if we are root.
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))?;
        let mut postgres = Postgres::create(folder.path(), folder.path().join("data")).await?;
        postgres.start().await?;
        let mut sessions = Vec::new();
        for _ in 0..10 {
            sessions.push(postgres.session().await?);
        }
        let stopped = postgres.signal_all(Signal::STOP);
        assert!(stopped.len() > sessions.len(), "{stopped:?}");
        let deadline = Instant::now() + FREEZE_PATIENCE;
        while stopped.iter().any(|one| Stat::of(one.pid).is_some_and(|stat| stat.runs())) {
            assert!(Instant::now() < deadline, "{stopped:?}");
            tokio::time::sleep(POLL).await;
        }
        postgres.signal_all(Signal::CONT);
        sessions.push(postgres.session().await?);

        // A stopped process does not notice by itself that the postmaster is gone.
        let processes = postgres.signal_all(Signal::STOP);
        postgres.kill().await?;
        let left: Vec<&Process> = processes.iter().filter(|one| one.is_alive()).collect();
        left.iter().for_each(|one| send(one.pid, Signal::KILL));
        assert!(processes.len() > sessions.len() && left.is_empty(), "{left:?} of {processes:?}");
        postgres.start().await
    }
}

//! A broker that can be killed, stopped and restarted: on the same port, with the same spool, with a clock that jumps.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use tokio::process::{Child, Command};

use super::clock::Clock;
use super::postgres::send;
use crate::client::{Client, Target};
use crate::environment::free_port;

/// The database may be unavailable for a while.
const START_PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);

pub struct Broker {
    pub port: u16,
    program: PathBuf,
    database: String,
    spool: PathBuf,
    log: PathBuf,
    clock: Clock,
    child: Option<Child>,
}

impl Broker {
    /// Not started yet. `disk` is where its spool goes.
    pub fn new(
        program: &Path,
        number: usize,
        database: String,
        folder: &Path,
        disk: &Path,
    ) -> Result<Broker> {
        Ok(Broker {
            port: free_port()?,
            program: program.to_owned(),
            database,
            spool: disk.join(format!("spool-{number}")),
            log: folder.join(format!("broker-{number}.log")),
            clock: Clock::new(folder.join(format!("clock-{number}")))?,
            child: None,
        })
    }

    /// Returns when the broker is healthy. If it finds no database it exits, and another one is started.
    pub async fn start(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_PATIENCE;
        let mut client = Client::new(Target::from_url(&format!("http://127.0.0.1:{}", self.port))?);
        client.answer_timeout = Duration::from_secs(2);
        loop {
            if Instant::now() > deadline {
                bail!("broker on port {} does not start; see {}", self.port, self.log.display());
            }
            if !self.is_running() {
                self.spawn()?;
            }
            if client.get("/health").await.is_ok_and(|reply| reply.status == 200) {
                return Ok(());
            }
            tokio::time::sleep(POLL).await;
        }
    }

    fn spawn(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command = Command::new(&self.program);
        command
            .arg("serve")
            .env("DATABASE_URL", &self.database)
            .env("PORT", self.port.to_string())
            .envs([("HOST", "127.0.0.1"), ("LOG_LEVEL", "info")])
            .env("FILE_BUFFER_DIR", &self.spool)
            // Small enough to fill up within seconds without a database, large enough for a large request.
            .env("FILE_BUFFER_MAX_BYTES", "2MiB")
            .env("RETENTION_INTERVAL", "1000")
            .envs([("SIDECAR_POOL_SIZE", "8"), ("DB_STATEMENT_TIMEOUT", "2s"), ("DB_LOCK_TIMEOUT", "1500ms")])
            // Work of a broker that died is taken over within the run.
            .env("OPQ_TIMEOUT_SECONDS", "5")
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true);
        self.clock.preload(&mut command);
        let child = command.spawn().with_context(|| format!("cannot start {}", self.program.display()))?;
        self.child = Some(child);
        Ok(())
    }

    /// Stops it like an operator would, and starts another program in its place.
    pub async fn replace(&mut self, program: &Path) -> Result<()> {
        self.signal(Signal::TERM);
        if let Some(mut child) = self.child.take() {
            let status =
                tokio::time::timeout(START_PATIENCE, child.wait()).await.context("it does not stop")??;
            if !status.success() {
                bail!("the broker on port {} stopped with {status}", self.port);
            }
        }
        self.program = program.to_owned();
        self.start().await
    }

    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Returns when it is gone.
    pub async fn kill(&mut self) -> Result<()> {
        if let Some(mut child) = self.child.take() {
            child.kill().await?;
        }
        Ok(())
    }

    pub fn signal(&self, signal: Signal) {
        if let Some(pid) = self.child.as_ref().and_then(Child::id) {
            send(pid, signal);
        }
    }

    /// Sets its wall clock this many seconds ahead.
    pub fn jump(&self, seconds: i32) -> Result<()> {
        self.clock.set(seconds)
    }

    pub fn can_jump(&self) -> bool {
        self.clock.is_available()
    }
}

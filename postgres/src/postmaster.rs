//! One server process, from launch to exit. Restarting it is the supervisor's task.

use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::net::UnixStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

use crate::connection::Connection;
use crate::error::Error;
use crate::log::Log;
use crate::pidfile;

/// Recovery replays at most about `max_wal_size`, which takes a slow disk well under this.
const READY_PATIENCE: Duration = Duration::from_secs(300);
const READY_POLL: Duration = Duration::from_millis(20);
const PROGRESS_EVERY: Duration = Duration::from_secs(10);
const FAST_PATIENCE: Duration = Duration::from_secs(30);
/// The postmaster itself kills sessions that ignore an immediate shutdown for 5 s.
const IMMEDIATE_PATIENCE: Duration = Duration::from_secs(10);

/// A running server. Dropping it asks the server to shut down but does not wait.
#[derive(Debug)]
pub struct Postmaster {
    child: Child,
}

impl Postmaster {
    pub(crate) fn spawn(mut command: Command, program: &Path) -> Result<Self, Error> {
        // In its own process group, so that Ctrl-C in a terminal reaches us and not the server: it must stay until the last operation
        // is stored.
        let child = command.process_group(0).spawn().map_err(Error::io("run", program))?;
        Ok(Self { child })
    }

    /// Waits until connections are accepted. Recovery after a crash may take long.
    pub(crate) async fn ready(
        &mut self,
        cluster: &Path,
        connection: &Connection,
        log: &Log,
    ) -> Result<(), Error> {
        let began = Instant::now();
        let mut progress = began + PROGRESS_EVERY;
        while began.elapsed() < READY_PATIENCE {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(Error::Exited {
                    status: status.to_string(),
                    log: log.path.clone(),
                    output: log.tail(),
                });
            }
            let file = pidfile::read(cluster)?.filter(|file| file.ready && Some(file.pid) == self.process());
            if file.is_some() && UnixStream::connect(connection.socket()).await.is_ok() {
                return Ok(());
            }
            if Instant::now() > progress {
                progress += PROGRESS_EVERY;
                info!(
                    waited_s = began.elapsed().as_secs(),
                    "postgres is not ready yet; it may be in recovery"
                );
            }
            sleep(READY_POLL).await;
        }
        Err(Error::NotReady { seconds: READY_PATIENCE.as_secs(), log: log.path.clone() })
    }

    /// `None` once it has been waited for.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// # Cancel safety
    /// May be canceled and called again.
    pub async fn wait(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Shuts down with increasing force. Returns when the process is gone.
    pub async fn stop(mut self) {
        for (signal, patience) in [(Signal::INT, FAST_PATIENCE), (Signal::QUIT, IMMEDIATE_PATIENCE)] {
            self.signal(signal);
            if timeout(patience, self.child.wait()).await.is_ok() {
                return;
            }
            warn!(?signal, waited_s = patience.as_secs(), "postgres has not stopped");
        }
        let _ = self.child.kill().await;
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = self.process() {
            let _ = kill_process(pid, signal);
        }
    }

    fn process(&self) -> Option<Pid> {
        self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()))
    }
}

impl Drop for Postmaster {
    fn drop(&mut self) {
        self.signal(Signal::INT);
    }
}

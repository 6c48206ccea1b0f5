//! Keeps a server running until it is stopped. Decides when to restart it; `cluster.rs` knows how.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tracing::{error, info, warn};

use crate::cluster::Cluster;
use crate::error::Error;
use crate::postmaster::Postmaster;

const DELAY_MIN: Duration = Duration::from_millis(100);
const DELAY_MAX: Duration = Duration::from_secs(5);
/// A server that ran this long was healthy, so after its next exit it is restarted without delay.
const STEADY: Duration = Duration::from_secs(60);

/// The handle of the supervising task. When it is dropped, the task stops the server and ends.
#[derive(Debug)]
pub struct Supervisor {
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Supervisor {
    #[expect(clippy::disallowed_methods, reason = "the only task of this crate; `stop` waits for it")]
    pub fn watch(cluster: Cluster, postmaster: Postmaster) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop, task: tokio::spawn(watch(cluster, postmaster, stopped)) }
    }

    pub async fn stop(self) {
        let _ = self.stop.send(());
        let _ = self.task.await;
    }
}

/// Owns the cluster, and so the data folder's lock, until the server's process is gone.
async fn watch(cluster: Cluster, mut postmaster: Postmaster, mut stop: oneshot::Receiver<()>) {
    let mut delay = DELAY_MIN;
    loop {
        let began = Instant::now();
        tokio::select! {
            _ = &mut stop => return postmaster.stop().await,
            status = postmaster.wait() => {
                let status = status.map_or_else(|error| error.to_string(), |status| status.to_string());
                warn!(%status, "postgres exited unexpectedly; restarting it");
            }
        }
        if began.elapsed() > STEADY {
            delay = DELAY_MIN;
        }
        postmaster = loop {
            let started = tokio::select! {
                _ = &mut stop => return end_leftover(&cluster).await,
                started = launch_after(delay, &cluster) => started,
            };
            delay = (delay * 2).min(DELAY_MAX);
            match started {
                Ok(postmaster) => break postmaster,
                Err(error) => error!(%error, retry_ms = delay.as_millis(), "cannot start postgres"),
            }
        };
        info!("postgres is running again");
    }
}

async fn launch_after(delay: Duration, cluster: &Cluster) -> Result<Postmaster, Error> {
    sleep(delay).await;
    cluster.launch().await
}

/// A canceled launch may have left a server running.
async fn end_leftover(cluster: &Cluster) {
    if let Err(error) = cluster.end_leftover().await {
        warn!(%error, "cannot stop postgres; it may still be running");
    }
}

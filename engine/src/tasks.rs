//! The only place that spawns tasks: every task of the engine is counted, and told when to stop.

use std::future::Future;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::db::Connections;

#[derive(Clone, Default)]
pub struct Tasks {
    /// Flights and loops.
    work: TaskTracker,
    /// Connection drivers: they end when their connections are dropped, so they are waited for last.
    drivers: TaskTracker,
    /// Canceled when pops must not wait any longer.
    draining: CancellationToken,
    /// Canceled when the engine stops.
    stopping: CancellationToken,
}

impl Tasks {
    /// Runs the task to its end, even while the engine stops, so that flights land.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.work.spawn(task);
    }

    /// Drops the task at its next await once the engine stops: for loops that hold nothing.
    pub fn spawn_until_stop(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stopping = self.stopping.clone();
        self.work.spawn(async move {
            tokio::select! {
                () = stopping.cancelled() => {}
                () = task => {}
            }
        });
    }

    pub fn spawn_driver(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.drivers.spawn(task);
    }

    pub async fn stopping(&self) {
        self.stopping.cancelled().await;
    }

    pub fn is_stopping(&self) -> bool {
        self.stopping.is_cancelled()
    }

    /// How many flights and loops are running.
    pub fn len(&self) -> usize {
        self.work.len()
    }

    pub fn drain(&self) {
        self.draining.cancel();
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Waits for everything that is still running, then closes the connections.
    pub async fn stop(&self, connections: &[&Connections]) {
        self.draining.cancel();
        self.stopping.cancel();
        self.work.close();
        self.work.wait().await;
        connections.iter().for_each(|connections| connections.close());
        self.drivers.close();
        self.drivers.wait().await;
    }
}

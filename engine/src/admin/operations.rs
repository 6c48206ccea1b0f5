//! Deferred operations: listing, canceling and retrying them.

use queen_protocol::{OperationStats, OperationStatus, SystemHealth};
use uuid::Uuid;

use crate::Engine;
use crate::db::control::{self, Operations};
use crate::error::Error;
use crate::load::{KINDS, LoadCounts};

impl Engine {
    /// Oldest first.
    pub async fn operations(&self, filter: &Operations<'_>) -> Result<Vec<OperationStatus>, Error> {
        Ok(control::operations(&self.shared.reads, filter).await?)
    }

    pub async fn operation(&self, id: Uuid) -> Result<Option<OperationStatus>, Error> {
        let ask = Operations { id: Some(id), limit: 1, ..Operations::default() };
        Ok(self.operations(&ask).await?.pop())
    }

    pub async fn operations_stats(&self) -> Result<(Vec<OperationStats>, SystemHealth), Error> {
        let stats = control::operations_stats(&self.shared.reads).await?;
        self.shared.load.feel(&control::pulse(&self.shared.reads).await?);
        Ok((stats, self.system_health()))
    }

    /// As far as it is known without asking the database.
    pub fn system_health(&self) -> SystemHealth {
        let (connections, load) = (&self.shared.connections, &self.shared.load);
        SystemHealth {
            pool_utilization: connections.busy() as f64 / connections.size() as f64,
            pool_waiting: connections.waiting(),
            queue_depth: load.depth(),
            drain_rate: load.drain_rate(),
            oldest_age_seconds: load.oldest_age().as_secs_f64(),
        }
    }

    /// How pushes and acks were answered so far.
    pub fn load_counts(&self) -> [(&'static str, LoadCounts); 2] {
        KINDS.map(|kind| (kind.word(), self.shared.load.counts(kind)))
    }

    /// Returns the current status: `cancelled` if it was pending or had failed.
    pub async fn cancel_operation(&self, id: Uuid) -> Result<Option<String>, Error> {
        Ok(control::cancel_operation(&self.shared.connections, id).await?)
    }

    /// Returns the current status: `pending` if it had failed.
    pub async fn retry_operation(&self, id: Uuid) -> Result<Option<String>, Error> {
        let status = control::retry_operation(&self.shared.connections, id).await?;
        self.shared.load.signal.notify_one();
        Ok(status)
    }
}

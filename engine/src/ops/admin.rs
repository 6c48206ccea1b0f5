//! The control plane of the message plane: queues and groups. Each call tells all brokers what it changed.

use queen_protocol::{Configure, QueueOptions};
use uuid::Uuid;

use crate::Engine;
use crate::db::control::{self, SeekForecast};
use crate::error::Error;
use crate::jobs::wake;

#[derive(Debug)]
pub struct Configured {
    pub queue_id: Uuid,
    pub queue: String,
    pub namespace: String,
    pub task: String,
    pub options: QueueOptions,
}

#[derive(Debug, Clone, Copy)]
pub enum SeekTo {
    End,
    /// Microseconds since 1970.
    Time(i64),
}

impl SeekTo {
    /// `None` = to the end.
    pub(super) fn time(self) -> Option<i64> {
        match self {
            Self::End => None,
            Self::Time(micros) => Some(micros),
        }
    }
}

impl Engine {
    pub async fn configure(&self, configure: &Configure) -> Result<Configured, Error> {
        let shared = &self.shared;
        let note = shared.wake.reset_note(&configure.queue);
        let configured = control::configure(&shared.connections, configure, &note).await?;
        wake::forget(shared, Some(&configure.queue), None);
        Ok(Configured {
            queue_id: configured.id,
            queue: configure.queue.clone(),
            namespace: configured.namespace,
            task: configured.task,
            options: configured.options,
        })
    }

    /// Whether the queue existed.
    pub async fn delete_queue(&self, queue: &str) -> Result<bool, Error> {
        let existed = control::delete_queue(&self.shared.connections, queue).await?;
        self.shared.wake.deleted(&self.shared, queue);
        Ok(existed)
    }

    /// How many partition cursors went. `queue`: `None` = everywhere.
    pub async fn delete_group(&self, group: &str, queue: Option<&str>, metadata: bool) -> Result<i64, Error> {
        let deleted = control::delete_group(&self.shared.connections, group, queue, metadata).await?;
        self.shared.wake.reset(&self.shared, queue, Some(group));
        Ok(deleted)
    }

    /// How many registrations were moved to the new time (microseconds since 1970).
    pub async fn set_subscription(&self, group: &str, since: i64) -> Result<i64, Error> {
        let updated = control::set_subscription(&self.shared.connections, group, since).await?;
        self.shared.wake.reset(&self.shared, None, Some(group));
        Ok(updated)
    }

    /// How many partitions were moved.
    pub async fn seek(&self, group: &str, queue: &str, to: SeekTo) -> Result<i64, Error> {
        let moved = control::seek(&self.shared.connections, group, queue, None, to.time()).await?;
        self.shared.wake.reset(&self.shared, Some(queue), Some(group));
        Ok(moved)
    }

    /// What a seek would do, in all partitions of the queue or in one. Moves nothing.
    pub async fn seek_forecast(
        &self,
        group: &str,
        queue: &str,
        partition: Option<&str>,
        to: SeekTo,
    ) -> Result<SeekForecast, Error> {
        // Where a group reads at all is known from the counts.
        self.freshen(Some(queue)).await?;
        let connections = &self.shared.connections;
        Ok(control::seek_forecast(connections, group, queue, partition, to.time()).await?)
    }
}

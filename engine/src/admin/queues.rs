//! The control plane of the message plane: queues and groups. Each call notifies all brokers of what it changed.

use queen_protocol::{Configure, QueueOptions};
use uuid::Uuid;

use crate::Engine;
use crate::db::control::{self, DeletedGroup, QueueLabels, SeekForecast};
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

/// Where a group is moved, and whether it is created if it does not read the queue yet.
#[derive(Debug, Clone, Copy)]
pub struct Seek {
    pub to: SeekTo,
    pub create: bool,
}

impl From<SeekTo> for Seek {
    fn from(to: SeekTo) -> Self {
        Self { to, create: false }
    }
}

impl SeekTo {
    /// `None`: to the end.
    pub(super) fn time(self) -> Option<i64> {
        match self {
            Self::End => None,
            Self::Time(micros) => Some(micros),
        }
    }
}

/// The broker acts on each change twice: after the commit, so that the caller's next request sees it, and when it
/// hears the note that is part of the commit, in case the response was lost.
impl Engine {
    pub async fn configure(&self, configure: &Configure) -> Result<Configured, Error> {
        let config = &self.shared.config;
        let encrypts = configure.changes.get("encryptionEnabled") == Some(&true.into());
        if encrypts && config.encryption_required && !config.keys.can_seal() {
            return Err(Error::KeyRequired(configure.queue.clone()));
        }
        let (engine, configure) = (self.clone(), configure.clone());
        self.to_its_end(async move {
            let shared = &engine.shared;
            let note = shared.wake.reset_note(Some(&configure.queue), None);
            let limit = Error::QueueLimit(shared.config.queues_max);
            let configured =
                control::configure(&shared.connections, &configure, &note).await?.ok_or(limit)?;
            wake::forget(shared, Some(&configure.queue), None);
            Ok(Configured {
                queue_id: configured.id,
                queue: configure.queue,
                namespace: configured.namespace,
                task: configured.task,
                options: configured.options,
            })
        })
        .await
    }

    /// The queues with one of these names or labels.
    pub async fn queues_labelled(
        &self,
        names: &[&str],
        namespaces: &[&str],
        tasks: &[&str],
    ) -> Result<Vec<QueueLabels>, Error> {
        Ok(control::queues_labelled(&self.shared.connections, names, namespaces, tasks).await?)
    }

    /// Whether the queue existed.
    pub async fn delete_queue(&self, queue: &str) -> Result<bool, Error> {
        let (engine, queue) = (self.clone(), queue.to_owned());
        self.to_its_end(async move {
            let shared = &engine.shared;
            let note = shared.wake.deleted_note(&queue);
            let existed = control::delete_queue(&shared.connections, &queue, &note).await?;
            wake::drop_queue(shared, &queue);
            Ok(existed)
        })
        .await
    }

    /// `queue`: `None` for all queues. `metadata`: also delete where the group has registered to start.
    pub async fn delete_group(
        &self,
        group: &str,
        queue: Option<&str>,
        metadata: bool,
    ) -> Result<DeletedGroup, Error> {
        let (engine, group, queue) = (self.clone(), group.to_owned(), queue.map(str::to_owned));
        self.to_its_end(async move {
            let (shared, queue) = (&engine.shared, queue.as_deref());
            let note = shared.wake.reset_note(queue, Some(&group));
            let deleted = control::delete_group(&shared.connections, &group, queue, metadata, &note).await?;
            wake::forget(shared, queue, Some(&group));
            Ok(deleted)
        })
        .await
    }

    /// How many registrations were moved to the new time (microseconds since 1970).
    pub async fn set_subscription(&self, group: &str, since: i64) -> Result<i64, Error> {
        let (engine, group) = (self.clone(), group.to_owned());
        self.to_its_end(async move {
            let shared = &engine.shared;
            let note = shared.wake.reset_note(None, Some(&group));
            let updated = control::set_subscription(&shared.connections, &group, since, &note).await?;
            wake::forget(shared, None, Some(&group));
            Ok(updated)
        })
        .await
    }

    /// How many partitions were moved.
    pub async fn seek(&self, group: &str, queue: &str, seek: impl Into<Seek>) -> Result<i64, Error> {
        self.move_group(group, queue, None, seek.into()).await
    }

    pub(super) async fn move_group(
        &self,
        group: &str,
        queue: &str,
        partition: Option<&str>,
        Seek { to, create }: Seek,
    ) -> Result<i64, Error> {
        let (engine, group, queue) = (self.clone(), group.to_owned(), queue.to_owned());
        let partition = partition.map(str::to_owned);
        self.to_its_end(async move {
            let shared = &engine.shared;
            let note = shared.wake.reset_note(Some(&queue), Some(&group));
            let (connections, partition) = (&shared.connections, partition.as_deref());
            let moved =
                control::seek(connections, &group, &queue, partition, to.time(), create, &note).await?;
            let Some(moved) = moved else { return Err(no_group(&group, &queue, create)) };
            wake::forget(shared, Some(&queue), Some(&group));
            Ok(moved)
        })
        .await
    }

    /// What a seek would do, in all partitions of the queue or in one. Moves nothing.
    pub async fn seek_forecast(
        &self,
        group: &str,
        queue: &str,
        partition: Option<&str>,
        seek: impl Into<Seek>,
    ) -> Result<SeekForecast, Error> {
        let Seek { to, create } = seek.into();
        let connections = &self.shared.reads;
        let may = control::reads(connections, group, queue).await?
            || create && control::queue_exists(connections, queue).await?;
        if !may {
            return Err(no_group(group, queue, create));
        }
        // Where a group reads at all is known from the counts.
        self.freshen(Some(queue)).await?;
        Ok(control::seek_forecast(connections, group, queue, partition, to.time()).await?)
    }
}

/// `create`: the group would have been created, so it is the queue that is missing.
fn no_group(group: &str, queue: &str, create: bool) -> Error {
    match create {
        true => Error::QueueMissing(queue.to_owned()),
        false => Error::NoGroup { group: group.to_owned(), queue: queue.to_owned() },
    }
}

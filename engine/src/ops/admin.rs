//! The control plane of the message plane: queues, groups, dead letters. Each call tells all brokers what it
//! changed.

use queen_protocol::{Configure, QueueOptions};
use uuid::Uuid;

use super::messages::read;
use crate::Engine;
use crate::crypt::{Keys, Unreadable};
use crate::db::control::{self, DeadLetterRow, DeadLetters};
use crate::error::Error;
use crate::jobs::wake;
use crate::log::frames::{Frame, read_string};

#[derive(Debug)]
pub struct Configured {
    pub queue_id: Uuid,
    pub queue: String,
    pub namespace: String,
    pub task: String,
    pub options: QueueOptions,
}

#[derive(Debug, Clone, Default)]
pub struct DeadLetterFilter {
    pub queue: Option<String>,
    pub partition: Option<String>,
    pub group: Option<String>,
    /// Microseconds since 1970, on the time of failure.
    pub from: Option<i64>,
    pub to: Option<i64>,
    /// A part of the error, in any case.
    pub error: Option<String>,
    pub limit: i64,
    pub offset: i64,
}

#[derive(Debug)]
pub struct DeadLetter {
    pub id: Uuid,
    pub transaction_id: String,
    pub partition_id: Uuid,
    pub queue: String,
    pub partition: String,
    pub group: String,
    pub error: Option<String>,
    pub attempts: i32,
    /// The sender's JSON; null if it cannot be read.
    pub payload: String,
    pub unreadable: Option<Unreadable>,
    pub producer_sub: Option<String>,
    pub created_at: i64,
    pub failed_at: i64,
}

#[derive(Debug, Clone, Copy)]
pub enum SeekTo {
    End,
    /// Microseconds since 1970.
    Time(i64),
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

    /// One page, newest failure first, and the number of all that match.
    pub async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<(Vec<DeadLetter>, i64), Error> {
        let ask = DeadLetters {
            queue: filter.queue.as_deref(),
            partition: filter.partition.as_deref(),
            group: filter.group.as_deref(),
            from: filter.from,
            to: filter.to,
            error: filter.error.as_deref(),
        };
        let page = control::dead_letters(&self.shared.connections, &ask, filter.limit, filter.offset);
        let (rows, total) = page.await?;
        Ok((rows.into_iter().filter_map(|row| dead_letter(row, &self.shared.config.keys)).collect(), total))
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
        let time = match to {
            SeekTo::End => None,
            SeekTo::Time(micros) => Some(micros),
        };
        let moved = control::seek(&self.shared.connections, group, queue, None, time).await?;
        self.shared.wake.reset(&self.shared, Some(queue), Some(group));
        Ok(moved)
    }
}

fn dead_letter(row: DeadLetterRow, keys: &Keys) -> Option<DeadLetter> {
    let frame = Frame::parse(&row.frame)?;
    let (payload, unreadable) = read(&frame, keys);
    Some(DeadLetter {
        id: row.id,
        transaction_id: read_string(frame.transaction_id),
        partition_id: row.partition_id,
        queue: row.queue,
        partition: row.partition,
        group: row.group,
        error: row.error,
        attempts: row.attempts,
        payload,
        unreadable,
        producer_sub: frame.producer_sub.map(read_string),
        created_at: row.created_at,
        failed_at: row.failed_at,
    })
}

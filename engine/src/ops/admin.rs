//! The control plane of the message plane: queues, groups, dead letters. Rare calls, so each is a plain statement
//! on a borrowed connection, and tells all brokers what it changed.

use std::time::SystemTime;

use queen_protocol::{Configure, QueueOptions};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::Engine;
use crate::clock;
use crate::db::{Error as DbError, Priority};
use crate::error::Error;
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
    /// The sender's JSON.
    pub payload: String,
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
        let changes = serde_json::Value::Object(configure.changes.clone()).to_string();
        let sql = "select * from queen.configure($1, $2, $3, $4::text::jsonb, $5)";
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&configure.queue, &configure.namespace, &configure.task, &changes, &configure.replace];
        let row = self.one("queen.configure", sql, &parameters).await?;
        self.shared.wake.reset(&self.shared, Some(&configure.queue), None);
        Ok(Configured {
            queue_id: row.get("id"),
            queue: configure.queue.clone(),
            namespace: row.get("namespace"),
            task: row.get("task"),
            options: QueueOptions {
                lease_time: row.get("lease_time"),
                retry_limit: row.get("retry_limit"),
                retry_delay: row.get("retry_delay"),
                ttl: row.get("ttl"),
                max_size: row.get("max_size"),
                priority: row.get("priority"),
                delayed_processing: row.get("delayed_processing"),
                window_buffer: row.get("window_buffer"),
                dead_letter_queue: row.get("dead_letter_queue"),
                dlq_after_max_retries: row.get("dlq_after_max_retries"),
                retention_enabled: row.get("retention_enabled"),
                retention_seconds: row.get("retention_seconds"),
                completed_retention_seconds: row.get("completed_retention_seconds"),
                max_wait_time_seconds: row.get("max_wait_time_seconds"),
                encryption_enabled: row.get("encryption_enabled"),
                dedup_window_seconds: row.get("dedup_window_seconds"),
                min_pop_wait_time: row.get("min_pop_wait_time"),
            },
        })
    }

    /// Whether the queue existed.
    pub async fn delete_queue(&self, queue: &str) -> Result<bool, Error> {
        let row = self.one("queen.delete_queue", "select queen.delete_queue($1)", &[&queue]).await?;
        self.shared.wake.reset(&self.shared, Some(queue), None);
        Ok(row.get(0))
    }

    /// One page, newest failure first, and the number of all that match.
    pub async fn dead_letters(&self, filter: &DeadLetterFilter) -> Result<(Vec<DeadLetter>, i64), Error> {
        let (from, to) = (filter.from.map(clock::system_time), filter.to.map(clock::system_time));
        let filters: [&(dyn ToSql + Sync); 5] = [&filter.queue, &filter.partition, &filter.group, &from, &to];
        let sql = "select queen.dead_letters_count($1, $2, $3, $4, $5)";
        let total = self.one("queen.dead_letters_count", sql, &filters).await?.get(0);
        let sql = "select * from queen.dead_letters($1, $2, $3, $4, $5, $6, $7)";
        let mut parameters = filters.to_vec();
        parameters.extend([&filter.limit as &(dyn ToSql + Sync), &filter.offset]);
        let rows = self.many("queen.dead_letters", sql, &parameters).await?;
        Ok((rows.iter().filter_map(dead_letter).collect(), total))
    }

    /// How many partition cursors went. `queue`: `None` = everywhere.
    pub async fn delete_group(&self, group: &str, queue: Option<&str>, metadata: bool) -> Result<i64, Error> {
        let sql = "select queen.delete_group($1, $2, $3)";
        let row = self.one("queen.delete_group", sql, &[&group, &queue, &metadata]).await?;
        self.shared.wake.reset(&self.shared, queue, Some(group));
        Ok(row.get(0))
    }

    /// How many registrations were moved to the new time (microseconds since 1970).
    pub async fn set_subscription(&self, group: &str, since: i64) -> Result<i64, Error> {
        let since = clock::system_time(since);
        let sql = "select queen.set_subscription($1, $2)";
        let row = self.one("queen.set_subscription", sql, &[&group, &since]).await?;
        self.shared.wake.reset(&self.shared, None, Some(group));
        Ok(row.get(0))
    }

    /// How many partitions were moved.
    pub async fn seek(&self, group: &str, queue: &str, to: SeekTo) -> Result<i64, Error> {
        let (end, time): (bool, Option<SystemTime>) = match to {
            SeekTo::End => (true, None),
            SeekTo::Time(micros) => (false, Some(clock::system_time(micros))),
        };
        let sql = "select queen.seek($1, $2, $3, $4)";
        let row = self.one("queen.seek", sql, &[&group, &queue, &end, &time]).await?;
        self.shared.wake.reset(&self.shared, Some(queue), Some(group));
        Ok(row.get(0))
    }

    /// The queues a pop by label draws from, the more urgent first.
    pub(crate) async fn queues_matching(
        &self,
        namespace: Option<&str>,
        task: Option<&str>,
    ) -> Result<Vec<String>, Error> {
        let sql = "select * from queen.queues_matching($1, $2)";
        let rows = self.many("queen.queues_matching", sql, &[&namespace, &task]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    async fn one(
        &self,
        procedure: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, DbError> {
        let rows = self.many(procedure, sql, parameters).await?;
        rows.into_iter().next().ok_or_else(|| DbError::Lost(format!("{procedure} answered nothing")))
    }

    async fn many(
        &self,
        procedure: &'static str,
        sql: &str,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, DbError> {
        let db = self.shared.connections.acquire(Priority::Background).await?;
        db.within(procedure, db.client.query(sql, parameters)).await
    }
}

fn dead_letter(row: &Row) -> Option<DeadLetter> {
    let line: String = row.get("frame");
    let frame = Frame::parse(&line)?;
    Some(DeadLetter {
        id: row.get("id"),
        transaction_id: read_string(frame.transaction_id),
        partition_id: row.get("partition_id"),
        queue: row.get("queue_name"),
        partition: row.get("partition_name"),
        group: row.get("consumer_group"),
        error: row.get("error"),
        attempts: row.get("attempts"),
        payload: frame.payload.to_owned(),
        producer_sub: frame.producer_sub.map(read_string),
        created_at: clock::micros(row.get("created_at")),
        failed_at: clock::micros(row.get("failed_at")),
    })
}

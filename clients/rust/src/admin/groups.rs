//! Consumer groups: their positions, and moving them.

use std::collections::HashMap;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admin, Get, Health};
use crate::clock;
use crate::control::Control;
use crate::error::{Error, ErrorKind};
use crate::wire;

/// Where to move a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Position {
    /// To the oldest message.
    Beginning,
    /// To the end, so that only new messages are read.
    End,
    /// To the first message after this time.
    Time(SystemTime),
}

/// A group in one of the queues it reads.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct GroupSummary {
    /// Name of the group.
    pub name: String,
    /// Name of the queue.
    pub queue_name: String,
    /// Number of partitions in which it has a cursor.
    pub members: u64,
    /// Number of partitions in which it is behind.
    pub partitions_with_lag: u64,
    /// Unread messages.
    pub total_lag: Option<i64>,
    /// Age of the oldest unread message in seconds.
    pub max_time_lag: f64,
    /// `Stable`, `Lagging` or `Dead`.
    pub state: String,
    /// Where it started.
    pub subscription_mode: String,
}

/// A partition with messages that a group has not read.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LaggingPartition {
    /// The group.
    pub consumer_group: String,
    /// The queue.
    pub queue_name: String,
    /// The partition.
    pub partition_name: String,
    /// Id of the partition.
    pub partition_id: String,
    /// Unread messages.
    pub offset_lag: i64,
    /// Age of the oldest unread message.
    pub time_lag_seconds: f64,
}

/// A group in a queue.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct GroupInQueue {
    /// Its partitions.
    pub partitions: Vec<GroupInPartition>,
}

/// A group in a partition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct GroupInPartition {
    /// The partition.
    pub partition: String,
    /// When it last read.
    pub last_consumed_at: Option<String>,
    /// Messages read.
    pub total_consumed: i64,
    /// Unread messages.
    pub offset_lag: i64,
    /// Age of the oldest unread message.
    pub time_lag_seconds: f64,
    /// Whether a consumer of the group holds a lease.
    pub lease_active: bool,
}

/// The result of moving a group in a queue.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Sought {
    /// Number of partitions.
    pub partitions_updated: u64,
}

/// A preview of a seek.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct SeekForecast {
    /// Number of partitions.
    pub partitions_updated: u64,
    /// Messages that the group has read and would read again.
    pub messages_replayed: u64,
    /// Unread messages that the group would skip.
    pub messages_skipped: u64,
}

/// The result of moving a group in a partition.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct PartitionSought {
    /// Whether it moved.
    pub updated: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Deleted {
    deleted_partitions: u64,
}

impl Admin {
    /// Lists groups, one entry per group and queue.
    pub fn groups(&self) -> Get<Vec<GroupSummary>> {
        self.get("/api/v1/consumer-groups")
    }

    /// Shows a group's position in each queue.
    pub fn group(&self, name: &str) -> Get<HashMap<String, GroupInQueue>> {
        self.get(wire::path(&["/api/v1/consumer-groups/", name]))
    }

    /// Lists the partitions that have waited longest.
    pub fn lagging(&self) -> Get<Vec<LaggingPartition>> {
        self.get("/api/v1/consumer-groups/lagging")
    }

    /// Deletes a group in all queues. Returns the number of partitions.
    pub async fn delete_group(&self, group: &str) -> Result<u64, Error> {
        wire::check_name("the name of a consumer group", group)?;
        let path = wire::path(&["/api/v1/consumer-groups/", group]);
        let deleted: Deleted = self.ask(Control::delete(path).once()).await?;
        Ok(deleted.deleted_partitions)
    }

    /// Deletes a group in one queue. Returns the number of partitions.
    pub async fn delete_group_in(&self, group: &str, queue: &str) -> Result<u64, Error> {
        wire::check_name("the name of a consumer group", group)?;
        let path = wire::path(&["/api/v1/consumer-groups/", group, "/queues/", queue]);
        let deleted: Deleted = self.ask(Control::delete(path).once()).await?;
        Ok(deleted.deleted_partitions)
    }

    /// Moves a group in all partitions of a queue. Its leases there end. Fails if the group does not read the queue.
    pub async fn seek(&self, group: &str, queue: &str, to: Position) -> Result<Sought, Error> {
        self.ask(seeking(group, queue, &to.body())?.once()).await
    }

    /// Like [`Admin::seek`], but creates the group if it does not read the queue.
    pub async fn seek_or_create(&self, group: &str, queue: &str, to: Position) -> Result<Sought, Error> {
        let mut body = to.body();
        body["create"] = json!(true);
        self.ask(seeking(group, queue, &body)?.once()).await
    }

    /// Previews a seek. Moves nothing.
    pub async fn forecast_seek(&self, group: &str, queue: &str, to: Position) -> Result<SeekForecast, Error> {
        self.forecast(group, queue, to.body()).await
    }

    /// Previews [`seek_or_create`](Self::seek_or_create). Moves and creates nothing.
    pub async fn forecast_seek_or_create(
        &self,
        group: &str,
        queue: &str,
        to: Position,
    ) -> Result<SeekForecast, Error> {
        let mut body = to.body();
        body["create"] = json!(true);
        self.forecast(group, queue, body).await
    }

    async fn forecast(&self, group: &str, queue: &str, mut body: Value) -> Result<SeekForecast, Error> {
        body["dryRun"] = json!(true);
        let seeking = seeking(group, queue, &body)?;
        self.check_forecasts().await?;
        self.ask(seeking).await
    }

    /// Moves a group past the last message of one partition.
    pub async fn skip_partition(
        &self,
        group: &str,
        queue: &str,
        partition: &str,
    ) -> Result<PartitionSought, Error> {
        self.ask(skipping(group, queue, partition, &json!({}))?.once()).await
    }

    /// Previews [`skip_partition`](Self::skip_partition). Moves nothing.
    pub async fn forecast_skip_partition(
        &self,
        group: &str,
        queue: &str,
        partition: &str,
    ) -> Result<SeekForecast, Error> {
        let skipping = skipping(group, queue, partition, &json!({"toEnd": true, "dryRun": true}))?;
        self.check_forecasts().await?;
        let forecast: SeekForecast = self.ask(skipping).await?;
        Ok(SeekForecast { partitions_updated: 1, ..forecast })
    }

    /// Brokers of the previous release do not know `dryRun` and would move the group.
    async fn check_forecasts(&self) -> Result<(), Error> {
        let broker: Health = self.get("/health").await?;
        if !broker.version.starts_with("0.1.") {
            return Ok(());
        }
        let text = format!("broker version {} does not support dryRun for seeks", broker.version);
        Err(Error::new(ErrorKind::BadUse, text))
    }

    /// Changes where a group starts in partitions that are new to it. Returns the number of changed registrations.
    pub async fn subscribe_from(&self, group: &str, time: SystemTime) -> Result<u64, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Subscribed {
            rows_updated: u64,
        }
        wire::check_name("the name of a consumer group", group)?;
        let path = wire::path(&["/api/v1/consumer-groups/", group, "/subscription"]);
        let body = json!({"subscriptionTimestamp": clock::iso(time)});
        let subscribed: Subscribed = self.ask(Control::post(path, &body)).await?;
        Ok(subscribed.rows_updated)
    }
}

fn seeking(group: &str, queue: &str, body: &Value) -> Result<Control, Error> {
    wire::check_name("the name of a consumer group", group)?;
    wire::check_name("the name of a queue", queue)?;
    let path = wire::path(&["/api/v1/consumer-groups/", group, "/queues/", queue, "/seek"]);
    Ok(Control::post(path, body))
}

fn skipping(group: &str, queue: &str, partition: &str, body: &Value) -> Result<Control, Error> {
    wire::check_name("the name of a consumer group", group)?;
    wire::check_name("the name of a queue", queue)?;
    let queue = ["/api/v1/consumer-groups/", group, "/queues/", queue];
    let path = wire::path(&[&queue[..], &["/partitions/", partition, "/seek"]].concat());
    Ok(Control::post(path, body))
}

impl Position {
    fn body(self) -> Value {
        match self {
            Self::Beginning => json!({"timestamp": clock::iso(UNIX_EPOCH)}),
            Self::End => json!({"toEnd": true}),
            Self::Time(time) => json!({"timestamp": clock::iso(time)}),
        }
    }
}

impl Get<Vec<GroupSummary>> {
    /// Only groups that read this queue.
    pub fn queue(self, name: impl AsRef<str>) -> Self {
        self.with("queue", name)
    }
}

impl Get<HashMap<String, GroupInQueue>> {
    /// Only in this queue.
    pub fn queue(self, name: impl AsRef<str>) -> Self {
        self.with("queue", name)
    }
}

impl Get<Vec<LaggingPartition>> {
    /// Minimum waiting time; 3,600 seconds by default.
    pub fn min_lag_seconds(self, seconds: u64) -> Self {
        self.with("minLagSeconds", seconds.to_string())
    }
}

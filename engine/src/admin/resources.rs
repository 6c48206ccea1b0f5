//! Resources: queues, partitions and groups as numbers. A read includes what this broker did so far; small queues are
//! measured on the way, large ones reported from their counts.

use std::sync::Arc;
use std::time::Duration;

use queen_protocol::{Holder, QueueOptions};
use uuid::Uuid;

use super::queues::Seek;
use crate::Engine;
use crate::db::resources::{
    self, GroupFigures, Label, LabelFigures, Overview, PartitionFigures, PartitionPage, QueueFigures,
    QueueFilter, Trouble,
};
use crate::db::statistics;
use crate::db::statistics::Gauges;
use crate::error::Error;
use crate::jobs::{self, wake};

/// A queue with more partitions is not looked through while a caller waits.
const PARTITIONS_MAX: i32 = 1_000;

/// How long a read of all queues waits at most for exact figures.
const FRESHEN_FOR: Duration = Duration::from_millis(20);

/// Dead letters that are grouped by error.
const LETTERS_MAX: i32 = 10_000;

/// All partitions of a large queue cannot be counted at once; a refresh measures what it can within this time.
const REFRESH_FOR: Duration = Duration::from_secs(10);

impl Engine {
    /// The newest first.
    pub async fn queues(&self, filter: &QueueFilter) -> Result<Vec<QueueFigures>, Error> {
        self.freshen(filter.name.as_deref()).await?;
        Ok(resources::queues(&self.shared.reads, filter).await?)
    }

    pub async fn queue(&self, name: &str) -> Result<Option<QueueFigures>, Error> {
        let filter = QueueFilter { name: Some(name.to_owned()), limit: 1, ..QueueFilter::default() };
        Ok(self.queues(&filter).await?.into_iter().next())
    }

    pub async fn labels(&self, label: Label) -> Result<Vec<LabelFigures>, Error> {
        self.freshen(None).await?;
        Ok(resources::labels(&self.shared.reads, label).await?)
    }

    pub async fn overview(&self) -> Result<Overview, Error> {
        self.freshen(None).await?;
        Ok(resources::overview(&self.shared.reads).await?)
    }

    /// A page of a queue's partitions, by name; `after`: the last name of the previous page.
    pub async fn queue_partitions(
        &self,
        queue: Uuid,
        after: Option<&str>,
        limit: i64,
        offset: i64,
    ) -> Result<Vec<PartitionFigures>, Error> {
        Ok(resources::queue_partitions(&self.shared.reads, queue, after, limit, offset).await?)
    }

    /// Most unread messages first. For a large queue, and across all queues, only partitions that were notable when
    /// measured.
    pub async fn busiest_partitions(
        &self,
        queue: Option<Uuid>,
        group: Option<&str>,
        limit: i64,
    ) -> Result<Vec<PartitionFigures>, Error> {
        let connections = &self.shared.reads;
        if queue.is_none() {
            self.freshen(None).await?;
        }
        Ok(resources::busiest_partitions(connections, queue, group, limit, PARTITIONS_MAX).await?)
    }

    /// A page of partitions, most unread messages first. For a large queue, those that were notable when it was
    /// measured come first, and the rest by name; across all queues there are only notable ones.
    pub async fn partition_page(
        &self,
        queue: Option<Uuid>,
        group: Option<&str>,
        search: Option<&str>,
        limit: i64,
        offset: i64,
    ) -> Result<Vec<PartitionFigures>, Error> {
        if queue.is_none() {
            self.freshen(None).await?;
        }
        let page = PartitionPage { queue, group, search, limit, offset };
        Ok(resources::partition_page(&self.shared.reads, &page, PARTITIONS_MAX).await?)
    }

    /// Partitions where a message has waited for at least this many seconds, oldest first, each with the group it
    /// waits for.
    pub async fn lagging_partitions(
        &self,
        seconds: i64,
        limit: i64,
    ) -> Result<Vec<(String, PartitionFigures)>, Error> {
        self.freshen(None).await?;
        Ok(resources::lagging_partitions(&self.shared.reads, seconds, limit).await?)
    }

    /// One group in one queue, from the counts: for callers that have just read the queue.
    pub async fn group_in(&self, group: &str, queue: &str) -> Result<Option<GroupFigures>, Error> {
        let connections = &self.shared.reads;
        Ok(resources::groups(connections, Some(group), Some(queue), 1, 0).await?.into_iter().next())
    }

    /// By queue and name.
    pub async fn groups(
        &self,
        group: Option<&str>,
        queue: Option<&str>,
        limit: i64,
        offset: i64,
    ) -> Result<Vec<GroupFigures>, Error> {
        self.freshen(queue).await?;
        Ok(resources::groups(&self.shared.reads, group, queue, limit, offset).await?)
    }

    /// Monitoring values of each queue, as of a few seconds ago. Does not query the database.
    pub fn gauges(&self) -> Arc<Gauges> {
        self.shared.gauges()
    }

    pub async fn trouble(&self) -> Result<Trouble, Error> {
        Ok(resources::trouble(&self.shared.reads, LETTERS_MAX).await?)
    }

    /// `None`: the queue no longer exists.
    pub async fn queue_options(&self, queue: Uuid) -> Result<Option<QueueOptions>, Error> {
        Ok(resources::options(&self.shared.reads, queue).await?)
    }

    /// `None`: there is no such queue.
    pub async fn named_options(&self, queue: &str) -> Result<Option<QueueOptions>, Error> {
        Ok(resources::named_options(&self.shared.reads, queue).await?)
    }

    /// Microseconds since 1970.
    pub fn wall_clock(&self) -> i64 {
        crate::clock::wall()
    }

    /// The partitions of several queues in which a group has most to read; few of each if there are many queues.
    pub async fn group_partitions(
        &self,
        queues: &[Uuid],
        group: &str,
        limit: i64,
    ) -> Result<Vec<PartitionFigures>, Error> {
        let connections = &self.shared.reads;
        Ok(resources::group_partitions(connections, queues, group, limit, PARTITIONS_MAX).await?)
    }

    /// The consumer that got this lease, if it popped at this broker and is still remembered.
    pub fn lease_holder(&self, partition: Uuid, group: &str, lease: Uuid) -> Option<Holder> {
        self.shared.leases().holder(&(partition, group.into()), lease)
    }

    /// How many messages were removed; `None`: there is no such queue or partition.
    pub async fn clear(&self, queue: &str, partition: Option<&str>) -> Result<Option<i64>, Error> {
        let (engine, queue) = (self.clone(), queue.to_owned());
        let partition = partition.map(str::to_owned);
        self.to_its_end(async move {
            let shared = &engine.shared;
            let note = shared.wake.reset_note(Some(&queue), None);
            let removed = resources::clear(&shared.connections, &queue, partition.as_deref(), &note).await?;
            wake::forget(shared, Some(&queue), None);
            Ok(removed)
        })
        .await
    }

    /// The offset that the group reads next; `None`: there is no such partition.
    pub async fn seek_partition(
        &self,
        group: &str,
        queue: &str,
        partition: &str,
        seek: impl Into<Seek>,
    ) -> Result<Option<i64>, Error> {
        if self.move_group(group, queue, Some(partition), seek.into()).await? == 0 {
            return Ok(None);
        }
        Ok(resources::cursor(&self.shared.reads, group, queue, partition).await?)
    }

    /// Measures queues whose counts may be wrong, as many as time allows.
    pub async fn refresh_statistics(&self) -> Result<Refreshed, Error> {
        let started = crate::clock::now();
        jobs::statistics::tell(&self.shared).await?;
        let pace = jobs::statistics::pace(&self.shared);
        let mut queues = 0;
        while crate::clock::now() - started < REFRESH_FOR {
            match statistics::measure_next(&self.shared.connections, crate::clock::now() - started, pace)
                .await?
            {
                Some(_) => queues += 1,
                None => break,
            }
        }
        Ok(Refreshed { queues, took: crate::clock::now() - started })
    }

    pub(super) async fn freshen(&self, queue: Option<&str>) -> Result<(), Error> {
        jobs::statistics::tell(&self.shared).await?;
        let connections = &self.shared.reads;
        let pace = jobs::statistics::pace(&self.shared);
        Ok(statistics::freshen(connections, queue, PARTITIONS_MAX, FRESHEN_FOR, pace).await?)
    }
}

#[derive(Debug, Clone, Copy)]
pub struct Refreshed {
    /// How many were measured.
    pub queues: usize,
    pub took: Duration,
}

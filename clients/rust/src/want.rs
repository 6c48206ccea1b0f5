//! The request of a pop: source, group and limits, as a path.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use uuid::Uuid;

use crate::brokers::{Route, key};
use crate::clock;
use crate::error::Error;
use crate::message::whole_seconds;
use crate::wire::{self, Query};

/// Where a group starts in partitions that are new to it. To move an existing group, use a seek.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subscription {
    /// At the oldest message.
    All,
    /// At the end, so that only new messages are read.
    New,
    /// At the first message pushed after this time.
    From(SystemTime),
}

/// The source of messages.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Queue { queue: Arc<str>, partition: Option<Arc<str>> },
    Labels { namespace: Option<String>, task: Option<String> },
}

impl Source {
    fn check(&self) -> Result<(), Error> {
        match self {
            Self::Queue { queue, partition } => {
                wire::check_name("the name of a queue", queue)?;
                partition.as_deref().map_or(Ok(()), |name| wire::check_name("the name of a partition", name))
            }
            Self::Labels { namespace: None, task: None } => {
                Err(Error::bad_use("discover needs a namespace, a task or both"))
            }
            Self::Labels { namespace, task } => {
                for (what, label) in [("a namespace", namespace), ("a task", task)] {
                    label.as_deref().map_or(Ok(()), |label| wire::check_name(what, label))?;
                }
                Ok(())
            }
        }
    }

    fn path(&self) -> Query {
        match self {
            Self::Queue { queue, partition: None } => Query::new(wire::path(&["/api/v1/pop/queue/", queue])),
            Self::Queue { queue, partition: Some(partition) } => {
                Query::new(wire::path(&["/api/v1/pop/queue/", queue, "/partition/", partition]))
            }
            Self::Labels { namespace, task } => {
                let mut query = Query::new("/api/v1/pop");
                query.add_some("namespace", namespace.as_deref());
                query.add_some("task", task.as_deref());
                query
            }
        }
    }

    /// Consumers of a partition use the broker of its producers; consumers of a whole queue are spread over the brokers.
    pub fn route(&self, group: Option<&str>, worker: usize) -> Route {
        let (group, worker) = (group.unwrap_or_default(), worker.to_string());
        match self {
            Self::Queue { queue, partition: Some(partition) } => Route::lane(queue, partition),
            Self::Queue { queue, partition: None } => Route::Key(key(&[queue, group, &worker])),
            Self::Labels { namespace, task } => {
                let label = |label: &Option<String>| label.clone().unwrap_or_default();
                Route::Key(key(&[&label(namespace), &label(task), group, &worker]))
            }
        }
    }
}

/// The broker's limits. Larger requests would be reduced silently.
const BATCH_MAX: u32 = 10_000;
const PARTITIONS_MAX: u32 = 100;
const WAIT_MAX: Duration = Duration::from_secs(600);

/// The parameters of a pop.
#[derive(Debug, Clone)]
pub(crate) struct Want {
    pub source: Source,
    pub group: Option<String>,
    pub batch: u32,
    pub partitions: u32,
    /// `None`: respond at once.
    pub wait: Duration,
    pub lease: Option<Duration>,
    pub auto_ack: bool,
    pub subscription: Option<Subscription>,
}

impl Want {
    pub fn new(source: Source, group: Option<String>) -> Self {
        let (batch, partitions, wait) = (1, 1, Duration::ZERO);
        Self { source, group, batch, partitions, wait, lease: None, auto_ack: false, subscription: None }
    }

    pub fn check(&self) -> Result<(), Error> {
        self.source.check()?;
        if let Some(group) = &self.group {
            wire::check_name("the name of a consumer group", group)?;
        }
        if self.batch == 0 || self.partitions == 0 {
            return Err(Error::bad_use("batch and partitions must be at least 1"));
        }
        if self.batch > BATCH_MAX || self.partitions > PARTITIONS_MAX {
            let text = format!("a pop takes at most {BATCH_MAX} messages of {PARTITIONS_MAX} partitions");
            return Err(Error::bad_use(text));
        }
        if self.wait > WAIT_MAX {
            return Err(Error::bad_use("a pop waits at most 10 minutes: pop again, or use consume()"));
        }
        if let Some(lease) = self.lease {
            whole_seconds("a lease", lease)?;
        }
        if self.subscription.is_some() && self.group.is_none() {
            return Err(Error::bad_use("a subscription needs a consumer group: use .group(name)"));
        }
        Ok(())
    }

    /// Path and query. With the id, the wait can be ended by another request.
    pub fn path(&self, wait_id: Option<Uuid>) -> String {
        let mut query = self.source.path();
        query.add_some("consumerGroup", self.group.as_deref());
        query.add("batch", self.batch.to_string());
        if self.partitions > 1 {
            query.add("partitions", self.partitions.to_string());
        }
        if !self.wait.is_zero() {
            query.add("wait", "true");
            query.add("timeout", self.wait.as_millis().max(1).to_string());
        }
        if let Some(lease) = self.lease {
            query.add("leaseSeconds", whole_seconds("a lease", lease).unwrap_or(1).to_string());
        }
        if self.auto_ack {
            query.add("autoAck", "true");
        }
        match self.subscription {
            None => {}
            Some(Subscription::All) => query.add("subscriptionMode", "all"),
            Some(Subscription::New) => query.add("subscriptionMode", "new"),
            Some(Subscription::From(time)) => query.add("subscriptionFrom", clock::iso(time)),
        }
        query.add("brief", "true");
        if let Some(id) = wait_id {
            query.add("waitId", id.to_string());
        }
        query.into_text()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn queue(partition: Option<&str>) -> Source {
        Source::Queue { queue: "or/ders".into(), partition: partition.map(Into::into) }
    }

    #[test]
    fn a_pop_says_what_it_wants_and_nothing_else() {
        let mut want = Want::new(queue(None), None);
        assert_eq!(want.path(None), "/api/v1/pop/queue/or%2Fders?batch=1&brief=true");
        want.source = queue(Some("a b"));
        want.group = Some("g".to_owned());
        (want.batch, want.partitions, want.auto_ack) = (10, 3, true);
        (want.wait, want.lease) = (Duration::from_micros(5), Some(Duration::from_millis(1_500)));
        want.subscription = Some(Subscription::From(SystemTime::UNIX_EPOCH));
        assert_eq!(
            want.path(Some(Uuid::nil())),
            "/api/v1/pop/queue/or%2Fders/partition/a%20b?consumerGroup=g&batch=10&partitions=3&wait=true&timeout=1\
             &leaseSeconds=2&autoAck=true&subscriptionFrom=1970-01-01T00%3A00%3A00.000000Z\
             &brief=true&waitId=00000000-0000-0000-0000-000000000000"
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused_before_it_is_sent() {
        let changed = |change: fn(&mut Want)| {
            let mut want = Want::new(queue(None), None);
            change(&mut want);
            want.check().map_err(|error| error.kind())
        };
        let bad = Err(ErrorKind::BadUse);
        assert_eq!(changed(|_| {}), Ok(()));
        assert_eq!(changed(|want| want.batch = 0), bad);
        assert_eq!(changed(|want| want.partitions = 0), bad);
        assert_eq!(changed(|want| (want.batch, want.partitions) = (10_000, 100)), Ok(()));
        assert_eq!(changed(|want| want.batch = 10_001), bad);
        assert_eq!(changed(|want| want.partitions = 101), bad);
        assert_eq!(changed(|want| want.wait = Duration::from_secs(600)), Ok(()));
        assert_eq!(changed(|want| want.wait = Duration::MAX), bad);
        assert_eq!(changed(|want| want.lease = Some(Duration::ZERO)), bad);
        assert_eq!(changed(|want| want.lease = Some(Duration::MAX)), bad);
        assert_eq!(changed(|want| want.group = Some(String::new())), bad);
        assert_eq!(changed(|want| want.subscription = Some(Subscription::New)), bad);
        assert_eq!(changed(|want| want.source = queue(Some(""))), bad);
        assert_eq!(changed(|want| want.source = Source::Labels { namespace: None, task: None }), bad);
    }
}

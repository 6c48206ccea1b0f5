//! Dead letters, the messages that a group gave up on: list, redrive and purge them.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::time::{Duration, SystemTime};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock;
use crate::control::Control;
use crate::error::{Error, ErrorKind};
use crate::looks::Looks;
use crate::push::Pending;
use crate::queen::Queen;
use crate::wire::{self, Query};

const REDRIVE: &str = "/api/v1/dlq/redrive";

/// Dead letters of a queue, of one of its partitions, or of a group that reads it.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    queen: Queen,
    chosen: Chosen,
    deadline: Option<Duration>,
}

/// The filter.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
struct Chosen {
    queue: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    partition: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    consumer_group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Chosen {
    fn check(&self) -> Result<(), Error> {
        wire::check_name("the name of a queue", &self.queue)?;
        for (what, name) in [
            ("the name of a partition", &self.partition),
            ("the name of a consumer group", &self.consumer_group),
        ] {
            name.as_deref().map_or(Ok(()), |name| wire::check_name(what, name))?;
        }
        Ok(())
    }

    fn query(&self) -> Query {
        let mut query = Query::new("/api/v1/dlq");
        query.add("queue", &self.queue);
        query.add_some("partition", self.partition.as_deref());
        query.add_some("consumerGroup", self.consumer_group.as_deref());
        query.add_some("from", self.from.as_deref());
        query.add_some("to", self.to.as_deref());
        query.add_some("error", self.error.as_deref());
        query
    }
}

impl DeadLetters {
    pub(crate) fn new(queen: Queen, queue: &str, partition: Option<String>, group: Option<String>) -> Self {
        let queue = queue.to_owned();
        let chosen = Chosen { queue, partition, consumer_group: group, from: None, to: None, error: None };
        Self { queen, chosen, deadline: None }
    }

    /// Time limit of each call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Only those that failed after this time.
    pub fn from(mut self, time: SystemTime) -> Self {
        self.chosen.from = Some(clock::iso(time));
        self
    }

    /// Only those that failed before this time.
    pub fn to(mut self, time: SystemTime) -> Self {
        self.chosen.to = Some(clock::iso(time));
        self
    }

    /// Lists a page of them, newest failure first.
    pub fn list<T>(&self) -> ListDeadLetters<T> {
        let (letters, payload) = (self.clone(), PhantomData);
        ListDeadLetters { letters, limit: None, offset: None, payload }
    }

    /// Pushes them again, in the background and at a limited rate. Await it for its id and progress.
    pub fn redrive(&self) -> Redrive {
        let (queen, chosen, deadline) = (self.queen.clone(), self.chosen.clone(), self.deadline);
        let start = StartRedrive { chosen, target_queue: None, per_second: None, dry_run: None };
        Redrive { queen, start, deadline }
    }

    /// Deletes them permanently. Await it for their number.
    pub fn purge(&self) -> Purge {
        Purge { letters: self.clone() }
    }
}

/// A list request. Await it for a page of dead letters.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct ListDeadLetters<T> {
    letters: DeadLetters,
    limit: Option<u32>,
    offset: Option<u64>,
    payload: PhantomData<fn() -> T>,
}

impl<T> ListDeadLetters<T> {
    /// Maximum number. Default 100.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Number to skip.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Only those whose error contains this text.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.letters.chosen.error = Some(text.into());
        self
    }
}

/// A page of dead letters.
#[derive(Debug, Clone, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
#[non_exhaustive]
pub struct DeadLetterPage<T> {
    /// The dead letters of this page.
    #[serde(rename = "messages")]
    pub letters: Vec<DeadLetter<T>>,
    /// Total number of matching dead letters.
    #[serde(default)]
    pub total: u64,
}

/// A message as it was when a group gave up on it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", bound = "T: DeserializeOwned")]
#[non_exhaustive]
pub struct DeadLetter<T> {
    /// Message id.
    pub id: String,
    /// Transaction id.
    pub transaction_id: String,
    /// Id of the partition.
    pub partition_id: String,
    /// Name of the queue.
    pub queue: String,
    /// Name of the partition.
    pub partition: String,
    /// The consumer group.
    pub consumer_group: String,
    /// The error.
    #[serde(default, rename = "errorMessage")]
    pub error: Option<String>,
    /// Number of redeliveries.
    #[serde(default)]
    pub retry_count: u32,
    /// The payload.
    pub data: T,
    /// When it was pushed: ISO 8601, in UTC.
    #[serde(default)]
    pub created_at: String,
    /// When the group gave up on it.
    #[serde(default)]
    pub failed_at: String,
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for ListDeadLetters<T> {
    type Output = Result<DeadLetterPage<T>, Error>;
    type IntoFuture = Pending<DeadLetterPage<T>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let DeadLetters { queen, chosen, deadline } = &self.letters;
            chosen.check()?;
            let mut query = chosen.query();
            query.add_some("limit", self.limit.map(|limit| limit.to_string()).as_deref());
            query.add_some("offset", self.offset.map(|offset| offset.to_string()).as_deref());
            Control::get(query.into_text()).deadline(*deadline).send(&queen.shared).await
        })
    }
}

/// A redrive of dead letters. Await it to start it.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Redrive {
    queen: Queen,
    start: StartRedrive,
    deadline: Option<Duration>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StartRedrive {
    #[serde(flatten)]
    chosen: Chosen,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_queue: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    per_second: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dry_run: Option<bool>,
}

impl Redrive {
    /// Only those whose error contains this text.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.start.chosen.error = Some(text.into());
        self
    }

    /// Push to the partitions of the same names in this queue.
    pub fn target_queue(mut self, queue: impl Into<String>) -> Self {
        self.start.target_queue = Some(queue.into());
        self
    }

    /// Messages per second. Default 100.
    pub fn per_second(mut self, messages: u32) -> Self {
        self.start.per_second = Some(messages);
        self
    }

    /// Returns how many it would push, without pushing.
    pub async fn dry_run(mut self) -> Result<u64, Error> {
        #[derive(Deserialize)]
        struct Count {
            total: u64,
        }
        self.start.chosen.check()?;
        self.start.dry_run = Some(true);
        let counting = Control::post(REDRIVE, &self.start).deadline(self.deadline);
        let count: Count = counting.send(&self.queen.shared).await?;
        Ok(count.total)
    }
}

impl IntoFuture for Redrive {
    type Output = Result<RedriveState, Error>;
    type IntoFuture = Pending<RedriveState>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.start.chosen.check()?;
            // A second redrive would double the rate.
            let starting = Control::post(REDRIVE, &self.start).deadline(self.deadline).once();
            let state: RedriveState = starting.send(&self.queen.shared).await?;
            Ok(state.attach(&self.queen))
        })
    }
}

/// A redrive and its progress.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RedriveState {
    /// Id of the redrive.
    pub id: String,
    /// `running`, `completed` or `cancelled`.
    pub status: String,
    /// Number of dead letters.
    #[serde(default)]
    pub total: u64,
    /// Number pushed so far.
    #[serde(default)]
    pub done: u64,
    /// Number that failed.
    #[serde(default)]
    pub failed: u64,
    /// The most recent error.
    #[serde(default)]
    pub last_error: Option<String>,
    /// When it ended.
    #[serde(default)]
    pub finished_at: Option<String>,
    #[serde(skip)]
    queen: Option<Queen>,
}

impl RedriveState {
    fn queen(&self) -> Result<&Queen, Error> {
        self.queen
            .as_ref()
            .ok_or_else(|| Error::bad_use("this redrive has no client: get it with redrives()"))
    }

    pub(crate) fn attach(mut self, queen: &Queen) -> Self {
        self.queen = Some(queen.clone());
        self
    }

    pub(crate) async fn read(queen: &Queen, id: &str, deadline: Option<Duration>) -> Result<Self, Error> {
        let asking = Control::get(wire::path(&["/api/v1/dlq/redrives/", id])).deadline(deadline);
        Ok(asking.send::<Self>(&queen.shared).await?.attach(queen))
    }

    /// Fetches the current progress.
    pub async fn refresh(&self) -> Result<Self, Error> {
        Self::read(self.queen()?, &self.id, None).await
    }

    /// Waits until it ends, for at most this long.
    pub async fn finished(&self, time: Duration) -> Result<Self, Error> {
        let mut looks = Looks::until(clock::after(clock::now(), time));
        loop {
            let state = Self::read(self.queen()?, &self.id, Some(looks.left())).await?;
            if state.finished_at.is_some() {
                return Ok(state);
            }
            if !looks.again().await {
                let text =
                    format!("redrive {} has pushed {} of {} so far", state.id, state.done, state.total);
                return Err(Error::new(ErrorKind::Timeout, text));
            }
        }
    }

    /// Cancels it. What it has not pushed yet stays a dead letter.
    pub async fn cancel(&self) -> Result<Self, Error> {
        let (queen, path) = (self.queen()?, wire::path(&["/api/v1/dlq/redrives/", &self.id]));
        Ok(Control::delete(path).send::<Self>(&queen.shared).await?.attach(queen))
    }
}

/// A purge of dead letters. Await it for their number.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Purge {
    letters: DeadLetters,
}

impl IntoFuture for Purge {
    type Output = Result<u64, Error>;
    type IntoFuture = Pending<u64>;

    fn into_future(self) -> Self::IntoFuture {
        #[derive(Deserialize)]
        struct Purged {
            purged: u64,
        }
        Box::pin(async move {
            let DeadLetters { queen, chosen, deadline } = &self.letters;
            chosen.check()?;
            // A retry could delete dead letters that arrived in the meantime.
            let purging = Control::delete(chosen.query().into_text()).deadline(*deadline).once();
            let purged: Purged = purging.send(&queen.shared).await?;
            Ok(purged.purged)
        })
    }
}

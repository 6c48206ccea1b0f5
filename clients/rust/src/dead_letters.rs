//! Dead letters: what consumers gave up on. Look at them, push them again, or forget them.

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

/// Dead letters of a queue, one of its partitions, or a group that reads it.
#[derive(Debug, Clone)]
pub struct DeadLetters {
    queen: Queen,
    chosen: Chosen,
    deadline: Option<Duration>,
}

/// Which of them.
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

    /// How long each call about them may take with all attempts.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Those that failed after this time.
    pub fn from(mut self, time: SystemTime) -> Self {
        self.chosen.from = Some(clock::iso(time));
        self
    }

    /// Those that failed before this time.
    pub fn to(mut self, time: SystemTime) -> Self {
        self.chosen.to = Some(clock::iso(time));
        self
    }

    /// A page of them, the newest failure first.
    pub fn list<T>(&self) -> ListDeadLetters<T> {
        let (letters, payload) = (self.clone(), PhantomData);
        ListDeadLetters { letters, limit: None, offset: None, payload }
    }

    /// Pushes them again, in the background and at a pace. Await it for its id and how far it is.
    pub fn redrive(&self) -> Redrive {
        let (queen, chosen, deadline) = (self.queen.clone(), self.chosen.clone(), self.deadline);
        let start = StartRedrive { chosen, target_queue: None, per_second: None, dry_run: None };
        Redrive { queen, start, deadline }
    }

    /// Forgets them for good. Await it for how many there were.
    pub fn purge(&self) -> Purge {
        Purge { letters: self.clone() }
    }
}

/// A page of dead letters. Await it.
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct ListDeadLetters<T> {
    letters: DeadLetters,
    limit: Option<u32>,
    offset: Option<u64>,
    payload: PhantomData<fn() -> T>,
}

impl<T> ListDeadLetters<T> {
    /// The most of them, 100.
    pub fn limit(mut self, limit: u32) -> Self {
        self.limit = Some(limit);
        self
    }

    /// Leaves out so many.
    pub fn offset(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// Those whose error holds this text.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.letters.chosen.error = Some(text.into());
        self
    }
}

/// Dead letters, and how many there are in all.
#[derive(Debug, Clone, Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
#[non_exhaustive]
pub struct DeadLetterPage<T> {
    /// This page.
    #[serde(rename = "messages")]
    pub letters: Vec<DeadLetter<T>>,
    /// All that match.
    #[serde(default)]
    pub total: u64,
}

/// A message as it was when a group gave up on it.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase", bound = "T: DeserializeOwned")]
#[non_exhaustive]
pub struct DeadLetter<T> {
    /// The broker's id of the message.
    pub id: String,
    /// The producer's.
    pub transaction_id: String,
    /// The broker's id of its partition.
    pub partition_id: String,
    /// Its queue.
    pub queue: String,
    /// Its lane.
    pub partition: String,
    /// Who gave up.
    pub consumer_group: String,
    /// Why.
    #[serde(default, rename = "errorMessage")]
    pub error: Option<String>,
    /// How often it was delivered again.
    #[serde(default)]
    pub retry_count: u32,
    /// The payload.
    pub data: T,
    /// When it was pushed: ISO 8601, in UTC.
    #[serde(default)]
    pub created_at: String,
    /// When the group gave up.
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

/// A replay of dead letters. Await it to start it.
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
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
    /// Those whose error holds this text.
    pub fn error(mut self, text: impl Into<String>) -> Self {
        self.start.chosen.error = Some(text.into());
        self
    }

    /// To the partitions of the same names in this queue.
    pub fn target_queue(mut self, queue: impl Into<String>) -> Self {
        self.start.target_queue = Some(queue.into());
        self
    }

    /// Its pace, 100.
    pub fn per_second(mut self, messages: u32) -> Self {
        self.start.per_second = Some(messages);
        self
    }

    /// How many it would push, and pushes none.
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
            // A second one would push at the double pace.
            let starting = Control::post(REDRIVE, &self.start).deadline(self.deadline).once();
            let state: RedriveState = starting.send(&self.queen.shared).await?;
            Ok(state.attach(&self.queen))
        })
    }
}

/// How far a redrive is.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
#[non_exhaustive]
pub struct RedriveState {
    /// The broker's id for it.
    pub id: String,
    /// `pending`, `running`, or how it ended.
    pub status: String,
    /// How many it has to push.
    #[serde(default)]
    pub total: u64,
    /// How many it has pushed.
    #[serde(default)]
    pub done: u64,
    /// How many it could not push.
    #[serde(default)]
    pub failed: u64,
    /// The last thing that went wrong.
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
            .ok_or_else(|| Error::bad_use("a redrive that was read from elsewhere cannot be asked"))
    }

    pub(crate) fn attach(mut self, queen: &Queen) -> Self {
        self.queen = Some(queen.clone());
        self
    }

    pub(crate) async fn read(queen: &Queen, id: &str, deadline: Option<Duration>) -> Result<Self, Error> {
        let asking = Control::get(wire::path(&["/api/v1/dlq/redrives/", id])).deadline(deadline);
        Ok(asking.send::<Self>(&queen.shared).await?.attach(queen))
    }

    /// Asks again how far it is.
    pub async fn refresh(&self) -> Result<Self, Error> {
        Self::read(self.queen()?, &self.id, None).await
    }

    /// Waits for its end, for at most this long.
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

    /// Ends it. What it has not pushed yet stays a dead letter.
    pub async fn cancel(&self) -> Result<Self, Error> {
        let (queen, path) = (self.queen()?, wire::path(&["/api/v1/dlq/redrives/", &self.id]));
        Ok(Control::delete(path).send::<Self>(&queen.shared).await?.attach(queen))
    }
}

/// A purge of dead letters. Await it for how many there were.
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
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
            // Later it would forget those that have come meanwhile.
            let purging = Control::delete(chosen.query().into_text()).deadline(*deadline).once();
            let purged: Purged = purging.send(&queen.shared).await?;
            Ok(purged.purged)
        })
    }
}

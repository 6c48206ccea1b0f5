//! Pushes: one result per message.

use std::borrow::Cow;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use memchr::memmem;
use serde::Deserialize;
use tokio::time::Instant;

use crate::brokers::Route;
use crate::call::Answered;
use crate::clock;
use crate::error::{Error, ErrorKind};
use crate::item::{DEFAULT_PARTITION, Item, Place, Pushable, Written};
use crate::operation::{self, Deferred, Queued};
use crate::queen::{Queen, Shared};
use crate::wire::{self, Same};

const CREATED: u16 = 201;

/// A call that was not awaited yet.
pub type Pending<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

/// Messages as the body of a request. Every attempt sends these bytes.
pub(crate) struct Items {
    body: Vec<u8>,
    pub count: usize,
    lane: Lane,
    /// The first invalid message.
    refused: Option<Error>,
}

/// The partitions they are for.
enum Lane {
    None,
    One(Box<str>),
    Many,
}

impl Items {
    pub fn new() -> Self {
        // Room for a message of typical size.
        let mut body = Vec::with_capacity(512);
        body.extend_from_slice(b"{\"items\":[");
        Self { body, count: 0, lane: Lane::None, refused: None }
    }

    pub fn add(&mut self, message: impl Pushable, place: Place<'_>) {
        let partition = message.own_partition().unwrap_or(place.partition);
        self.lane = match std::mem::replace(&mut self.lane, Lane::Many) {
            Lane::None => Lane::One(partition.into()),
            Lane::One(same) if *same == *partition => Lane::One(same),
            _ => Lane::Many,
        };
        if self.count > 0 {
            self.body.push(b',');
        }
        self.count += 1;
        if let Err(error) = message.write(&mut self.body, place) {
            self.refused.get_or_insert(error);
        }
    }

    fn finish(mut self, queue: &str) -> Result<(Bytes, Route), Error> {
        if let Some(error) = self.refused {
            return Err(error);
        }
        self.body.extend_from_slice(b"]}");
        let route = match self.lane {
            Lane::One(partition) => Route::lane(queue, &partition),
            _ => Route::First,
        };
        Ok((self.body.into(), route))
    }
}

/// The result of a pushed message.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pushed {
    /// Message id. Empty if it was deferred by a broker that only returns operations.
    pub message_id: String,
    /// Transaction id: yours, or a generated one.
    pub transaction_id: String,
    /// Stored, duplicate, or spooled.
    pub status: PushStatus,
    /// Id of the partition. `None` if spooled, and where `message_id` is empty.
    pub partition_id: Option<Arc<str>>,
    /// The deferred operation that will store it, if it is not stored yet.
    pub operation: Option<Deferred>,
    /// Why it was refused.
    pub error: Option<String>,
}

/// What a broker did with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PushStatus {
    /// Stored, or accepted durably.
    Queued,
    /// The partition already has this transaction id; `message_id` is that of the first message.
    Duplicate,
    /// In the broker's spool until its database is available.
    Buffered,
    /// Refused.
    #[serde(alias = "error")]
    Failed,
    /// A status of a newer broker.
    #[serde(other)]
    Other,
}

impl PushStatus {
    /// The broker's name of the status: `queued`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Duplicate => "duplicate",
            Self::Buffered => "buffered",
            Self::Failed => "failed",
            Self::Other => "other",
        }
    }
}

/// A result as received; the mixed casing is the broker's.
#[derive(Deserialize)]
struct Line<'a> {
    message_id: String,
    transaction_id: String,
    status: PushStatus,
    #[serde(borrow, default)]
    partition_id: Option<Cow<'a, str>>,
    #[serde(default)]
    error: Option<String>,
    // Not flattened, which would make parsing every result slower.
    #[serde(default, rename = "operationId")]
    operation_id: Option<String>,
    #[serde(default, rename = "queuePosition")]
    position: Option<u64>,
    #[serde(default, rename = "estimatedWait")]
    estimated_wait: Option<f64>,
    #[serde(default)]
    reason: Option<String>,
}

pub(crate) fn read(body: &[u8]) -> Result<Vec<Pushed>, Error> {
    let lines: Vec<Line<'_>> = wire::decode(body)?;
    let mut same = Same::default();
    let pushed = |line: Line<'_>| Pushed {
        message_id: line.message_id,
        transaction_id: line.transaction_id,
        status: line.status,
        partition_id: line.partition_id.map(|id| same.get(&id)),
        operation: Deferred::read(line.operation_id, line.position, line.estimated_wait, line.reason),
        error: line.error,
    };
    Ok(lines.into_iter().map(pushed).collect())
}

/// A 202 with operations and without results: combines the sent messages with their operations.
fn accepted(sent: &[u8], queued: &Queued) -> Result<Vec<Pushed>, Error> {
    #[derive(Deserialize)]
    struct Sent {
        items: Vec<Written>,
    }
    let sent: Sent = wire::decode(sent)?;
    let pushed = |item: Written| Pushed {
        message_id: String::new(),
        operation: queued.of(&item.queue, &item.partition),
        transaction_id: item.transaction_id,
        status: PushStatus::Queued,
        partition_id: None,
        error: None,
    };
    Ok(sent.items.into_iter().map(pushed).collect())
}

/// The error of a refused message.
pub(crate) fn refusal(kind: ErrorKind, refused: &Pushed, attempts: u32) -> Error {
    let why = refused.error.as_deref().unwrap_or("no reason given");
    let text = format!("message {} was refused: {why}", refused.transaction_id);
    Error::new(kind, text).with_attempts(attempts)
}

/// A response in which no message was refused.
pub(crate) enum Results {
    /// All are stored. The details are not parsed yet.
    Stored(Bytes),
    Read(Vec<Pushed>),
}

/// Whether a response says that this many messages are stored. JSON text that contains these words has escapes between them.
fn all_stored(answer: &Answered, count: usize) -> bool {
    answer.status == CREATED && memmem::find_iter(&answer.body, b"\"status\":\"queued\"").count() == count
}

/// For callers that rarely need the details of stored messages. Otherwise like [`send`].
pub(crate) async fn deliver(
    shared: &Shared,
    body: Bytes,
    count: usize,
    route: Route,
) -> Result<Results, Error> {
    let until = clock::after(clock::now(), shared.deadline);
    let answer = ask(shared, &body, route, None).await?;
    match all_stored(&answer, count) {
        true => Ok(Results::Stored(answer.body)),
        false => conclude(shared, answer, &body, count, until).await.map(Results::Read),
    }
}

/// Also works while the client is being closed.
///
/// # Cancel safety
/// If dropped after it was sent, the messages may or may not be stored.
async fn send(
    shared: &Shared,
    body: Bytes,
    count: usize,
    route: Route,
    deadline: Option<Duration>,
) -> Result<Vec<Pushed>, Error> {
    let until = clock::after(clock::now(), deadline.unwrap_or(shared.deadline));
    let answer = ask(shared, &body, route, deadline).await?;
    conclude(shared, answer, &body, count, until).await
}

async fn ask(
    shared: &Shared,
    body: &Bytes,
    route: Route,
    deadline: Option<Duration>,
) -> Result<Answered, Error> {
    let call = shared.usual(Method::POST, "/api/v1/push".to_owned(), body.clone(), route, deadline);
    shared.call_anyway(call).await
}

/// Parses the results, and waits for deferred ones if the client is configured to.
async fn conclude(
    shared: &Shared,
    answer: Answered,
    body: &[u8],
    count: usize,
    until: Instant,
) -> Result<Vec<Pushed>, Error> {
    let queued = Queued::read(&answer)?;
    let mut results = match &queued {
        None => read(&answer.body)?,
        Some(queued) => accepted(body, queued)?,
    };
    if results.len() != count {
        let text = format!("{} results for {count} messages", results.len());
        return Err(Error::new(ErrorKind::Decode, text));
    }
    let operations = results.iter().map(|result| result.operation.as_ref());
    let news = operation::poll(shared, &answer, queued.as_ref(), operations, until, read).await?;
    let mut failure = None;
    for (index, news) in news {
        let result = &mut results[index];
        match news {
            Ok(done) => *result = Pushed { operation: result.operation.take(), ..done },
            Err(error) => {
                (result.status, result.error) = (PushStatus::Failed, Some(error.text().to_owned()));
                failure.get_or_insert(error);
            }
        }
    }
    let refused = results.iter().find(|result| result.status == PushStatus::Failed);
    let refused = refused.map(|refused| refusal(ErrorKind::Refused, refused, answer.attempts));
    match failure.or(refused) {
        None => Ok(results),
        Some(error) => Err(error.with_results(results)),
    }
}

/// A push of one message. Await it to send it.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Push {
    queen: Queen,
    queue: Arc<str>,
    partition: Option<Arc<str>>,
    item: Item,
    deadline: Option<Duration>,
}

impl Push {
    pub(crate) fn new(queen: Queen, queue: Arc<str>, partition: Option<Arc<str>>, item: Item) -> Self {
        Self { queen, queue, partition, item, deadline: None }
    }

    /// See [`Item::transaction_id`].
    pub fn transaction_id(mut self, id: impl Into<String>) -> Self {
        self.item = self.item.transaction_id(id);
        self
    }

    /// See [`Item::trace_id`].
    pub fn trace_id(mut self, id: impl Into<String>) -> Self {
        self.item = self.item.trace_id(id);
        self
    }

    /// See [`Item::traceparent`].
    pub fn traceparent(mut self, traceparent: impl Into<String>) -> Self {
        self.item = self.item.traceparent(traceparent);
        self
    }

    /// See [`Item::tracestate`].
    pub fn tracestate(mut self, tracestate: impl Into<String>) -> Self {
        self.item = self.item.tracestate(tracestate);
        self
    }

    /// Time limit of the call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

impl IntoFuture for Push {
    type Output = Result<Pushed, Error>;
    type IntoFuture = Pending<Pushed>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { queen, queue, partition, item, deadline } = self;
        let many = PushAll { deadline, ..PushAll::new(queen, queue, partition.as_deref(), [item]) };
        Box::pin(async move {
            let results = many.send().await?;
            results.into_iter().next().ok_or_else(|| Error::new(ErrorKind::Decode, "no result"))
        })
    }
}

/// A push of many messages, in one request. Await it to send it.
#[must_use = "nothing is sent until it is awaited"]
pub struct PushAll {
    queen: Queen,
    queue: Arc<str>,
    items: Items,
    deadline: Option<Duration>,
}

impl PushAll {
    pub(crate) fn new(
        queen: Queen,
        queue: Arc<str>,
        partition: Option<&str>,
        messages: impl IntoIterator<Item = impl Pushable>,
    ) -> Self {
        let mut items = Items::new();
        let place = Place { queue: &queue, partition: partition.unwrap_or(DEFAULT_PARTITION) };
        messages.into_iter().for_each(|message| items.add(message, place));
        Self { queen, queue, items, deadline: None }
    }

    /// Time limit of the call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    async fn send(self) -> Result<Vec<Pushed>, Error> {
        let count = self.items.count;
        let (body, route) = self.items.finish(&self.queue)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        self.queen.shared.check_open()?;
        send(&self.queen.shared, body, count, route, self.deadline).await
    }
}

impl IntoFuture for PushAll {
    type Output = Result<Vec<Pushed>, Error>;
    type IntoFuture = Pending<Vec<Pushed>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

impl fmt::Debug for PushAll {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = out.debug_struct("PushAll");
        debug.field("queue", &self.queue).field("count", &self.items.count).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn items(messages: impl IntoIterator<Item = impl Pushable>) -> Result<(Bytes, Route), Error> {
        let queen = Queen::connect("http://localhost").unwrap();
        PushAll::new(queen, "orders".into(), Some("p"), messages).items.finish("orders")
    }

    #[test]
    fn messages_of_one_partition_use_its_broker_and_others_any() {
        assert_eq!(items(&[1, 2]).unwrap().1, Route::lane("orders", "p"));
        let mixed = [Item::new(&1), Item::new(&2).partition("q")];
        assert_eq!(items(mixed).unwrap().1, Route::First);
        let other = [Item::new(&1).partition("q"), Item::new(&2).partition("q")];
        assert_eq!(items(other).unwrap().1, Route::lane("orders", "q"));
    }

    #[test]
    fn the_body_is_a_list_and_one_bad_message_refuses_all() {
        let read: Value = serde_json::from_slice(&items(["a", "b"]).unwrap().0).unwrap();
        assert_eq!((&read["items"][0]["payload"], &read["items"][1]["payload"]), (&"a".into(), &"b".into()));
        let error = items([Item::new(&1), Item::new(&2).partition("")]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadUse);
    }

    #[test]
    fn words_and_fields_of_later_brokers_are_no_trouble() {
        let text = r#"[{"index":0,"message_id":"m","transaction_id":"t","queueName":"q","status":"hovering","new":1},
                       {"index":1,"message_id":"m","transaction_id":"t","queueName":"q","status":"queued",
                        "partition_id":"p","operationId":"o","queuePosition":3,"estimatedWait":2,"reason":"system_busy"}]"#;
        let pushed = read(text.as_bytes()).unwrap();
        assert_eq!((pushed[0].status, &pushed[0].operation), (PushStatus::Other, &None));
        let operation = pushed[1].operation.clone().unwrap();
        assert_eq!((&*operation.id, operation.position), ("o", 3));
        assert_eq!(operation.estimated_wait, Duration::from_secs(2));
    }

    #[test]
    fn an_answer_says_at_a_glance_that_everything_is_stored() {
        let line =
            |id: &str, status: &str| serde_json::json!({"transaction_id": id, "status": status}).to_string();
        let stored = |status, lines: &[String], count| {
            let body = format!("[{}]", lines.join(",")).into();
            all_stored(&Answered { status, body, broker: 0, attempts: 1, uncertain: false }, count)
        };
        let good = [line("a", "queued"), line("\"status\":\"queued\"", "queued")];
        assert!(stored(201, &good, 2));
        assert!(!stored(202, &good, 2) && !stored(201, &good, 3));
        for other in ["duplicate", "buffered", "failed"] {
            assert!(!stored(201, &[line("a", "queued"), line("\"status\":\"queued\"", other)], 2), "{other}");
        }
    }

    #[test]
    fn a_202_that_tells_operations_only_is_a_result_for_each_message() {
        let sent =
            items([Item::new(&1).transaction_id("t1"), Item::new(&2).partition("q").transaction_id("t2")]);
        let queued = r#"{"operationId":"o","queuePosition":3,"operations":[{"operationId":"o","queue":"orders","partition":"q"}]}"#;
        let queued: Queued = serde_json::from_str(queued).unwrap();
        let pushed = accepted(&sent.unwrap().0, &queued).unwrap();
        let told: Vec<_> =
            pushed.iter().map(|one| (one.transaction_id.as_str(), one.status.word())).collect();
        assert_eq!(told, [("t1", "queued"), ("t2", "queued")]);
        assert!(pushed[0].operation.is_none(), "it was stored at once");
        assert_eq!(pushed[1].operation.as_ref().map(|operation| operation.id.as_str()), Some("o"));
    }
}

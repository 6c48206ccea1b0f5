//! Deferred operations (202): what the response says about them, and waiting for their end.

use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::Instant;

use crate::brokers::Route;
use crate::call::Answered;
use crate::error::{Error, ErrorKind};
use crate::looks::Looks;
use crate::queen::{QueuedOperation, Shared};
use crate::wire;

const ACCEPTED: u16 = 202;

/// An operation that is accepted and durable, but not executed yet.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deferred {
    /// Its id, for [`Admin::operation`](crate::Admin::operation).
    pub id: String,
    /// Approximate number of open operations when it was accepted, itself included.
    pub position: u64,
    /// Approximate time until it is executed.
    pub estimated_wait: Duration,
    /// `system_busy` or `maintaining_order`.
    pub reason: Option<String>,
}

impl Deferred {
    /// From the fields that a 202 adds to each result.
    pub(crate) fn read(
        id: Option<String>,
        position: Option<u64>,
        wait_seconds: Option<f64>,
        reason: Option<String>,
    ) -> Option<Self> {
        let seconds = wait_seconds.unwrap_or_default().clamp(0.0, 1e9);
        let estimated_wait = Duration::from_secs_f64(seconds);
        id.map(|id| Self { id, position: position.unwrap_or_default(), estimated_wait, reason })
    }
}

/// The other form of a 202: one object that lists the operations by partition, without results. Brokers can be configured to send
/// it, and requests can ask for it with a header.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Queued {
    #[serde(default)]
    queue_position: Option<u64>,
    #[serde(default)]
    estimated_wait: Option<f64>,
    #[serde(default)]
    reason: Option<String>,
    operations: Vec<Named>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Named {
    operation_id: String,
    /// Empty if the broker that accepted an acknowledgement did not know the partition's name.
    #[serde(default)]
    queue: String,
    #[serde(default)]
    partition: String,
}

impl Named {
    fn is_of(&self, queue: &str, partition: &str) -> bool {
        (self.queue.as_str(), self.partition.as_str()) == (queue, partition)
    }
}

impl Queued {
    /// `None`: the usual list.
    pub fn read(answer: &Answered) -> Result<Option<Self>, Error> {
        match answer.status == ACCEPTED && answer.body.first() == Some(&b'{') {
            true => wire::decode(&answer.body).map(Some),
            false => Ok(None),
        }
    }

    /// The first operation of a partition. `None`: everything for it was executed at once.
    pub fn of(&self, queue: &str, partition: &str) -> Option<Deferred> {
        let named = self.operations.iter().find(|named| named.is_of(queue, partition));
        let found = match (named, self.operations.as_slice()) {
            (Some(named), _) => named,
            // One of the two does not know the name.
            (None, [only]) if only.partition.is_empty() || partition.is_empty() => only,
            _ => return None,
        };
        let id = Some(found.operation_id.clone());
        Deferred::read(id, self.queue_position, self.estimated_wait, self.reason.clone())
    }

    /// All operations of this operation's partition: a large request is split into several, in order.
    fn with(&self, id: &str) -> Vec<String> {
        let Some(first) = self.operations.iter().find(|named| named.operation_id == id) else {
            return vec![id.to_owned()];
        };
        let same = self.operations.iter().filter(|named| named.is_of(&first.queue, &first.partition));
        same.map(|named| named.operation_id.clone()).collect()
    }
}

/// The results of one or more operations, in order.
#[derive(Debug, PartialEq, Eq)]
struct Open {
    ids: Vec<String>,
    /// The positions of these results in the response.
    members: Vec<usize>,
}

fn open<'a>(operations: impl Iterator<Item = Option<&'a Deferred>>, queued: Option<&Queued>) -> Vec<Open> {
    let mut open: Vec<Open> = Vec::new();
    for (index, operation) in operations.enumerate() {
        let Some(operation) = operation else { continue };
        match open.iter_mut().find(|open| open.ids[0] == operation.id) {
            Some(open) => open.members.push(index),
            None => {
                let ids = queued.map_or_else(|| vec![operation.id.clone()], |all| all.with(&operation.id));
                open.push(Open { ids, members: vec![index] });
            }
        }
    }
    open
}

/// Final results of deferred items, by position.
pub(crate) type News<T> = Vec<(usize, Result<T, Error>)>;

/// Waits for the operations of a response, if requested. A failed operation does not affect the others.
pub(crate) async fn poll<'a, T>(
    shared: &Shared,
    answer: &Answered,
    queued: Option<&Queued>,
    operations: impl Iterator<Item = Option<&'a Deferred>>,
    until: Instant,
    read: impl Fn(&[u8]) -> Result<Vec<T>, Error>,
) -> Result<News<T>, Error> {
    let mut news = Vec::new();
    if answer.status != ACCEPTED || shared.queued != QueuedOperation::Poll {
        return Ok(news);
    }
    for Open { ids, members } in open(operations, queued) {
        let mut members = members.into_iter();
        for id in ids {
            match finished(shared, &id, answer.broker, until).await {
                Ok(None) => {}
                // In the order of the request, like a direct response.
                Ok(Some(done)) => {
                    let results = read(done.get().as_bytes())?.into_iter();
                    news.extend(results.zip(members.by_ref()).map(|(result, index)| (index, Ok(result))));
                }
                Err(error) if error.kind() == ErrorKind::OperationFailed => {
                    news.extend(members.by_ref().map(|index| (index, Err(error.clone()))));
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(news)
}

#[derive(Deserialize)]
struct State {
    status: String,
    #[serde(default)]
    error_message: Option<String>,
    #[serde(default)]
    result: Option<Box<RawValue>>,
}

/// Waits for an operation to end, and returns the result of the direct call, if available.
async fn finished(
    shared: &Shared,
    id: &str,
    broker: usize,
    until: Instant,
) -> Result<Option<Box<RawValue>>, Error> {
    let path = wire::path(&["/api/v1/operations/", id]);
    let late = |why: &str| {
        let text = format!("operation {id} did not finish within the deadline; it may still succeed{why}");
        Error::new(ErrorKind::Timeout, text).with_operation(id)
    };
    let mut looks = Looks::until(until);
    while looks.again().await {
        let (method, route, left) = (Method::GET, Route::At(broker), Some(looks.left()));
        let asking = shared.usual(method, path.clone(), Bytes::new(), route, left);
        let answer = shared.call_anyway(asking).await.map_err(|error| match error.kind() {
            ErrorKind::Timeout => late(&format!(": {}", error.text())).with_attempts(error.attempts()),
            _ => error.with_operation(id),
        })?;
        let state: State = wire::decode(&answer.body)?;
        match state.status.as_str() {
            "completed" => return Ok(state.result.filter(|result| result.get().starts_with('['))),
            word @ ("failed" | "cancelled") => {
                let why = state.error_message.unwrap_or_else(|| "no reason given".to_owned());
                let text = format!("operation {id} has {word}: {why}");
                return Err(Error::new(ErrorKind::OperationFailed, text).with_operation(id));
            }
            _ => {}
        }
    }
    Err(late(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deferred(id: &str) -> Deferred {
        Deferred { id: id.to_owned(), position: 1, estimated_wait: Duration::ZERO, reason: None }
    }

    fn members(open: &[Open]) -> Vec<(String, Vec<usize>)> {
        open.iter().map(|open| (open.ids.join(" "), open.members.clone())).collect()
    }

    fn queued(operations: &str) -> Queued {
        let body = format!(
            r#"{{"status":"queued","operationId":"a1","queuePosition":7,"estimatedWait":2,"reason":"system_busy",
                "operations":[{operations}],"note":"x"}}"#
        );
        let (status, body) = (202, body.into());
        let answer = Answered { status, body, broker: 0, attempts: 1, uncertain: false };
        Queued::read(&answer).unwrap().unwrap()
    }

    #[test]
    fn results_belong_to_their_operation_in_their_order() {
        let (a, b) = (deferred("a"), deferred("b"));
        let open = open([Some(&a), None, Some(&b), Some(&a)].into_iter(), None);
        assert_eq!(members(&open), [("a".to_owned(), vec![0, 3]), ("b".to_owned(), vec![2])]);
    }

    #[test]
    fn an_object_tells_the_operations_of_each_partition() {
        let queued = queued(
            r#"{"operationId":"a1","queue":"q","partition":"a"},{"operationId":"a2","queue":"q","partition":"a"},
               {"operationId":"b1","queue":"q","partition":"b"}"#,
        );
        let of = |partition| queued.of("q", partition);
        let (a, b) = (of("a").unwrap(), of("b").unwrap());
        assert_eq!((a.id.as_str(), a.position, a.estimated_wait), ("a1", 7, Duration::from_secs(2)));
        assert_eq!((b.id.as_str(), b.reason.as_deref()), ("b1", Some("system_busy")));
        assert_eq!(of("done at once"), None);
        let open = open([Some(&a), Some(&b), None, Some(&a)].into_iter(), Some(&queued));
        assert_eq!(members(&open), [("a1 a2".to_owned(), vec![0, 3]), ("b1".to_owned(), vec![1])]);
    }

    #[test]
    fn an_operation_without_a_name_belongs_to_the_only_partition() {
        let nameless = queued(r#"{"operationId":"a1","queue":"","partition":""}"#);
        assert_eq!(nameless.of("q", "p").unwrap().id, "a1");
        assert_eq!(
            queued(r#"{"operationId":"a1","queue":"q","partition":"p"}"#).of("", "").unwrap().id,
            "a1"
        );
    }

    #[test]
    fn a_list_is_no_object() {
        let answer = |status, body: &str| {
            let body = body.to_owned().into();
            Queued::read(&Answered { status, body, broker: 0, attempts: 1, uncertain: false })
        };
        assert!(answer(202, "[]").unwrap().is_none());
        assert!(answer(200, "{}").unwrap().is_none());
        assert_eq!(answer(202, "{}").unwrap_err().kind(), ErrorKind::Decode);
    }
}

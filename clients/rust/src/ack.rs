//! Acknowledgements: reporting the outcome of messages to the broker that delivered them.

use std::future::IntoFuture;
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;

use crate::brokers::Route;
use crate::clock;
use crate::delivery::{Envelope, Settled};
use crate::error::{Error, ErrorKind};
use crate::message::Message;
use crate::operation::{self, Deferred, Queued};
use crate::push::Pending;
use crate::queen::{Queen, Shared};
use crate::wire;

/// The outcome of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Status {
    Completed,
    Failed,
    Retry,
    DeadLetter,
}

impl Status {
    fn word(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Retry => "retry",
            Self::DeadLetter => "dlq",
        }
    }
}

/// One message's acknowledgement, ready to be sent.
#[derive(Debug, Clone)]
pub(crate) struct Ack {
    pub envelope: Envelope,
    pub status: Status,
    pub error: Option<String>,
}

impl Ack {
    pub fn new<T>(message: &Message<T>, status: Status, error: Option<String>) -> Self {
        Self { envelope: message.envelope.clone(), status, error }
    }

    /// A message that was acknowledged at delivery has no lease to end.
    pub fn check(&self) -> Result<(), Error> {
        match self.envelope.is_auto_acked() {
            false => Ok(()),
            true => Err(Error::bad_use("the message was acknowledged when it was delivered (auto_ack)")),
        }
    }

    /// The target of an operation that is deferred.
    fn accepted(&self, queued: &Queued) -> Acked {
        let operation = queued.of(self.envelope.queue(), self.envelope.partition());
        Acked::deferred(self.envelope.transaction_id(), operation)
    }

    /// The fields of an acknowledgement, without the braces.
    pub fn write(&self, body: &mut Vec<u8>) {
        wire::field(body, "\"transactionId\":", self.envelope.transaction_id());
        // Selects one of several messages with the same transaction id.
        if !self.envelope.id().is_empty() {
            wire::field(body, ",\"messageId\":", self.envelope.id());
        }
        wire::field(body, ",\"partitionId\":", self.envelope.partition_id());
        if !self.envelope.lease_id().is_empty() {
            wire::field(body, ",\"leaseId\":", self.envelope.lease_id());
        }
        wire::field(body, ",\"status\":", self.status.word());
        if let Some(error) = &self.error {
            wire::field(body, ",\"error\":", error);
        }
    }

    /// Records the outcome, so that the consumer does not report it again. The lease may still be held: when a nack exhausts the
    /// retries, the message becomes a dead letter and the lease stays.
    pub fn note(&self, result: &Acked) {
        self.envelope.settle(match self.status {
            Status::Completed | Status::DeadLetter => Settled::Done,
            _ if result.dead_letter => Settled::Done,
            _ => Settled::GivenBack,
        });
    }
}

/// The broker's result for an acknowledgement.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Acked {
    /// Transaction id of the message.
    pub transaction_id: String,
    /// Whether it was accepted. If not, `error` says why.
    pub success: bool,
    /// Why it was refused, for example because the lease has ended.
    pub error: Option<String>,
    /// Whether this ended the lease on the partition.
    pub lease_released: bool,
    /// Whether the message became a dead letter.
    pub dead_letter: bool,
    /// Whether it was acknowledged before.
    pub noop: bool,
    /// The deferred operation that will apply it.
    pub operation: Option<Deferred>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    transaction_id: String,
    success: bool,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    lease_released: bool,
    #[serde(default)]
    dlq: bool,
    #[serde(default)]
    noop: bool,
    #[serde(default)]
    operation_id: Option<String>,
    #[serde(default)]
    queue_position: Option<u64>,
    #[serde(default)]
    estimated_wait: Option<f64>,
    #[serde(default)]
    reason: Option<String>,
}

impl Acked {
    /// The result of a deferred acknowledgement.
    fn deferred(transaction_id: &str, operation: Option<Deferred>) -> Self {
        let (success, error, lease_released, dead_letter, noop) = (true, None, false, false, false);
        let transaction_id = transaction_id.to_owned();
        Self { transaction_id, success, error, lease_released, dead_letter, noop, operation }
    }
}

impl From<Line> for Acked {
    fn from(read: Line) -> Self {
        Self {
            transaction_id: read.transaction_id,
            success: read.success,
            error: read.error,
            lease_released: read.lease_released,
            dead_letter: read.dlq,
            noop: read.noop,
            operation: Deferred::read(
                read.operation_id,
                read.queue_position,
                read.estimated_wait,
                read.reason,
            ),
        }
    }
}

/// Which route to use: for one message or for several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Single,
    Batch,
}

fn read(body: &[u8]) -> Result<Vec<Acked>, Error> {
    let lines: Vec<Line> = wire::decode(body)?;
    Ok(lines.into_iter().map(Acked::from).collect())
}

/// One request for any number of messages. A refusal is a result and not an error. Also works while the client is being closed.
pub(crate) async fn send(
    shared: &Shared,
    acks: &[Ack],
    form: Form,
    deadline: Option<Duration>,
) -> Result<Results, Error> {
    let Some(first) = acks.first() else { return Ok(Results::default()) };
    acks.iter().try_for_each(Ack::check)?;
    let group = first.envelope.group();
    if acks.iter().any(|ack| ack.envelope.group() != group) {
        return Err(Error::bad_use(
            "the messages belong to different consumer groups; acknowledge each group separately",
        ));
    }
    let until = clock::after(clock::now(), deadline.unwrap_or(shared.deadline));
    let (path, body) = match (form, acks) {
        (Form::Single, [one]) => ("/api/v1/ack", single(one)),
        (_, many) => ("/api/v1/ack/batch", batch(many)),
    };
    let route = Route::At(first.envelope.broker());
    let call = shared.usual(Method::POST, path.to_owned(), body.into(), route, deadline);
    let answer = shared.call_anyway(call).await?;
    let queued = Queued::read(&answer)?;
    let mut results = match &queued {
        None => read(&answer.body)?,
        Some(queued) => acks.iter().map(|ack| ack.accepted(queued)).collect(),
    };
    if results.len() != acks.len() {
        let text = format!("{} results for {} acknowledgements", results.len(), acks.len());
        return Err(Error::new(ErrorKind::Decode, text));
    }
    let operations = results.iter().map(|result| result.operation.as_ref());
    let news = operation::poll(shared, &answer, queued.as_ref(), operations, until, read).await?;
    let mut failure = None;
    for (index, news) in news {
        let result = &mut results[index];
        match news {
            Ok(done) => *result = Acked { operation: result.operation.take(), ..done },
            Err(error) => {
                result.success = false;
                failure.get_or_insert(error);
            }
        }
    }
    for (ack, result) in acks.iter().zip(&results).filter(|(_, result)| result.success) {
        ack.note(result);
    }
    match failure {
        None => Ok(Results { list: results, uncertain: answer.uncertain, attempts: answer.attempts }),
        Some(error) => Err(error),
    }
}

/// In the order of the request.
#[derive(Debug, Default)]
pub(crate) struct Results {
    pub list: Vec<Acked>,
    /// An earlier attempt may have been executed too.
    uncertain: bool,
    attempts: u32,
}

impl Results {
    /// The error, if it was refused.
    pub fn refusal(&self, index: usize, ack: &Ack) -> Option<Error> {
        let refused = self.list.get(index).filter(|result| !result.success)?;
        let why = refused.error.as_deref().unwrap_or("no reason given");
        let text = format!("the acknowledgement of message {} was refused: {why}", refused.transaction_id);
        // The first attempt of a nack ends the lease, which is why a second one is refused.
        let lost = self.uncertain && ack.status != Status::Completed;
        let kind = if lost { ErrorKind::OutcomeUnknown } else { ErrorKind::Refused };
        Some(Error::new(kind, text).with_attempts(self.attempts))
    }
}

fn single(ack: &Ack) -> Vec<u8> {
    let mut body = b"{".to_vec();
    ack.write(&mut body);
    wire::field(&mut body, ",\"consumerGroup\":", ack.envelope.group());
    body.push(b'}');
    body
}

fn batch(acks: &[Ack]) -> Vec<u8> {
    let mut body = b"{\"acknowledgments\":[".to_vec();
    for (index, ack) in acks.iter().enumerate() {
        body.extend_from_slice(if index > 0 { b",{" } else { b"{" });
        ack.write(&mut body);
        body.push(b'}');
    }
    wire::field(&mut body, "],\"consumerGroup\":", acks[0].envelope.group());
    body.push(b'}');
    body
}

/// Acknowledgements for messages of one group. Await it to send them in one request. A refusal is not an error: check
/// [`Acked::success`].
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Acks {
    queen: Queen,
    acks: Vec<Ack>,
    deadline: Option<Duration>,
}

impl Acks {
    pub(crate) fn new(queen: Queen) -> Self {
        Self { queen, acks: Vec::new(), deadline: None }
    }

    fn add<T>(mut self, message: &Message<T>, status: Status, error: Option<String>) -> Self {
        self.acks.push(Ack::new(message, status, error));
        self
    }

    /// Marks the message as completed, with everything delivered before it in its partition.
    pub fn ack<T>(self, message: &Message<T>) -> Self {
        self.add(message, Status::Completed, None)
    }

    /// Marks all of these as completed.
    pub fn ack_all<'a, T: 'a>(self, messages: impl IntoIterator<Item = &'a Message<T>>) -> Self {
        messages.into_iter().fold(self, Self::ack)
    }

    /// Marks it as failed. It is delivered again until the queue's retries are exhausted.
    pub fn nack<T>(self, message: &Message<T>, error: impl Into<String>) -> Self {
        self.add(message, Status::Failed, Some(error.into()))
    }

    /// Returns it for redelivery, without counting a failure.
    pub fn retry<T>(self, message: &Message<T>) -> Self {
        self.add(message, Status::Retry, None)
    }

    /// Moves it to the dead letters now, and marks everything delivered before it in its partition as completed.
    pub fn dead_letter<T>(self, message: &Message<T>, reason: impl Into<String>) -> Self {
        self.add(message, Status::DeadLetter, Some(reason.into()))
    }

    /// Time limit of the call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }
}

impl IntoFuture for Acks {
    type Output = Result<Vec<Acked>, Error>;
    type IntoFuture = Pending<Vec<Acked>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            self.queen.shared.check_open()?;
            let results = send(&self.queen.shared, &self.acks, Form::Batch, self.deadline).await?;
            Ok(results.list)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::tests::message;
    use serde_json::{Value, json};

    #[test]
    fn an_acknowledgement_names_message_partition_lease_and_group() {
        let envelope = message("t\"1").envelope;
        let ack = Ack {
            envelope: envelope.clone(),
            status: Status::Failed,
            error: Some("no \"money\"".to_owned()),
        };
        let fields = json!({"transactionId": "t\"1", "messageId": "1", "partitionId": "p1", "leaseId": "lease", "status": "failed",
                            "error": "no \"money\"", "consumerGroup": "billing"});
        assert_eq!(serde_json::from_slice::<Value>(&single(&ack)).unwrap(), fields);
        let done = Ack { envelope, status: Status::Completed, error: None };
        let many: Value = serde_json::from_slice(&batch(&[ack, done])).unwrap();
        assert_eq!(many["consumerGroup"], "billing");
        assert_eq!(many["acknowledgments"][1]["status"], "completed");
        assert_eq!(many["acknowledgments"].as_array().unwrap().len(), 2);
    }
}

//! A delivered message, and the calls to acknowledge it.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use hyper::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::ack::{self, Ack, Acked, Form, Status};
use crate::brokers::Route;
use crate::call::Call;
use crate::delivery::Envelope;
use crate::error::{Error, ErrorKind};
use crate::push::Pending;
use crate::queen::Shared;
use crate::traces::NewTrace;
use crate::wire;

/// Brokers count in whole seconds.
const LEASE_SECONDS_MAX: u64 = 86_400;

/// A message with its payload as `T`. Unless it was auto-acked it is leased: no other consumer of the group receives messages of
/// its partition until it is acknowledged or the lease ends. It keeps the response that contained it in memory.
#[derive(Clone)]
pub struct Message<T> {
    /// The payload.
    pub data: T,
    pub(crate) envelope: Envelope,
}

/// Identifies a message that was popped elsewhere.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// Message id. `None`: the first message with this transaction id in the lease.
    pub id: Option<String>,
    /// Transaction id.
    pub transaction_id: String,
    /// Id of the partition.
    pub partition_id: String,
    /// The lease it was delivered under. `None`: the lease is not checked. With access control, it is required while the
    /// partition is leased.
    pub lease_id: Option<String>,
    /// The consumer group. `None`: queue mode.
    pub group: Option<String>,
}

impl<T> Message<T> {
    /// Message id, assigned by the broker.
    pub fn id(&self) -> &str {
        self.envelope.id()
    }

    /// Transaction id, chosen by the producer.
    pub fn transaction_id(&self) -> &str {
        self.envelope.transaction_id()
    }

    /// Name of the queue.
    pub fn queue(&self) -> &str {
        self.envelope.queue()
    }

    /// Name of the partition.
    pub fn partition(&self) -> &str {
        self.envelope.partition()
    }

    /// Id of the partition.
    pub fn partition_id(&self) -> &str {
        self.envelope.partition_id()
    }

    /// The consumer group.
    pub fn group(&self) -> &str {
        self.envelope.group()
    }

    /// The lease it was delivered under. Empty if it was auto-acked.
    pub fn lease_id(&self) -> &str {
        self.envelope.lease_id()
    }

    /// When it was pushed: ISO 8601, in UTC.
    pub fn created_at(&self) -> &str {
        self.envelope.created_at()
    }

    /// How often it has failed before. 0 for all but the first message of a partition.
    pub fn retry_count(&self) -> u32 {
        self.envelope.retry_count()
    }

    /// The trace id that its producer set.
    pub fn trace_id(&self) -> Option<&str> {
        self.envelope.trace_id()
    }

    /// The W3C trace context to continue.
    pub fn traceparent(&self) -> Option<&str> {
        self.envelope.traceparent()
    }

    /// The `tracestate` of the trace context.
    pub fn tracestate(&self) -> Option<&str> {
        self.envelope.tracestate()
    }

    /// The original transaction id of a dead letter that was replayed with a new [`transaction_id`](Self::transaction_id).
    pub fn original_transaction_id(&self) -> Option<&str> {
        self.envelope.original_transaction_id()
    }

    /// The authenticated producer, if known.
    pub fn producer(&self) -> Option<&str> {
        self.envelope.producer()
    }

    /// Returns the payload.
    pub fn into_data(self) -> T {
        self.data
    }

    /// Marks the message as completed, with everything delivered before it in its partition.
    pub fn ack(&self) -> Settle {
        Settle::new(Ack::new(self, Status::Completed, None))
    }

    /// Marks it as failed. It is redelivered until the queue's retries are exhausted, and then becomes a dead letter.
    pub fn nack(&self, error: impl Into<String>) -> Settle {
        Settle::new(Ack::new(self, Status::Failed, Some(error.into())))
    }

    /// Returns it for redelivery, without counting a failure.
    pub fn retry(&self) -> Settle {
        Settle::new(Ack::new(self, Status::Retry, None))
    }

    /// Moves it to the dead letters now, and marks everything delivered before it in its partition as completed.
    pub fn dead_letter(&self, reason: impl Into<String>) -> Settle {
        Settle::new(Ack::new(self, Status::DeadLetter, Some(reason.into())))
    }

    /// Extends the lease of everything delivered with it to this long from now. Never shortens it.
    pub fn renew(&self, time: Duration) -> Renew {
        Renew { envelope: self.envelope.clone(), time, deadline: None }
    }

    /// Attaches a note to it, to be read with [`Queen::traces`](crate::Queen::traces).
    pub fn trace<D: Serialize + ?Sized>(&self, data: &D) -> NewTrace {
        NewTrace::new(self.envelope.clone(), data)
    }
}

impl Message<Box<RawValue>> {
    /// Decodes the payload as another type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<Message<T>, Error> {
        let data = serde_json::from_str(self.data.get()).map_err(|error| self.envelope.undecodable(error))?;
        Ok(Message { data, envelope: self.envelope.clone() })
    }
}

impl<T: fmt::Debug> fmt::Debug for Message<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = out.debug_struct("Message");
        debug.field("queue", &self.queue()).field("partition", &self.partition());
        debug
            .field("transaction_id", &self.transaction_id())
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

/// An acknowledgement of one message. Await it to send it.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Settle {
    ack: Ack,
    deadline: Option<Duration>,
}

impl Settle {
    fn new(ack: Ack) -> Self {
        Self { ack, deadline: None }
    }

    /// Time limit of the call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    async fn send(self) -> Result<Acked, Error> {
        let Self { ack, deadline } = self;
        let shared = ack.envelope.shared().clone();
        shared.check_open()?;
        // A nack must not overtake pending acknowledgements of its partition: those messages would be redelivered too.
        let before = match ack.status {
            Status::Failed | Status::Retry => ack.envelope.handled_before(),
            Status::Completed | Status::DeadLetter => None,
        };
        let done = |envelope| Ack { envelope, status: Status::Completed, error: None };
        let acks: Vec<Ack> = before.map(done).into_iter().chain([ack]).collect();
        let mut results = ack::send(&shared, &acks, Form::Single, deadline).await?;
        let last = acks.len() - 1;
        match results.refusal(last, &acks[last]) {
            Some(error) => Err(error),
            None => results.list.pop().ok_or_else(|| Error::new(ErrorKind::Decode, "no result")),
        }
    }
}

impl IntoFuture for Settle {
    type Output = Result<Acked, Error>;
    type IntoFuture = Pending<Acked>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A renewal of a lease. Await it to send it.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Renew {
    envelope: Envelope,
    time: Duration,
    deadline: Option<Duration>,
}

impl Renew {
    /// Time limit of the call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    async fn send(self) -> Result<Renewed, Error> {
        let (envelope, shared) = (&self.envelope, self.envelope.shared());
        if envelope.is_auto_acked() {
            return Err(Error::bad_use("the message was acknowledged when it was delivered (auto_ack)"));
        }
        if envelope.lease_id().is_empty() {
            return Err(Error::bad_use("a message that was taken without a lease has none to renew"));
        }
        let seconds = whole_seconds("the time to renew for", self.time)?;
        shared.check_open()?;
        let deadline = self.deadline.unwrap_or(shared.deadline);
        renew(shared, envelope.lease_id(), envelope.broker(), seconds, shared.timeout, deadline).await
    }
}

impl IntoFuture for Renew {
    type Output = Result<Renewed, Error>;
    type IntoFuture = Pending<Renewed>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

/// A renewed lease.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Renewed {
    /// Number of partitions in the lease.
    pub renewed: u32,
    /// When it ends: ISO 8601, in UTC.
    pub expires_at: Option<String>,
}

/// Also works while the client is being closed.
pub(crate) async fn renew(
    shared: &Shared,
    lease_id: &str,
    broker: usize,
    seconds: u64,
    timeout: Duration,
    deadline: Duration,
) -> Result<Renewed, Error> {
    let path = wire::path(&["/api/v1/lease/", lease_id, "/extend"]);
    let body = format!("{{\"seconds\":{seconds}}}");
    let usual = shared.usual(Method::POST, path, body.into(), Route::At(broker), Some(deadline));
    let answer = shared.call_anyway(Call { timeout, ..usual }).await?;
    wire::object(&answer.body).map_err(|error| error.with_attempts(answer.attempts))
}

/// Leases are counted in seconds; fractions are rounded up.
pub(crate) fn whole_seconds(what: &str, time: Duration) -> Result<u64, Error> {
    let seconds = time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0));
    match seconds {
        0 => Err(Error::bad_use(format!("{what} must not be 0"))),
        1..=LEASE_SECONDS_MAX => Ok(seconds),
        _ => Err(Error::bad_use(format!("{what} must not be longer than a day"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_second_is_a_whole_one_and_none_is_refused() {
        assert_eq!(whole_seconds("it", Duration::from_millis(1)).unwrap(), 1);
        assert_eq!(whole_seconds("it", Duration::from_secs(60)).unwrap(), 60);
        for time in [Duration::ZERO, Duration::from_secs(86_401), Duration::MAX] {
            assert_eq!(whole_seconds("it", time).unwrap_err().kind(), ErrorKind::BadUse);
        }
    }

    #[tokio::test]
    async fn a_message_that_was_taken_without_a_lease_has_none_to_renew() {
        let message = crate::Queen::connect("http://localhost").unwrap().taken(Taken::default());
        let error = message.renew(Duration::from_secs(1)).await.unwrap_err();
        assert!(error.kind() == ErrorKind::BadUse && error.text().contains("lease"), "{error}");
    }
}

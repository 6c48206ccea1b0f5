//! A message that was delivered, and what can be said about it.

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

/// As brokers count them.
const LEASE_SECONDS_MAX: u64 = 86_400;

/// A message with its payload as `T`. Unless it was auto-acked it is leased: nobody else of the group gets anything of
/// its partition until it is acknowledged, or the lease ends. It keeps the answer it came with in memory.
#[derive(Clone)]
pub struct Message<T> {
    /// The payload.
    pub data: T,
    pub(crate) envelope: Envelope,
}

/// A message that somebody else has popped, by what he was told about it.
#[derive(Debug, Clone, Default)]
pub struct Taken {
    /// The broker's id. `None`: of several messages with this transaction id, the first is meant.
    pub id: Option<String>,
    /// The producer's id.
    pub transaction_id: String,
    /// The broker's id of its partition.
    pub partition_id: String,
    /// The lease it was delivered under. `None`: the lease is not checked. With access control on, it is required while the
    /// partition is leased.
    pub lease_id: Option<String>,
    /// Who popped it. `None`: one of all who name no group.
    pub group: Option<String>,
}

impl<T> Message<T> {
    /// The broker's id.
    pub fn id(&self) -> &str {
        self.envelope.id()
    }

    /// The producer's id.
    pub fn transaction_id(&self) -> &str {
        self.envelope.transaction_id()
    }

    /// Its queue.
    pub fn queue(&self) -> &str {
        self.envelope.queue()
    }

    /// Its ordered lane.
    pub fn partition(&self) -> &str {
        self.envelope.partition()
    }

    /// The broker's id of the lane.
    pub fn partition_id(&self) -> &str {
        self.envelope.partition_id()
    }

    /// Who read it.
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

    /// How often its partition has failed since it last succeeded.
    pub fn retry_count(&self) -> u32 {
        self.envelope.retry_count()
    }

    /// The UUID its producer sent with it.
    pub fn trace_id(&self) -> Option<&str> {
        self.envelope.trace_id()
    }

    /// The W3C trace context to go on with.
    pub fn traceparent(&self) -> Option<&str> {
        self.envelope.traceparent()
    }

    /// What goes with it.
    pub fn tracestate(&self) -> Option<&str> {
        self.envelope.tracestate()
    }

    /// The producer's id of a message that was replayed from a dead letter and has a new [`transaction_id`](Self::transaction_id).
    pub fn original_transaction_id(&self) -> Option<&str> {
        self.envelope.original_transaction_id()
    }

    /// Who pushed it, if the broker knows its producers.
    pub fn producer(&self) -> Option<&str> {
        self.envelope.producer()
    }

    /// The payload alone.
    pub fn into_data(self) -> T {
        self.data
    }

    /// It is done, and with it everything delivered before it in its partition.
    pub fn ack(&self) -> Settle {
        Settle::new(Ack::new(self, Status::Completed, None))
    }

    /// It failed, and comes again as long as the queue's retries last. Then it becomes a dead letter.
    pub fn nack(&self, error: impl Into<String>) -> Settle {
        Settle::new(Ack::new(self, Status::Failed, Some(error.into())))
    }

    /// It comes again, at no cost.
    pub fn retry(&self) -> Settle {
        Settle::new(Ack::new(self, Status::Retry, None))
    }

    /// It becomes a dead letter now, and everything delivered before it in its partition is done.
    pub fn dead_letter(&self, reason: impl Into<String>) -> Settle {
        Settle::new(Ack::new(self, Status::DeadLetter, Some(reason.into())))
    }

    /// Keeps it, and all that was delivered with it, for so long from now on. Never shortens.
    pub fn renew(&self, time: Duration) -> Renew {
        Renew { envelope: self.envelope.clone(), time, deadline: None }
    }

    /// Notes something about it, to be read with [`Queen::traces`](crate::Queen::traces).
    pub fn trace<D: Serialize + ?Sized>(&self, data: &D) -> NewTrace {
        NewTrace::new(self.envelope.clone(), data)
    }
}

impl Message<Box<RawValue>> {
    /// The payload as something else, for those who decide by looking at it.
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

/// An acknowledgement of one message. Await it.
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Settle {
    ack: Ack,
    deadline: Option<Duration>,
}

impl Settle {
    fn new(ack: Ack) -> Self {
        Self { ack, deadline: None }
    }

    /// How long it may take with all attempts.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    async fn send(self) -> Result<Acked, Error> {
        let Self { ack, deadline } = self;
        let shared = ack.envelope.shared().clone();
        shared.check_open()?;
        // A nack must not overtake what a consumer has still to tell of the same partition: it would come again too.
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

/// An extension of a lease. Await it.
#[derive(Debug)]
#[must_use = "nothing is sent before it is awaited"]
pub struct Renew {
    envelope: Envelope,
    time: Duration,
    deadline: Option<Duration>,
}

impl Renew {
    /// How long it may take with all attempts.
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

/// A lease that was extended.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Renewed {
    /// How many partitions it covers.
    pub renewed: u32,
    /// When it ends: ISO 8601, in UTC.
    pub expires_at: Option<String>,
}

/// Goes on if the client is closed meanwhile.
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

/// Leases are counted in seconds; a part of one is a whole one.
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

//! Pops: messages under a lease, or with auto-ack.

use std::future::IntoFuture;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use serde::de::DeserializeOwned;

use crate::ack::{self, Ack, Form, Status};
use crate::call::Call;
use crate::clock;
use crate::delivery::{self, Batch};
use crate::error::Error;
use crate::message::Message;
use crate::push::Pending;
use crate::queen::Queen;
use crate::want::{Source, Subscription, Want};

/// Time for the response in addition to the wait.
pub(crate) const ANSWER_PATIENCE: Duration = Duration::from_secs(5);
/// Time for retries of a call that waits.
const RETRY_PATIENCE: Duration = Duration::from_secs(30);
/// Time to give messages back, regardless of the deadline: the broker has just responded.
const GIVE_BACK_PATIENCE: Duration = Duration::from_secs(1);

/// A pop. Await it for the messages; there may be none.
///
/// If a payload cannot be decoded as `T`, the pop fails and all its messages are given back; the error contains them. If the
/// message is the first of its partition it is nacked, so that it becomes a dead letter eventually. In the middle of a batch it
/// blocks: pop one at a time, or as `Box<RawValue>`, which accepts anything.
#[derive(Debug)]
#[must_use = "nothing is sent until it is awaited"]
pub struct Pop<T> {
    queen: Queen,
    want: Want,
    deadline: Option<Duration>,
    payload: PhantomData<fn() -> T>,
}

impl<T> Pop<T> {
    pub(crate) fn new(queen: Queen, source: Source, group: Option<String>) -> Self {
        Self { queen, want: Want::new(source, group), deadline: None, payload: PhantomData }
    }

    /// Maximum number of messages over all partitions. Default 1.
    pub fn batch(mut self, messages: u32) -> Self {
        self.want.batch = messages;
        self
    }

    /// Maximum number of partitions. Default 1.
    pub fn partitions(mut self, partitions: u32) -> Self {
        self.want.partitions = partitions;
        self
    }

    /// Wait for a message, at most this long.
    pub fn wait(mut self, time: Duration) -> Self {
        self.want.wait = time;
        self
    }

    /// Lease time in whole seconds. By default, the queue's.
    pub fn lease(mut self, time: Duration) -> Self {
        self.want.lease = Some(time);
        self
    }

    /// Acknowledge at delivery: no lease, at-most-once. If the response is lost so are the messages, so it is not retried, and fails
    /// with [`OutcomeUnknown`](crate::ErrorKind::OutcomeUnknown).
    pub fn auto_ack(mut self) -> Self {
        self.want.auto_ack = true;
        self
    }

    /// Where a new group starts.
    pub fn subscription(mut self, subscription: Subscription) -> Self {
        self.want.subscription = Some(subscription);
        self
    }

    /// Time limit of the call, including retries. Must be longer than its wait.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    async fn send(self) -> Result<Vec<Message<T>>, Error>
    where
        T: DeserializeOwned,
    {
        let Self { queen, want, deadline, .. } = self;
        want.check()?;
        let shared = &queen.shared;
        let waits = !want.wait.is_zero();
        if deadline.is_some_and(|deadline| deadline.is_zero() || deadline <= want.wait) {
            return Err(Error::bad_use("the deadline of a pop must be longer than its wait"));
        }
        let usual = if waits { want.wait + RETRY_PATIENCE } else { shared.deadline };
        let deadline = deadline.unwrap_or(usual);
        let until = clock::after(clock::now(), deadline);
        let call = Call {
            method: Method::GET,
            path: want.path(None),
            body: Bytes::new(),
            route: want.source.route(want.group.as_deref(), 0),
            timeout: if waits { want.wait + ANSWER_PATIENCE } else { shared.timeout },
            deadline,
            once: want.auto_ack,
        };
        let answer = shared.call(call).await?;
        let Some(batch) = delivery::read(shared, &want, answer)? else { return Ok(Vec::new()) };
        match batch.decode_all() {
            Ok(messages) => Ok(messages),
            Err(error) => {
                let error = error.with_messages(batch.decode_all().unwrap_or_default());
                if want.auto_ack {
                    return Err(error.with_hint("messages() of this error returns all delivered messages"));
                }
                let left = until.saturating_duration_since(clock::now());
                refuse::<T>(&batch, left.max(GIVE_BACK_PATIENCE)).await;
                Err(error
                    .with_hint("all were given back: pop one at a time, or as Box<RawValue>, to get past it"))
            }
        }
    }
}

/// Gives all messages back. One that cannot be decoded is nacked, so that it becomes a dead letter eventually, but only if it is
/// the first of its partition: a dead letter completes everything before it. The message behind it then gives back the rest.
fn refusals<T: DeserializeOwned>(batch: &Arc<Batch>) -> Vec<Ack> {
    let mut acks = Vec::new();
    for (first, next) in batch.heads() {
        match batch.decode::<T>(first) {
            Ok(_) => acks.push(batch.ack(first, Status::Retry, None)),
            Err(error) => {
                acks.push(batch.ack(first, Status::Failed, Some(error.text().to_owned())));
                acks.extend(next.map(|next| batch.ack(next, Status::Retry, None)));
            }
        }
    }
    acks
}

async fn refuse<T: DeserializeOwned>(batch: &Arc<Batch>, deadline: Duration) {
    // If this fails, the lease ends by itself; the caller gets the decoding error.
    let _ = ack::send(&batch.shared, &refusals::<T>(batch), Form::Batch, Some(deadline)).await;
}

impl<T: DeserializeOwned + Send + 'static> IntoFuture for Pop<T> {
    type Output = Result<Vec<Message<T>>, Error>;
    type IntoFuture = Pending<Vec<Message<T>>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::tests::batch;

    #[test]
    fn only_the_first_message_of_a_partition_may_be_nacked_and_nothing_stays_leased() {
        let line = |partition: &str, index: usize, data: &str| {
            format!(
                r#"{{"id":"{index}","transactionId":"t{index}","data":{data},"partitionId":"{partition}"}}"#
            )
        };
        let lines = [
            line("middle", 0, "1"),
            line("first", 1, "\"one\""),
            line("middle", 2, "\"two\""),
            line("first", 3, "\"three\""),
            line("alone", 4, "\"four\""),
            line("first", 5, "5"),
        ];
        let batch = batch(&format!(r#"{{"leaseId":"L","messages":[{}]}}"#, lines.join(",")));
        let told: Vec<_> =
            refusals::<u32>(&batch).iter().map(|ack| (ack.envelope.index(), ack.status)).collect();
        let expected = [(0, Status::Retry), (1, Status::Failed), (3, Status::Retry), (4, Status::Failed)];
        assert_eq!(told, expected);
    }
}

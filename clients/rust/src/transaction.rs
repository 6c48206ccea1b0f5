//! Transactions: acknowledgements and pushes that are committed together or not at all.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use hyper::Method;
use serde::Deserialize;

use crate::ack::{Ack, Acked, Status};
use crate::brokers::Route;
use crate::error::{Error, ErrorKind};
use crate::item::{Place, Pushable};
use crate::message::Message;
use crate::push::{PushStatus, Pushed};
use crate::queen::Queen;
use crate::wire;

/// The operations of a transaction, in order. Nothing is sent until [`commit`](Self::commit).
///
/// ```no_run
/// # async fn example(queen: queen_client::Queen, message: queen_client::Message<u32>) -> Result<(), queen_client::Error> {
/// queen.transaction().ack(&message).push("invoices", "customer-7", &42).commit().await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "nothing is sent until commit()"]
pub struct Transaction {
    queen: Queen,
    operations: Vec<Operation>,
    /// The first invalid operation.
    refused: Option<Error>,
    deadline: Option<Duration>,
    /// Commits that may have been executed: in progress, dropped, failed without a clear response, or successful.
    doubts: AtomicU32,
}

#[derive(Debug)]
struct Push {
    lane: (String, String),
    json: Vec<u8>,
}

#[derive(Debug)]
enum Operation {
    Ack(Ack),
    Push(Push),
}

/// A committed transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Committed {
    /// Id of the transaction.
    pub transaction_id: String,
    /// Results of its pushes, in order.
    pub pushed: Vec<Pushed>,
    /// Results of its acknowledgements, in order.
    pub acked: Vec<Acked>,
}

impl Transaction {
    pub(crate) fn new(queen: Queen) -> Self {
        Self { queen, operations: Vec::new(), refused: None, deadline: None, doubts: AtomicU32::new(0) }
    }

    /// Marks the message as completed, with everything delivered before it in its partition.
    pub fn ack<T>(self, message: &Message<T>) -> Self {
        self.add_ack(Ack::new(message, Status::Completed, None))
    }

    /// Marks the message as failed. It is redelivered until the queue's retries are exhausted.
    pub fn nack<T>(self, message: &Message<T>, error: impl Into<String>) -> Self {
        self.add_ack(Ack::new(message, Status::Failed, Some(error.into())))
    }

    /// Returns the message for redelivery, without counting a failure.
    pub fn retry<T>(self, message: &Message<T>) -> Self {
        self.add_ack(Ack::new(message, Status::Retry, None))
    }

    /// Moves the message to the dead letters, and marks everything delivered before it in its partition as completed.
    pub fn dead_letter<T>(self, message: &Message<T>, reason: impl Into<String>) -> Self {
        self.add_ack(Ack::new(message, Status::DeadLetter, Some(reason.into())))
    }

    fn add_ack(mut self, ack: Ack) -> Self {
        match ack.check() {
            Ok(()) => self.operations.push(Operation::Ack(ack)),
            Err(error) => self.refused = self.refused.or(Some(error)),
        }
        self
    }

    /// Pushes a message. Its id is generated here, so that the transaction can be committed again.
    pub fn push(
        mut self,
        queue: impl AsRef<str>,
        partition: impl AsRef<str>,
        message: impl Pushable,
    ) -> Self {
        let place = Place { queue: queue.as_ref(), partition: partition.as_ref() };
        let partition = message.own_partition().unwrap_or(place.partition).to_owned();
        let mut json = Vec::new();
        match message.write(&mut json, place) {
            Ok(()) => {
                let lane = (place.queue.to_owned(), partition);
                self.operations.push(Operation::Push(Push { lane, json }));
            }
            Err(error) => self.refused = self.refused.or(Some(error)),
        }
        self
    }

    /// Time limit of the call, including retries.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Commits all operations or none. [`RolledBack`](ErrorKind::RolledBack): nothing was executed.
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown): the response to this or an earlier commit of the same transaction was lost, and
    /// the next attempt was refused because the first may have ended the lease. In a consumer that is harmless: if nothing was
    /// executed, the messages are redelivered. After any other error the outcome may be open too; commit again.
    ///
    /// # Cancel safety
    /// If dropped, it may or may not be executed. It can be committed again.
    pub async fn commit(&self) -> Result<Committed, Error> {
        if let Some(error) = &self.refused {
            return Err(error.clone());
        }
        if self.operations.is_empty() {
            return Err(Error::bad_use("a transaction needs at least one operation"));
        }
        let path = "/api/v1/transaction".to_owned();
        let shared = &self.queen.shared;
        let call = shared.usual(Method::POST, path, self.body().into(), self.route(), self.deadline);
        shared.check_open()?;
        let doubted = self.doubts.fetch_add(1, SeqCst) > 0;
        let answer = match shared.call_anyway(call).await {
            Ok(answer) => answer,
            Err(error) => {
                if !error.is_uncertain() {
                    self.doubts.fetch_sub(1, SeqCst);
                }
                return Err(error);
            }
        };
        let outcome: Outcome = wire::decode(&answer.body)?;
        if !outcome.success {
            let why = outcome.error.unwrap_or_else(|| "no reason given".to_owned());
            return Err(self.refusal(&why, doubted, answer.uncertain).with_attempts(answer.attempts));
        }
        let committed = outcome.into_committed();
        self.acks().zip(&committed.acked).for_each(|(ack, acked)| ack.note(acked));
        Ok(committed)
    }

    /// A repeated push is a duplicate and no reason for a refusal, so without acknowledgements a refusal is certain.
    fn refusal(&self, why: &str, doubted: bool, uncertain: bool) -> Error {
        if !uncertain {
            self.doubts.fetch_sub(1, SeqCst);
        }
        match (doubted || uncertain) && self.acks().next().is_some() {
            false => Error::new(ErrorKind::RolledBack, why.to_owned()),
            true => {
                let text = format!("it may have been committed before, and then the broker refused: {why}");
                Error::new(ErrorKind::OutcomeUnknown, text)
            }
        }
    }

    fn acks(&self) -> impl Iterator<Item = &Ack> {
        self.operations.iter().filter_map(|operation| match operation {
            Operation::Ack(ack) => Some(ack),
            Operation::Push(_) => None,
        })
    }

    /// To the broker that delivered the messages; without messages, to the one with affinity to the partition, if there is only one.
    fn route(&self) -> Route {
        if let Some(ack) = self.acks().next() {
            return Route::At(ack.envelope.broker());
        }
        let mut lanes = self.operations.iter().filter_map(|operation| match operation {
            Operation::Push(push) => Some(&push.lane),
            Operation::Ack(_) => None,
        });
        match lanes.next() {
            Some(first) if lanes.all(|lane| lane == first) => Route::lane(&first.0, &first.1),
            _ => Route::First,
        }
    }

    fn body(&self) -> Vec<u8> {
        let mut body = b"{\"operations\":[".to_vec();
        for (index, operation) in self.operations.iter().enumerate() {
            if index > 0 {
                body.push(b',');
            }
            match operation {
                Operation::Push(push) => {
                    body.extend_from_slice(b"{\"type\":\"push\",\"items\":[");
                    body.extend_from_slice(&push.json);
                    body.extend_from_slice(b"]}");
                }
                Operation::Ack(ack) => {
                    body.extend_from_slice(b"{\"type\":\"ack\",");
                    ack.write(&mut body);
                    wire::field(&mut body, ",\"consumerGroup\":", ack.envelope.group());
                    body.push(b'}');
                }
            }
        }
        // If another consumer has completed the message under a later lease, acknowledging it again would succeed, and the pushes
        // would be executed twice.
        let leases = self.acks().map(|ack| ack.envelope.lease_id());
        let mut leases: Vec<&str> = leases.filter(|lease| !lease.is_empty()).collect();
        leases.sort_unstable();
        leases.dedup();
        body.extend_from_slice(b"],\"requiredLeases\":[");
        for (index, lease) in leases.into_iter().enumerate() {
            wire::field(&mut body, if index > 0 { "," } else { "" }, lease);
        }
        body.extend_from_slice(b"]}");
        body
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outcome {
    #[serde(default)]
    transaction_id: String,
    success: bool,
    #[serde(default)]
    error: Option<String>,
    #[serde(default)]
    results: Vec<Line>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[derive(Default)]
struct Line {
    r#type: String,
    success: bool,
    transaction_id: String,
    message_id: String,
    partition_id: Option<String>,
    duplicate: bool,
    dlq: bool,
    error: Option<String>,
}

impl Outcome {
    fn into_committed(self) -> Committed {
        let (mut pushed, mut acked) = (Vec::new(), Vec::new());
        for line in self.results {
            if line.r#type == "push" {
                pushed.push(Pushed {
                    message_id: line.message_id,
                    transaction_id: line.transaction_id,
                    status: if line.duplicate { PushStatus::Duplicate } else { PushStatus::Queued },
                    partition_id: line.partition_id.map(Into::into),
                    operation: None,
                    error: None,
                });
            } else {
                acked.push(Acked {
                    transaction_id: line.transaction_id,
                    success: line.success,
                    error: line.error,
                    lease_released: false,
                    dead_letter: line.dlq,
                    noop: false,
                    operation: None,
                });
            }
        }
        Committed { transaction_id: self.transaction_id, pushed, acked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::tests::message;
    use serde_json::{Value, json};

    fn queen() -> Queen {
        Queen::connect("http://localhost").unwrap()
    }

    #[test]
    fn ids_are_minted_when_a_push_is_added_and_stay() {
        let transaction = queen().transaction().push("invoices", "p", &1).push("invoices", "p", &2);
        let body = transaction.body();
        assert_eq!(body, transaction.body());
        let read: Value = serde_json::from_slice(&body).unwrap();
        let id = |index: usize| {
            read["operations"][index]["items"][0]["transactionId"].as_str().unwrap().to_owned()
        };
        assert!(id(0) < id(1));
    }

    #[test]
    fn acknowledgements_carry_their_lease_and_require_it() {
        let transaction = queen().transaction().ack(&message("t1")).nack(&message("t2"), "no");
        let read: Value = serde_json::from_slice(&transaction.body()).unwrap();
        assert_eq!(
            read,
            json!({"operations": [
                {"type": "ack", "transactionId": "t1", "messageId": "1", "partitionId": "p1", "leaseId": "lease", "status": "completed",
                 "consumerGroup": "billing"},
                {"type": "ack", "transactionId": "t2", "messageId": "1", "partitionId": "p1", "leaseId": "lease", "status": "failed",
                 "error": "no", "consumerGroup": "billing"}],
                "requiredLeases": ["lease"]})
        );
        assert_eq!(transaction.route(), Route::At(0));
    }

    #[test]
    fn a_message_that_was_taken_without_a_lease_requires_none() {
        let queen = queen();
        let transaction = queen.transaction().ack(&queen.taken(crate::Taken::default()));
        let read: Value = serde_json::from_slice(&transaction.body()).unwrap();
        assert_eq!(read["requiredLeases"], json!([]));
    }

    #[test]
    fn a_refusal_is_a_rollback_only_as_long_as_nothing_may_have_happened() {
        let commit = |transaction: &Transaction, uncertain| {
            let doubted = transaction.doubts.fetch_add(1, SeqCst) > 0;
            transaction.refusal("lease", doubted, uncertain).kind()
        };
        let acks = queen().transaction().ack(&message("t1"));
        assert_eq!(commit(&acks, false), ErrorKind::RolledBack);
        assert_eq!(commit(&acks, false), ErrorKind::RolledBack);
        assert_eq!(commit(&acks, true), ErrorKind::OutcomeUnknown);
        assert_eq!(
            commit(&acks, false),
            ErrorKind::OutcomeUnknown,
            "the outcome stays unknown for the transaction"
        );
        let pushes = queen().transaction().push("q", "p", &1);
        assert_eq!(commit(&pushes, true), ErrorKind::RolledBack);
    }

    #[test]
    fn pushes_to_one_partition_use_its_broker_and_others_any() {
        let one = queen().transaction().push("a", "p", &1).push("a", "p", &2);
        assert_eq!(one.route(), Route::lane("a", "p"));
        assert_eq!(one.push("b", "p", &3).route(), Route::First);
    }

    #[tokio::test]
    async fn what_makes_no_sense_is_refused_before_it_is_sent() {
        let kind = async |transaction: Transaction| transaction.commit().await.unwrap_err().kind();
        assert_eq!(kind(queen().transaction()).await, ErrorKind::BadUse);
        assert_eq!(kind(queen().transaction().push("", "p", &1)).await, ErrorKind::BadUse);
        assert_eq!(kind(queen().transaction().push("q", "p", &1).push("q", "", &1)).await, ErrorKind::BadUse);
    }
}

//! Transaction: pushes and acks in one PostgreSQL transaction, never merged with others. This is the path of a
//! request: parse, resolve, submit, report. What happens in PostgreSQL is in `transaction/flight.rs`.

mod flight;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use queen_protocol::{
    AckItem, AckResult, LeaseId, Operation, PushItem, TransactionBody, TransactionOutcome, TransactionResult,
};
use uuid::Uuid;

use self::flight::{Committed, Ended};
use super::ack;
use super::ack_outcome::{BAD_LEASE, unanswered};
use super::parcel::{Message, Missing, Placed};
use super::push;
use crate::Engine;
use crate::clock;
use crate::db::procedures::Refusal;
use crate::db::{Error as DbError, RETRY_PAUSE};
use crate::error::Error;
use crate::load::Kind;

pub use self::flight::Transaction;

/// How often a transaction looks its partitions up again after they were deleted under it.
const REOPENS_MAX: usize = 5;

/// A transaction cannot be deferred, so it waits until what is ahead of it has landed.
const BEHIND_PAUSE: Duration = Duration::from_millis(20);

/// Why nothing was committed.
enum Stop {
    /// The response reports this.
    RolledBack(String),
    Failed(Error),
}

impl<E: Into<Error>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}

/// What a body asks for.
struct Asked<'a> {
    pushes: Vec<&'a PushItem<'a>>,
    acks: Vec<AckItem>,
    required: Vec<(String, LeaseId)>,
}

/// A transaction with its partitions and offsets, and which pushes and acks of the body each of its parcels and acks carries.
struct Resolved {
    transaction: Transaction,
    pushes: Vec<Vec<usize>>,
    acks: Vec<Vec<usize>>,
    /// Of the acks, not filled in yet.
    results: Vec<AckResult>,
}

/// The deduplication window and the encryption of queues that are not new.
type Queues = HashMap<Arc<str>, (i32, bool)>;

impl Engine {
    pub async fn transaction(
        &self,
        body: &TransactionBody<'_>,
        producer_sub: Option<&str>,
    ) -> Result<TransactionOutcome, Error> {
        self.check_open()?;
        let transaction_id = Uuid::now_v7();
        let outcome =
            |success, error, results| TransactionOutcome { transaction_id, success, error, results };
        match self.execute(transaction_id, body, producer_sub).await {
            Ok(results) => Ok(outcome(true, None, results)),
            Err(Stop::RolledBack(reason)) => Ok(outcome(false, Some(reason), Vec::new())),
            Err(Stop::Failed(error)) => Err(error),
        }
    }

    async fn execute(
        &self,
        id: Uuid,
        body: &TransactionBody<'_>,
        producer_sub: Option<&str>,
    ) -> Result<Vec<TransactionResult>, Stop> {
        let asked = parse(body)?;
        let minted: Vec<String> = asked.pushes.iter().map(|item| push::mint(item)).collect();
        let messages = asked.pushes.iter().zip(&minted);
        let messages: Vec<Message<'_>> =
            messages.map(|(item, id)| Message::new(item, id, producer_sub)).collect();
        let (started, mut reopened, mut queues) = (clock::now(), 0, Queues::new());
        while reopened < REOPENS_MAX {
            let Some(mut resolved) = self.resolve(id, &asked, &messages, &queues, started).await? else {
                continue;
            };
            match self.lanes.transaction.submit(resolved.transaction).await {
                Ok(Ended::Committed(committed)) => {
                    for (members, outcome) in resolved.acks.into_iter().zip(&committed.acks) {
                        outcome.write(members, &mut resolved.results);
                    }
                    self.count(&committed, &resolved.results);
                    return Ok(report(body, &messages, &resolved.pushes, &committed, &resolved.results));
                }
                Ok(Ended::RolledBack(reason)) => return Err(Stop::RolledBack(reason)),
                Ok(Ended::Refused(Refusal::NoQueue, queue)) => {
                    return Err(Error::NoQueue(queue.to_string()).into());
                }
                Ok(Ended::Refused(refusal, queue)) => {
                    return Err(Stop::RolledBack(self.shared.refusal(refusal, &queue)));
                }
                Ok(Ended::NotNew(found)) => {
                    reopened += 1;
                    queues.extend(found);
                }
                Ok(Ended::PartitionGone) => reopened += 1,
                Ok(Ended::Behind) => self.wait_behind(started).await?,
                Ok(Ended::Busy) => return Err(DbError::Busy.into()),
                Err(error) if error.is_data() => return Err(Stop::RolledBack(error.public_text())),
                Err(error) => return Err(error.into()),
            }
        }
        let reason = "a partition was deleted again and again while it was pushed to";
        Err(Stop::RolledBack(reason.to_owned()))
    }

    /// Turns names into partitions and offsets. `None`: something was in the way for a moment.
    async fn resolve(
        &self,
        id: Uuid,
        asked: &Asked<'_>,
        messages: &[Message<'_>],
        queues: &Queues,
        started: Instant,
    ) -> Result<Option<Resolved>, Stop> {
        let items = asked.acks.iter().enumerate();
        let mut results: Vec<AckResult> =
            items.map(|(index, item)| unanswered(index, &item.transaction_id)).collect();
        let acks = self.locate(&asked.acks, &mut results).await?;
        if let Some((refused, reason)) =
            results.iter().find_map(|result| Some((result, result.error.as_ref()?)))
        {
            let lease = asked.acks[refused.index].lease_id.as_ref().filter(|_| reason == BAD_LEASE);
            return Err(Stop::RolledBack(match lease {
                Some(lease) => bad_lease(lease),
                None => format!("ack of {:?}: {reason}", refused.transaction_id),
            }));
        }
        // Messages in the spool are ahead of it, too.
        if self.spool_holds(messages) {
            self.wait_behind(started).await?;
            return Ok(None);
        }
        let all: Vec<usize> = (0..messages.len()).collect();
        let sorted = match self.parcels(messages, &all, Missing::Left(queues)).await {
            // The lane does not wait for the database, because pushes need not; a transaction must.
            Err(Error::Database(DbError::Unreachable(_)))
                if clock::now() - started < self.shared.config.retry_for =>
            {
                tokio::time::sleep(RETRY_PAUSE).await;
                return Ok(None);
            }
            other => other?,
        };
        let (pushes, parcels) = sorted.parcels.into_iter().unzip();
        let (members, acks) = acks.into_iter().unzip();
        let required = asked.required.clone();
        let transaction = Transaction { id, absent: sorted.absent, parcels, acks, required };
        Ok(Some(Resolved { transaction, pushes, acks: members, results }))
    }

    /// A transaction counts once in every queue it touches.
    fn count(&self, committed: &Committed, acked: &[AckResult]) {
        ack::count(&self.shared, acked);
        let pushed = committed.partitions.iter();
        let mut queues: Vec<&str> = pushed.map(|partition| partition.queue.as_ref()).collect();
        queues.extend(acked.iter().filter_map(|result| result.queue_name.as_deref()));
        queues.sort_unstable();
        queues.dedup();
        for queue in queues {
            self.shared.tally.record(queue, |minute| minute.transactions += 1);
        }
    }

    /// For a transaction that must not overtake what was accepted before it.
    pub(crate) async fn wait_behind(&self, started: Instant) -> Result<(), Error> {
        if clock::now() - started > self.shared.config.retry_for {
            return Err(self.overloaded(Kind::Push));
        }
        self.shared.load.signal.notify_one();
        tokio::time::sleep(BEHIND_PAUSE).await;
        Ok(())
    }
}

fn parse<'a>(body: &'a TransactionBody<'a>) -> Result<Asked<'a>, Stop> {
    let (mut pushes, mut acks) = (Vec::new(), Vec::<AckItem>::new());
    for operation in &body.operations {
        match operation {
            Operation::Push(items) => pushes.extend(items),
            Operation::Ack(item) => acks.push(item.clone()),
            Operation::Unknown(kind) => {
                return Err(Stop::RolledBack(format!("unknown operation type {kind:?}")));
            }
        }
    }
    let lease = |text: &str| LeaseId::parse(text).ok_or_else(|| Stop::RolledBack(bad_lease(text)));
    let mut required = Vec::with_capacity(body.required_leases.len());
    for text in &body.required_leases {
        required.push((text.clone(), lease(text)?));
    }
    for text in acks.iter().filter_map(|ack| ack.lease_id.as_deref()) {
        lease(text)?;
    }
    Ok(Asked { pushes, acks, required })
}

/// One result for each message and each ack, in the order of the body.
fn report(
    body: &TransactionBody<'_>,
    messages: &[Message<'_>],
    members: &[Vec<usize>],
    committed: &Committed,
    acks: &[AckResult],
) -> Vec<TransactionResult> {
    let mut placed: Vec<Option<(usize, &Placed)>> = vec![None; messages.len()];
    for (parcel, (members, messages)) in members.iter().zip(&committed.placed).enumerate() {
        for (&index, message) in members.iter().zip(messages) {
            placed[index] = Some((parcel, message));
        }
    }
    let (mut pushes, mut acks) = (messages.iter().zip(placed), acks.iter());
    let mut results = Vec::new();
    for operation in &body.operations {
        match operation {
            Operation::Push(items) => {
                for (message, placed) in pushes.by_ref().take(items.len()) {
                    let Some((parcel, placed)) = placed else { continue };
                    let partition = &committed.partitions[parcel];
                    results.push(TransactionResult::Push {
                        index: results.len(),
                        success: true,
                        transaction_id: message.transaction_id.to_owned(),
                        message_id: placed.id,
                        partition_id: partition.id,
                        queue_name: partition.queue.to_string(),
                        duplicate: placed.duplicate,
                    });
                }
            }
            Operation::Ack(_) => {
                let Some(ack) = acks.next() else { continue };
                results.push(TransactionResult::Ack {
                    index: results.len(),
                    success: ack.success,
                    transaction_id: ack.transaction_id.clone(),
                    error: ack.error.clone(),
                    dlq: ack.dlq,
                });
            }
            Operation::Unknown(_) => {}
        }
    }
    results
}

/// Also the reason when a required lease is not valid.
fn bad_lease(text: &str) -> String {
    format!("Invalid or expired lease: {text}")
}

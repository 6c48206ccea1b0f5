//! Push: messages in, ids out, after the commit. A request goes down once, as parcels on the lane of pushes, and comes back
//! once, as a result for each message.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use queen_protocol::{PushItem, PushResult, PushStatus};
use uuid::Uuid;

use super::parcel::{Message, Missing, Outcome, Parcel};
use crate::Engine;
use crate::db::Error as DbError;
use crate::db::procedures::Refusal;
use crate::error::Error;
use crate::load::{Kind, Way};
use crate::log::Partition;
use crate::sidecar::landed;

/// How often a push looks its partitions up again after they were deleted under it.
const REOPENS_MAX: usize = 5;

/// The progress of a request.
#[derive(Default)]
struct Progress {
    /// `None`: the message is not stored.
    results: Vec<Option<PushResult>>,
    /// Messages that were never sent, so they cannot be stored twice. The outcome of others without a result is
    /// unknown.
    unsent: Vec<usize>,
    refused: BTreeMap<usize, Refusal>,
    failure: Option<Error>,
}

impl Engine {
    /// # Cancel safety
    /// If the caller goes away, parcels that have left in a flight are still appended; the rest are not. So a first
    /// part of each partition's messages is stored, which may be all or none of them.
    pub async fn push(
        &self,
        items: &[PushItem<'_>],
        producer_sub: Option<&str>,
    ) -> Result<Vec<PushResult>, Error> {
        self.check_open()?;
        let minted: Vec<String> = items.iter().map(mint).collect();
        let messages = items.iter().zip(&minted).map(|(item, id)| Message::new(item, id, producer_sub));
        let messages: Vec<Message<'_>> = messages.collect();
        let mut progress = Progress { results: vec![None; messages.len()], ..Progress::default() };
        match self.must_spool(&messages).await {
            true => progress.unsent = (0..messages.len()).collect(),
            false => self.store(&messages, &mut progress).await,
        }
        let Progress { mut results, unsent, refused, mut failure } = progress;
        let unsent = from_their_beginning(&messages, &results, &unsent);
        if !unsent.is_empty() && self.shared.spool.is_some() {
            let spooled = self.spool(&messages, &unsent, &mut results).await;
            failure = spooled.err().or(failure);
        }
        self.count_requests(&messages);
        let missing = results.iter().filter(|result| result.is_none()).count();
        if missing == messages.len() {
            // Nothing was stored. Otherwise each item reports its own outcome.
            if let Some(error) = failure {
                return Err(error);
            }
            if let Some((&index, Refusal::NoQueue)) = refused.first_key_value()
                && refused.len() == missing
            {
                return Err(Error::NoQueue(messages[index].queue.to_owned()));
            }
        }
        let deleted = || "the partition was deleted again and again while it was pushed to".to_owned();
        let reason = failure.as_ref().map_or_else(deleted, Error::public_text);
        let failed = |index: usize, message: &Message<'_>| {
            let refusal = refused.get(&index).map(|refusal| self.shared.refusal(*refusal, message.queue));
            let error = Some(refusal.unwrap_or_else(|| reason.clone()));
            PushResult { error, ..result(index, message, PushStatus::Failed) }
        };
        let results = messages.iter().zip(results).enumerate();
        Ok(results
            .map(|(index, (message, result))| result.unwrap_or_else(|| failed(index, message)))
            .collect())
    }

    /// A request counts once in every queue it pushes to.
    fn count_requests(&self, messages: &[Message<'_>]) {
        let mut counted: Vec<&str> = Vec::new();
        for message in messages {
            if counted.last() != Some(&message.queue) && !counted.contains(&message.queue) {
                counted.push(message.queue);
                self.shared.tally.record(message.queue, |minute| minute.push_requests += 1);
            }
        }
    }

    async fn store(&self, messages: &[Message<'_>], progress: &mut Progress) {
        let mut open: Vec<usize> = (0..messages.len()).collect();
        for _ in 0..REOPENS_MAX {
            if open.is_empty() {
                return;
            }
            let sorted = match self.parcels(messages, &open, Missing::Made).await {
                Ok(sorted) => sorted,
                Err(error) => return progress.end(open, error),
            };
            let parcels = sorted.parcels;
            open = sorted.gone;
            progress.refused.extend(sorted.refused);
            if parcels.is_empty() {
                continue;
            }
            let partitions = parcels.iter().map(|(_, parcel)| parcel.partition.id);
            let outcomes = match self.shared.load.way(Kind::Push, partitions) {
                Way::Execute => self.append(parcels).await,
                Way::Defer(reason) => {
                    let members = parcels.iter().flat_map(|(members, _)| members.clone()).collect();
                    match self.defer(parcels, reason).await {
                        Ok(outcomes) => outcomes,
                        Err(error) => return progress.end(members, error.into()),
                    }
                }
                Way::Reject => return progress.end(Vec::new(), self.overloaded(Kind::Push)),
            };
            for (members, partition, outcome) in outcomes {
                let (placed, ticket) = match outcome {
                    Outcome::Stored(placed) => (placed, None),
                    Outcome::Deferred(ticket, placed) => (placed, Some(ticket)),
                    Outcome::Gone => {
                        open.extend(members);
                        continue;
                    }
                    Outcome::Refused | Outcome::Behind(_) => {
                        progress.failure.get_or_insert_with(|| self.overloaded(Kind::Push));
                        continue;
                    }
                    Outcome::Failed(error) | Outcome::Left(error) => {
                        if matches!(error, DbError::Unreachable(_)) {
                            progress.unsent.extend(members);
                        }
                        progress.failure.get_or_insert(error.into());
                        continue;
                    }
                };
                for (index, placed) in members.into_iter().zip(placed) {
                    let status = if placed.duplicate { PushStatus::Duplicate } else { PushStatus::Queued };
                    progress.results[index] = Some(PushResult {
                        message_id: placed.id,
                        partition_id: partition.id,
                        ticket: ticket.clone().filter(|_| placed.offset.is_none()),
                        ..result(index, &messages[index], status)
                    });
                }
            }
            open.sort_unstable();
        }
    }

    async fn append(&self, parcels: Vec<(Vec<usize>, Parcel)>) -> Vec<(Vec<usize>, Arc<Partition>, Outcome)> {
        let mut waiting: Vec<(_, Arc<Partition>, Result<_, DbError>)> = Vec::with_capacity(parcels.len());
        for (members, parcel) in parcels {
            let partition = parcel.partition.clone();
            let answer = match waiting.last() {
                // There may be room again, but a parcel must not overtake an earlier one of its partition that found
                // none.
                Some((_, last, Err(error))) if last.id == partition.id => Err(error.clone()),
                _ => self.lanes.push.enqueue(parcel),
            };
            waiting.push((members, partition, answer));
        }
        let mut outcomes = Vec::with_capacity(waiting.len());
        for (members, partition, answer) in waiting {
            let landed = match answer {
                Ok(answer) => landed(answer).await,
                Err(error) => Err(error),
            };
            outcomes.push((members, partition, landed.unwrap_or_else(Outcome::Failed)));
        }
        outcomes
    }

    pub(super) fn overloaded(&self, kind: Kind) -> Error {
        let load = &self.shared.load;
        Error::Overloaded { depth: load.depth(), retry_after: load.retry_after(kind) }
    }
}

impl Progress {
    /// Ends the request: nothing more is tried.
    fn end(&mut self, open: Vec<usize>, error: Error) {
        if matches!(error, Error::Database(DbError::Unreachable(_))) {
            self.unsent.extend(open);
        }
        self.failure = Some(error);
    }
}

/// The messages that were not sent, except those behind a message of their partition that could not be stored: a later
/// part of a request does not take another way than the part before it, or it would overtake that. In the order of the
/// request.
fn from_their_beginning(
    messages: &[Message<'_>],
    results: &[Option<PushResult>],
    unsent: &[usize],
) -> Vec<usize> {
    if unsent.is_empty() {
        return Vec::new();
    }
    let unsent: HashSet<usize> = unsent.iter().copied().collect();
    let mut failed: HashSet<(&str, &str)> = HashSet::new();
    let mut kept = Vec::with_capacity(unsent.len());
    for (index, message) in messages.iter().enumerate().filter(|(index, _)| results[*index].is_none()) {
        let partition = (message.queue, message.partition);
        if unsent.contains(&index) && !failed.contains(&partition) {
            kept.push(index);
        } else {
            failed.insert(partition);
        }
    }
    kept
}

/// A transaction id for an item that has none.
pub(super) fn mint(item: &PushItem<'_>) -> String {
    match item.transaction_id {
        Some(_) => String::new(),
        None => Uuid::now_v7().to_string(),
    }
}

/// The result of a message that has no id and no partition yet.
pub(crate) fn result(index: usize, message: &Message<'_>, status: PushStatus) -> PushResult {
    PushResult {
        index,
        message_id: Uuid::nil(),
        transaction_id: message.transaction_id.to_owned(),
        queue_name: message.queue.to_owned(),
        status,
        partition_id: Uuid::nil(),
        trace_id: message.trace_id,
        error: None,
        ticket: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_spooled_behind_a_message_of_its_partition_that_failed() {
        let message = |partition: &'static str| Message::accepted("q", partition, "t", "1");
        let messages = ["a", "b", "a", "b", "a", "c"].map(message);
        let stored = |index: usize| Some(result(index, &messages[index], PushStatus::Queued));
        // The second of `a` failed; of `b` the first is stored; those of `c` were never sent.
        let results = [stored(0), stored(1), None, None, None, None];
        assert_eq!(from_their_beginning(&messages, &results, &[5, 4, 3]), [3, 5]);
        assert_eq!(from_their_beginning(&messages, &results, &[4, 3, 2, 5]), [2, 3, 4, 5]);
        assert!(from_their_beginning(&messages, &results, &[]).is_empty());
    }
}

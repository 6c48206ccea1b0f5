//! The outcome of an ack, and the results of its items.

use std::sync::Arc;

use queen_protocol::{AckResult, AckStatus};

use super::ack_plan::{self, Item, Plan, Verdict};
use super::locate::Ack;
use crate::db::procedures::{Acked, Settlement};

pub(super) const BAD_LEASE: &str = "Invalid or expired lease";

/// Clients match on both words: older ones on one, newer ones on the other.
pub(super) const NOT_FOUND: &str = "Message not found (unresolvable transactionId)";

pub(super) const OTHER_MESSAGE: &str =
    "Message not found (unresolvable): transactionId and messageId do not name the same message";

const COMMITTED: &str = "the message was already committed for this group";

/// A result without an outcome yet.
pub(super) fn unanswered(index: usize, transaction_id: &str) -> AckResult {
    AckResult {
        index,
        transaction_id: transaction_id.to_owned(),
        success: false,
        error: None,
        queue_name: None,
        partition_name: None,
        lease_released: false,
        dlq: false,
        noop: false,
        ticket: None,
    }
}

#[derive(Debug, Clone)]
pub struct AckOutcome {
    pub verdicts: Vec<Verdict>,
    pub refused: Option<&'static str>,
    pub released: bool,
    pub kept: bool,
    /// Nothing was applied, because deferred acks are ahead.
    pub behind: bool,
    /// Of the queue and the partition.
    pub names: Option<(Arc<str>, Arc<str>)>,
}

impl AckOutcome {
    /// The outcome of one ack of a row. A row of several holds only plain completions, so each can be judged by
    /// itself.
    pub fn new(ack: &Ack, cursor: i64, plan: &Plan, answer: &Acked, alone: bool) -> Self {
        if answer.status == Settlement::InvalidLease {
            // The same ack, sent again after its response was lost: the lease is over because it was acknowledged.
            let done = |item: &Item| item.status == AckStatus::Completed && item.offset < answer.cursor;
            if !ack.items.iter().all(done) {
                return Self::refused(ack, BAD_LEASE);
            }
            let verdicts = vec![Verdict::Noop; ack.items.len()];
            return Self { released: false, kept: false, ..Self::applied(verdicts, answer) };
        }
        if answer.status == Settlement::AppliedBefore {
            return Self::applied_before(ack, answer);
        }
        if answer.status == Settlement::Behind {
            return Self { behind: true, ..Self::refused(ack, "deferred acknowledgements are ahead of it") };
        }
        let walk = match answer.status {
            Settlement::WithBudget => &plan.with_budget,
            Settlement::FirstSpent => &plan.first_spent,
            _ => &plan.without_budget,
        };
        let verdicts = if alone {
            ack_plan::verdicts(&ack.items, cursor, walk, answer.cursor)
        } else {
            let own = ack_plan::plan(&ack.items, cursor);
            ack_plan::verdicts(&ack.items, cursor, &own.without_budget, answer.cursor)
        };
        Self::applied(verdicts, answer)
    }

    fn applied(verdicts: Vec<Verdict>, answer: &Acked) -> Self {
        Self {
            verdicts,
            refused: None,
            released: answer.released,
            kept: answer.kept,
            behind: false,
            names: Some((answer.queue.clone(), answer.partition.clone())),
        }
    }

    /// The ack was applied before, and its response lost. Failed messages that the cursor has passed were
    /// dead-lettered.
    fn applied_before(ack: &Ack, answer: &Acked) -> Self {
        let verdict = |item: &Item| match item.status {
            AckStatus::Completed if item.offset < answer.started => Verdict::Noop,
            _ if item.offset < answer.started => Verdict::Committed,
            AckStatus::Failed | AckStatus::Dlq if item.offset < answer.cursor => Verdict::Dead,
            _ => Verdict::Done,
        };
        Self::applied(ack.items.iter().map(verdict).collect(), answer)
    }

    /// There was nothing to do, and the group has no cursor there.
    pub fn idle(ack: &Ack, cursor: i64, plan: &Plan) -> Self {
        Self {
            verdicts: ack_plan::verdicts(&ack.items, cursor, &plan.without_budget, cursor),
            refused: None,
            ..Self::refused(ack, "")
        }
    }

    pub fn refused(ack: &Ack, reason: &'static str) -> Self {
        Self {
            verdicts: vec![Verdict::Done; ack.items.len()],
            refused: Some(reason),
            released: false,
            kept: false,
            behind: false,
            names: None,
        }
    }

    /// Writes the outcome into the results of its items.
    pub fn write(&self, members: impl IntoIterator<Item = usize>, results: &mut [AckResult]) {
        for (index, verdict) in members.into_iter().zip(&self.verdicts) {
            self.write_one(&mut results[index], *verdict);
        }
    }

    fn write_one(&self, result: &mut AckResult, verdict: Verdict) {
        if let Some((queue, partition)) = &self.names {
            result.queue_name = Some(queue.clone());
            result.partition_name = Some(partition.clone());
        }
        result.error = match (self.refused, verdict) {
            (Some(reason), _) => Some(reason.to_owned()),
            (None, Verdict::Committed) => Some(COMMITTED.to_owned()),
            (None, _) => None,
        };
        result.success = result.error.is_none();
        result.lease_released = self.released;
        result.noop = result.success && verdict == Verdict::Noop;
        result.dlq = result.success && verdict == Verdict::Dead && self.kept;
    }
}

//! Ack: the path of a request. Names of messages become offsets (`locate.rs`), which fly with the claims
//! (`consume.rs`) or are deferred (`defer_ack.rs`), and the outcomes become the results.

use queen_protocol::{AckItem, AckResult};

use super::ack_outcome::{BAD_LEASE, unanswered};
use super::consume::{Consume, Consumed};
use super::locate::Ack;
use crate::Engine;
use crate::error::Error;
use crate::load::{Kind, Way};
use crate::shared::Shared;
use crate::sidecar::landed;

/// An ack, and which items of its request it carries.
pub type AckOf = (Vec<usize>, Ack);

impl Engine {
    pub async fn ack(&self, items: Vec<AckItem>) -> Result<Vec<AckResult>, Error> {
        self.check_open()?;
        let mut results: Vec<AckResult> =
            items.iter().enumerate().map(|(index, item)| unanswered(index, &item.transaction_id)).collect();
        let mut acks = self.locate(&items, &mut results).await?;
        if acks.is_empty() {
            return Ok(results);
        }
        // Only the database knows whether deferred acks are ahead.
        match self.shared.load.way(Kind::Ack, std::iter::empty()) {
            Way::Execute => {}
            Way::Defer(reason) => acks = self.defer_acks(&items, acks, reason, &mut results).await?,
            Way::Reject => return Err(self.overloaded(Kind::Ack)),
        }
        let behind = self.apply(acks, &mut results).await?;
        if !behind.is_empty() {
            let way = self.shared.load.behind(Kind::Ack);
            self.shared.load.count(Kind::Ack, way);
            let Way::Defer(reason) = way else { return Err(self.overloaded(Kind::Ack)) };
            for (members, _) in self.defer_acks(&items, behind, reason, &mut results).await? {
                members.iter().for_each(|&index| results[index].error = Some(BAD_LEASE.to_owned()));
            }
        }
        count(&self.shared, &results);
        Ok(results)
    }

    /// Returns the acks that were not applied because deferred ones are ahead of them.
    async fn apply(&self, acks: Vec<AckOf>, results: &mut [AckResult]) -> Result<Vec<AckOf>, Error> {
        let mut waiting = Vec::with_capacity(acks.len());
        for (members, ack) in acks {
            waiting.push((members, self.lanes.consume.enqueue(Consume::Ack(ack))?));
        }
        let mut behind = Vec::new();
        for (members, answer) in waiting {
            match landed(answer).await? {
                Consumed::Behind(ack) => behind.push((members, *ack)),
                consumed => consumed.into_ack()?.write(members, results),
            }
        }
        Ok(behind)
    }
}

/// A request counts once in every queue it names.
pub(super) fn count(shared: &Shared, results: &[AckResult]) {
    let mut counted: Vec<&str> = Vec::new();
    for result in results {
        let Some(queue) = result.queue_name.as_deref() else { continue };
        let first = counted.last() != Some(&queue) && !counted.contains(&queue);
        if first {
            counted.push(queue);
        }
        shared.tally.record(queue, |minute| {
            minute.ack_requests += u64::from(first);
            minute.ack_success += u64::from(result.success);
            minute.ack_failed += u64::from(!result.success);
            minute.dead_letters += u64::from(result.dlq);
        });
    }
}

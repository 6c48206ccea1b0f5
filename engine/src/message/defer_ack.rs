//! Defer, for acks: accepted now, applied later, with their leases held until then.

use std::sync::Arc;
use std::time::Duration;

use queen_protocol::{AckItem, AckResult, AckStatus, Ticket};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::ack::AckOf;
use super::ack_outcome::{AckOutcome, unanswered};
use super::ack_plan::Item;
use super::locate::Ack;
use crate::Engine;
use crate::db::procedures::{Locked, deferred};
use crate::db::{Connection, Error as DbError, Priority};
use crate::error::Error;
use crate::load::Reason;
use crate::shared::Shared;
use crate::sidecar::{Operation, landed};

/// As in the contract.
const SINGLE: (&str, i32) = ("ACK_SINGLE", 4);
const BATCH: (&str, i32) = ("ACK_BATCH", 3);

/// An entry of the deferred queue.
#[derive(Debug, Serialize, Deserialize)]
pub struct Body {
    lease: Option<Uuid>,
    /// Whether its lease has traced messages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    traced: bool,
    items: Vec<BodyItem>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct BodyItem {
    transaction_id: String,
    offset: i64,
    status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// One set of a request, on its way to the deferred queue.
pub struct DeferredAck {
    id: Uuid,
    partition: Uuid,
    group: Arc<str>,
    lease: Option<Uuid>,
    kind: (&'static str, i32),
    count: usize,
    body: String,
}

impl Engine {
    /// Returns the acks that could not be deferred because their lease is not valid.
    pub(super) async fn defer_acks(
        &self,
        items: &[AckItem],
        acks: Vec<AckOf>,
        reason: Reason,
        results: &mut [AckResult],
    ) -> Result<Vec<AckOf>, Error> {
        let kind = if items.len() == 1 { SINGLE } else { BATCH };
        let mut waiting = Vec::with_capacity(acks.len());
        for (members, mut ack) in acks {
            // Any broker may apply it.
            ack.look_up |= self.shared.leases().traced(&ack.key()).is_some();
            let entry = DeferredAck::new(items, &members, &ack, kind);
            waiting.push((members, ack, entry.id, self.lanes.defer_ack.enqueue(entry)?));
        }
        let mut refused = Vec::new();
        for (members, ack, id, answer) in waiting {
            let accepted = landed(answer).await?.ok_or(DbError::Busy)?;
            if !accepted {
                refused.push((members, ack));
                continue;
            }
            let ticket = Ticket::new(id, self.shared.load.depth().max(1), reason.word());
            for index in members {
                if let Some(service) = &ack.service {
                    results[index].queue_name = Some(service.partition.queue.clone());
                    results[index].partition_name = Some(service.partition.name.clone());
                }
                results[index].success = true;
                results[index].ticket = Some(ticket.clone());
            }
        }
        Ok(refused)
    }
}

impl DeferredAck {
    fn new(items: &[AckItem], members: &[usize], ack: &Ack, kind: (&'static str, i32)) -> Self {
        let item = |(&index, located): (&usize, &Item)| BodyItem {
            transaction_id: items[index].transaction_id.clone(),
            offset: located.offset,
            status: located.status.word().to_owned(),
            error: located.error.clone(),
        };
        let traced = ack.look_up;
        let body =
            Body { lease: ack.lease, traced, items: members.iter().zip(&ack.items).map(item).collect() };
        Self {
            id: ack.id,
            partition: ack.partition,
            group: ack.group.clone(),
            lease: ack.lease,
            kind,
            count: ack.items.len(),
            // Strings and numbers always serialize.
            body: serde_json::to_string(&body).unwrap_or_default(),
        }
    }
}

impl Body {
    /// `None` for text that no broker has written.
    pub fn parse(text: &str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    pub fn ack(&self, id: Uuid, partition: Uuid, group: &str) -> Ack {
        let item = |item: &BodyItem| Item {
            offset: item.offset,
            status: AckStatus::parse(Some(&item.status)),
            error: item.error.clone(),
        };
        Ack {
            id,
            partition,
            group: group.into(),
            lease: self.lease,
            service: None,
            look_up: self.traced,
            // Whatever the cursor is now, the first try finds out.
            cursor: 0,
            items: self.items.iter().map(item).collect(),
        }
    }

    /// What the direct call would have returned.
    pub fn result(&self, outcome: &AckOutcome) -> String {
        let items = self.items.iter().enumerate();
        let mut results: Vec<AckResult> =
            items.map(|(index, item)| unanswered(index, &item.transaction_id)).collect();
        outcome.write(0..results.len(), &mut results);
        serde_json::to_string(&results).unwrap_or_default()
    }
}

impl Operation for DeferredAck {
    const NAME: &'static str = "defer_ack";
    const PRIORITY: Priority = Priority::Consume;
    const MERGED_MAX: usize = usize::MAX;
    /// Acks of one cursor keep their order.
    type Key = (Uuid, Arc<str>);
    /// Whether it was deferred. `None`: its cursor is locked.
    type Output = Option<bool>;
    type Context = Shared;

    fn key(&self) -> Self::Key {
        (self.partition, self.group.clone())
    }

    fn items(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        self.body.len()
    }

    fn left(output: &Self::Output) -> Option<DbError> {
        output.is_none().then_some(DbError::Busy)
    }

    async fn call(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
    ) -> Result<Vec<Self::Output>, DbError> {
        store(shared, db, batch, Locked::Skip).await
    }

    async fn call_waiting(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Self::Output>, DbError> {
        store(shared, db, batch, Locked::WaitFor(patience)).await
    }
}

async fn store(
    shared: &Shared,
    db: &Connection,
    batch: &[DeferredAck],
    locked: Locked,
) -> Result<Vec<Option<bool>>, DbError> {
    let settings = shared.load.settings();
    let mut ask = deferred::DeferAcks {
        timeout: i32::try_from(settings.timeout.as_secs()).unwrap_or(i32::MAX).max(1),
        attempts_max: settings.retries_max,
        locked,
        ..Default::default()
    };
    for entry in batch {
        ask.ids.push(entry.id);
        ask.partitions.push(entry.partition);
        ask.groups.push(&entry.group);
        ask.leases.push(entry.lease);
        ask.kinds.push(entry.kind.0);
        ask.priorities.push(entry.kind.1);
        ask.counts.push(i32::try_from(entry.count).unwrap_or(i32::MAX));
        ask.bodies.push(&entry.body);
    }
    let mut accepted = vec![Some(true); batch.len()];
    let answer = deferred::defer_acks(db, &ask).await?;
    for position in answer.refused {
        accepted[position] = Some(false);
    }
    for position in answer.busy {
        accepted[position] = None;
    }
    shared.load.deferred(accepted.iter().filter(|accepted| **accepted == Some(true)).count());
    Ok(accepted)
}

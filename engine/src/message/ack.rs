//! Ack: transaction ids and message ids become offsets, offsets become a plan, plans of many callers become one statement.

use std::collections::HashMap;
use std::sync::Arc;

use queen_protocol::{AckItem, AckResult, AckStatus, LeaseId};
use uuid::Uuid;

use super::ack_plan::{self, Item, Plan, Verdict};
use super::locate::{Locate, Located};
use super::turn::{Done, Turn};
use crate::Engine;
use crate::clock;
use crate::db::procedures::{self, Acked, Settlement};
use crate::error::Error;
use crate::life::{LookUp, Moved};
use crate::load::{Kind, Way};
use crate::log::ids::{Reference, TransactionHash};
use crate::pop::leases::Service;
use crate::shared::Shared;
use crate::sidecar::landed;

pub(super) const BAD_LEASE: &str = "Invalid or expired lease";

/// Both words are matched on: one by older clients, one by newer.
pub(super) const NOT_FOUND: &str = "Message not found (unresolvable transactionId)";

const OTHER_MESSAGE: &str =
    "Message not found (unresolvable): transactionId and messageId do not name the same message";

const COMMITTED: &str = "the message was already committed for this group";

impl Engine {
    pub async fn ack(&self, items: Vec<AckItem>) -> Result<Vec<AckResult>, Error> {
        self.check_open()?;
        let mut results: Vec<AckResult> =
            items.iter().enumerate().map(|(index, item)| refusal(index, item)).collect();
        let mut acks = Vec::new();
        for set in sets(&items) {
            let Some(lease) = set.lease(&items) else {
                set.tell(&mut results, |result| result.error = Some(BAD_LEASE.to_owned()));
                continue;
            };
            let Some((members, ack)) = self.locate(&items, &set, lease, &mut results).await? else {
                continue;
            };
            acks.push((members, ack));
        }
        if acks.is_empty() {
            return Ok(results);
        }
        // Only the database knows whether deferred acks are ahead.
        match self.shared.load.way(Kind::Ack, std::iter::empty()) {
            Way::Execute => {}
            Way::Defer(reason) => acks = self.defer_acks(&items, acks, reason, &mut results).await?,
            Way::Reject => return Err(self.overloaded(Kind::Ack)),
        }
        let mut waiting = Vec::with_capacity(acks.len());
        for (members, ack) in acks {
            waiting.push((members, self.lanes.turn.enqueue(Turn::Ack(ack))?));
        }
        let mut behind = Vec::new();
        for (members, answer) in waiting {
            match landed(answer).await? {
                Done::Behind(ack) => behind.push((members, *ack)),
                done => {
                    let outcome = done.into_ack()?;
                    for (index, verdict) in members.iter().zip(&outcome.verdicts) {
                        outcome.tell(&mut results[*index], *verdict);
                    }
                }
            }
        }
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

    /// Turns the names of messages into offsets, from the leases served here or by asking the log. Items that cannot be
    /// found are told so and left out.
    pub(super) async fn locate(
        &self,
        items: &[AckItem],
        set: &Set,
        lease: Option<Uuid>,
        results: &mut [AckResult],
    ) -> Result<Option<(Vec<usize>, Ack)>, Error> {
        let first = &items[set.members[0]];
        let key = (first.partition_id, Arc::<str>::from(first.group.as_str()));
        let reference = |&index: &usize| Reference {
            hash: TransactionHash::new(&items[index].transaction_id, true),
            id: items[index].message_id,
        };
        let asked: Vec<Reference> = set.members.iter().map(reference).collect();
        let served = self.shared.leases().resolve(&key, lease, &asked);
        let (mut service, mut look_up) = (None, false);
        let located = match served {
            Some(resolved) => {
                service = Some(resolved.service);
                let offsets = resolved.offsets.into_iter().map(Some).collect();
                Located { cursor: resolved.cursor, live: true, offsets }
            }
            None => {
                let text = first.lease_id.as_deref();
                look_up = text.and_then(LeaseId::parse).is_some_and(|lease| lease.traced);
                let locate = Locate { partition: key.0, group: key.1.clone(), lease, asked };
                let Some(located) = self.lanes.locate.submit(locate).await? else {
                    set.tell(results, |result| result.error = Some(NOT_FOUND.to_owned()));
                    return Ok(None);
                };
                located
            }
        };
        // Under a lease that is over only what is settled already is no refusal, and only if all of it is.
        if lease.is_some() && !located.live && located.offsets.iter().any(Option::is_none) {
            set.tell(results, |result| result.error = Some(BAD_LEASE.to_owned()));
            return Ok(None);
        }
        let (id, cursor) = (Uuid::now_v7(), located.cursor);
        let mut ack =
            Ack { id, partition: key.0, group: key.1, lease, service, look_up, cursor, items: Vec::new() };
        let mut members = Vec::new();
        for (&index, offset) in set.members.iter().zip(located.offsets) {
            match offset {
                Some(offset) => {
                    members.push(index);
                    let item = &items[index];
                    ack.items.push(Item { offset, status: item.status, error: item.error.clone() });
                }
                None => {
                    let why = if items[index].message_id.is_some() { OTHER_MESSAGE } else { NOT_FOUND };
                    results[index].error = Some(why.to_owned());
                }
            }
        }
        Ok((!members.is_empty()).then_some((members, ack)))
    }
}

/// Items of one call with one (partition, group, lease): they succeed or fail together.
pub(super) struct Set {
    pub members: Vec<usize>,
}

pub(super) fn sets(items: &[AckItem]) -> Vec<Set> {
    let mut sets: Vec<Set> = Vec::new();
    let mut places: HashMap<(Uuid, &str, Option<&str>), usize> = HashMap::new();
    for (index, item) in items.iter().enumerate() {
        let place =
            *places.entry((item.partition_id, &item.group, item.lease_id.as_deref())).or_insert_with(|| {
                sets.push(Set { members: Vec::new() });
                sets.len() - 1
            });
        sets[place].members.push(index);
    }
    sets
}

impl Set {
    /// `None`: a lease id that no broker has written. `Some(None)`: no lease is claimed.
    pub fn lease(&self, items: &[AckItem]) -> Option<Option<Uuid>> {
        match &items[self.members[0]].lease_id {
            None => Some(None),
            Some(text) => LeaseId::parse(text).map(|lease| Some(lease.id)),
        }
    }

    pub fn tell(&self, results: &mut [AckResult], mut what: impl FnMut(&mut AckResult)) {
        for &index in &self.members {
            what(&mut results[index]);
        }
    }
}

pub(super) fn refusal(index: usize, item: &AckItem) -> AckResult {
    AckResult {
        index,
        transaction_id: item.transaction_id.clone(),
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

/// One set with its offsets.
#[derive(Debug, Clone)]
pub struct Ack {
    /// Tells the database a second sending from a second ack.
    pub id: Uuid,
    pub partition: Uuid,
    pub group: Arc<str>,
    pub lease: Option<Uuid>,
    /// Known for a lease that was served here.
    pub service: Option<Service>,
    /// There are traced messages in its lease, and another broker knows which.
    pub look_up: bool,
    /// The cursor as this broker last knew it.
    pub cursor: i64,
    pub items: Vec<Item>,
}

impl Ack {
    pub fn key(&self) -> (Uuid, Arc<str>) {
        (self.partition, self.group.clone())
    }
}

#[derive(Debug, Clone)]
pub struct AckOutcome {
    pub verdicts: Vec<Verdict>,
    pub refused: Option<&'static str>,
    pub released: bool,
    pub kept: bool,
    /// Nothing was applied: deferred acks are ahead of it.
    pub behind: bool,
    /// Of the queue and the partition.
    pub names: Option<(Arc<str>, Arc<str>)>,
}

impl AckOutcome {
    pub fn tell(&self, result: &mut AckResult, verdict: Verdict) {
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

    /// It was applied and its answer lost. What failed and is behind the cursor now was dead-lettered.
    fn applied_before(ack: &Ack, answer: &Acked) -> Self {
        let verdict = |item: &Item| match item.status {
            AckStatus::Completed if item.offset < answer.started => Verdict::Noop,
            _ if item.offset < answer.started => Verdict::Committed,
            AckStatus::Failed | AckStatus::Dlq if item.offset < answer.cursor => Verdict::Dead,
            _ => Verdict::Done,
        };
        Self {
            verdicts: ack.items.iter().map(verdict).collect(),
            refused: None,
            released: answer.released,
            kept: answer.kept,
            behind: false,
            names: Some((answer.queue.clone(), answer.partition.clone())),
        }
    }

    /// Nothing was to be done, and the group has no cursor there.
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
}

/// The statement's parameters for planned acks.
pub(super) fn ask<'a>(acks: &[(&'a Ack, &'a [Item], i64, &Plan)]) -> procedures::Ack<'a> {
    let mut ask = procedures::Ack::default();
    for (index, (ack, items, cursor, plan)) in acks.iter().enumerate() {
        ask.ids.push(ack.id);
        ask.partitions.push(ack.partition);
        ask.groups.push(&ack.group);
        ask.leases.push(ack.lease);
        ask.expected.push(*cursor);
        for walk in plan.ways() {
            ask.to.push(walk.cursor);
            ask.stops.push(walk.stops);
            ask.failed_from.push(walk.failed.as_ref().map(|failed| failed.start));
            ask.failed_to.push(walk.failed.as_ref().map(|failed| failed.end));
        }
        for (place, &dead) in plan.without_budget.dead.iter().enumerate() {
            // Each way goes as far as the one before it, or further.
            let shorter = plan.ways().into_iter().filter(|walk| walk.dead.len() <= place).count();
            ask.dead.push(index as i32 + 1);
            ask.dead_way.push(shorter as i32);
            ask.dead_offsets.push(items[dead].offset);
            ask.dead_errors.push(items[dead].error.as_deref());
        }
    }
    ask
}

/// What one ack of a row is told. A row of several is plain completions, so each can be judged by itself.
pub(super) fn outcome(ack: &Ack, cursor: i64, plan: &Plan, answer: &Acked, alone: bool) -> AckOutcome {
    if answer.status == Settlement::InvalidLease {
        // The same ack sent again after its answer was lost: its lease is over because it was acknowledged.
        let done = |item: &Item| item.status == AckStatus::Completed && item.offset < answer.cursor;
        if !ack.items.iter().all(done) {
            return AckOutcome::refused(ack, BAD_LEASE);
        }
        return AckOutcome {
            verdicts: vec![Verdict::Noop; ack.items.len()],
            refused: None,
            released: false,
            kept: false,
            behind: false,
            names: Some((answer.queue.clone(), answer.partition.clone())),
        };
    }
    if answer.status == Settlement::AppliedBefore {
        return AckOutcome::applied_before(ack, answer);
    }
    if answer.status == Settlement::Behind {
        return AckOutcome {
            behind: true,
            ..AckOutcome::refused(ack, "deferred acknowledgements are ahead of it")
        };
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
    AckOutcome {
        verdicts,
        refused: None,
        released: answer.released,
        kept: answer.kept,
        behind: false,
        names: Some((answer.queue.clone(), answer.partition.clone())),
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

/// After the commit: the lease book moves on, and a freed partition is ready again.
pub fn settled(shared: &Shared, ack: &Ack, answer: &Acked) {
    use Settlement::{Behind, CursorMoved, InvalidLease};
    if matches!(answer.status, InvalidLease | CursorMoved | Behind) {
        return;
    }
    shared.tally.consumed(&answer.queue, &ack.group, answer.cursor - answer.started);
    if ack.items.iter().any(|item| matches!(item.status, AckStatus::Failed | AckStatus::Dlq)) {
        // It may have been dead-lettered.
        shared.tally.doubt(&answer.queue);
    }
    let key = (ack.partition, ack.group.clone());
    let mut leases = shared.leases();
    let ours = ack.lease.is_some_and(|lease| leases.is_of(&key, lease));
    let traced = leases.acked(&key, answer.cursor, answer.released);
    drop(leases);
    if traced.is_some() || ack.look_up {
        let look_up = LookUp {
            at: clock::now(),
            partition: ack.partition,
            group: ack.group.clone(),
            items: ack.items.clone(),
            moved: Moved { from: answer.started, to: answer.cursor, kept: answer.kept },
        };
        match traced {
            Some(traced) => shared.life.note(look_up.events(&traced)),
            None => shared.life.look_up(look_up),
        }
    }
    if answer.released {
        let more = answer.cursor < answer.head;
        if let Some(watch) = shared.watches.find(&answer.queue, &ack.group) {
            watch.released(ack.partition, &answer.partition, more);
        }
        if !ours {
            shared.wake.released(ack.partition, &ack.group, &answer.queue, &answer.partition, more);
        }
    }
}

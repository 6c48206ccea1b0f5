//! Settle: applies the acks of one flight, in as many statements as it takes; hardly ever more than one.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use queen_protocol::AckStatus;
use uuid::Uuid;

use super::ack_outcome::{AckOutcome, NOT_FOUND};
use super::ack_plan::{self, Item, Plan};
use super::locate::Ack;
use crate::clock;
use crate::db::procedures::{self, Acked, Completed, Settlement};
use crate::life::{LookUp, Moved};
use crate::shared::Shared;

/// If a cursor moved under a plan, its acks are planned again; it only ever moves forward.
const ROUNDS_MAX: usize = 20;

/// Acks of one flight, some of which may have their outcome already.
pub struct Settling<'a> {
    shared: &'a Shared,
    batch: Vec<&'a Ack>,
    outcomes: Vec<Option<AckOutcome>>,
    cursors: HashMap<(Uuid, Arc<str>), i64>,
    /// Cursors that another session has locked: their acks are left for another flight.
    busy: HashSet<(Uuid, Arc<str>)>,
    rounds: usize,
    /// These acks were deferred and are executed now, as part of a transaction: what they did is published after its
    /// commit.
    deferred: bool,
    landed: Vec<(Ack, Acked)>,
}

/// What one statement executes.
pub struct Round<'a> {
    rows: Vec<Row<'a>>,
    /// Only completions under leases that were served here.
    pub plain: bool,
    deferred: bool,
}

/// Acks that become one row of the statement: one ack with a nack in it, or any number of consecutive plain
/// completions.
struct Row<'a> {
    first: &'a Ack,
    members: Vec<usize>,
    items: Vec<Item>,
    cursor: i64,
    plan: Plan,
}

impl Row<'_> {
    fn is_plain(&self) -> bool {
        self.plan.is_plain() && self.first.lease.is_some() && self.first.service.is_some()
    }
}

impl<'a> Settling<'a> {
    pub fn new(shared: &'a Shared, batch: Vec<&'a Ack>) -> Self {
        let outcomes = vec![None; batch.len()];
        Self {
            shared,
            batch,
            outcomes,
            cursors: HashMap::new(),
            busy: HashSet::new(),
            rounds: 0,
            deferred: false,
            landed: Vec::new(),
        }
    }

    pub fn deferred(shared: &'a Shared, batch: Vec<&'a Ack>) -> Self {
        Self { deferred: true, ..Self::new(shared, batch) }
    }

    /// `None`: nothing is left to ask for.
    pub fn round(&mut self) -> Option<Round<'a>> {
        let first = self.rounds == 0;
        self.rounds += 1;
        let rows = self.rows();
        if rows.is_empty() || self.rounds > ROUNDS_MAX + self.batch.len() {
            return None;
        }
        // What the plain statement does not settle comes back for the full one.
        let plain = first && rows.iter().all(Row::is_plain);
        Some(Round { rows, plain, deferred: self.deferred })
    }

    /// The next row of each (partition, group) that still has acks without an outcome.
    fn rows(&self) -> Vec<Row<'a>> {
        let mut groups: Vec<Vec<usize>> = Vec::new();
        let mut full: HashSet<(Uuid, &str)> =
            self.busy.iter().map(|(partition, group)| (*partition, group.as_ref())).collect();
        let mut places: HashMap<(Uuid, &str), usize> = HashMap::new();
        let open = self.batch.iter().enumerate().filter(|(index, _)| self.outcomes[*index].is_none());
        for (index, ack) in open {
            let key = (ack.partition, ack.group.as_ref());
            if full.contains(&key) {
                continue;
            }
            let plain = ack.items.iter().all(|item| item.status == AckStatus::Completed);
            match places.get(&key) {
                Some(&place) if plain && self.batch[groups[place][0]].lease == ack.lease => {
                    groups[place].push(index);
                }
                Some(_) => {
                    full.insert(key);
                }
                None => {
                    places.insert(key, groups.len());
                    groups.push(vec![index]);
                    if !plain {
                        full.insert(key);
                    }
                }
            }
        }
        let mut rows: Vec<Row<'a>> = groups.into_iter().map(|members| self.row(members)).collect();
        // The statement locks in this order.
        rows.sort_unstable_by_key(|row| (row.first.partition, row.first.group.as_ref()));
        rows
    }

    fn row(&self, members: Vec<usize>) -> Row<'a> {
        let first = self.batch[members[0]];
        let items: Vec<Item> =
            members.iter().flat_map(|&member| self.batch[member].items.iter().cloned()).collect();
        let cursor = self.cursors.get(&first.key()).copied().unwrap_or(first.cursor);
        let plan = ack_plan::plan(&items, cursor);
        Row { first, members, items, cursor, plan }
    }

    /// After the commit of a plain round. What it did not complete is left for the next round.
    pub fn completed(&mut self, round: &Round<'a>, answers: &[Completed]) {
        for answer in answers {
            let row = &round.rows[answer.position];
            let Some(service) = &row.first.service else { continue };
            let acked = Acked {
                position: answer.position,
                status: Settlement::WithoutBudget,
                cursor: row.plan.without_budget.cursor,
                started: row.cursor,
                head: service.head,
                released: answer.released,
                kept: false,
                queue: service.partition.queue.clone(),
                partition: service.partition.name.clone(),
            };
            self.settled(row, &acked);
        }
    }

    /// After the commit; `busy` are the positions of rows that were skipped.
    pub fn acked(&mut self, round: &Round<'a>, answers: &[Acked], busy: &[usize]) {
        let mut found = vec![false; round.rows.len()];
        for &position in busy {
            found[position] = true;
            self.busy.insert(round.rows[position].first.key());
        }
        for answer in answers {
            found[answer.position] = true;
            self.settled(&round.rows[answer.position], answer);
        }
        for (row, _) in round.rows.iter().zip(found).filter(|(_, found)| !found) {
            for &member in &row.members {
                let ack = self.batch[member];
                // Without a lease, and with nothing to do, the group was given no cursor.
                self.outcomes[member] = Some(match ack.lease.is_none() && row.plan.is_idle(row.cursor) {
                    true => AckOutcome::idle(ack, row.cursor, &row.plan),
                    false => AckOutcome::refused(ack, NOT_FOUND),
                });
            }
        }
    }

    fn settled(&mut self, row: &Row<'a>, answer: &Acked) {
        if answer.status != Settlement::InvalidLease {
            self.cursors.insert(row.first.key(), answer.cursor);
        }
        if answer.status == Settlement::CursorMoved {
            return;
        }
        match self.deferred {
            true => self.landed.push((row.first.clone(), answer.clone())),
            false => publish(self.shared, row.first, answer),
        }
        // Only the first ack is known by its id to have been applied before. Others may have joined its row since, so
        // they are tried again.
        let before = answer.status == Settlement::AppliedBefore;
        let members = if before { &row.members[..1] } else { &row.members[..] };
        let alone = members.len() == 1;
        for &member in members {
            let ack = self.batch[member];
            self.outcomes[member] = Some(AckOutcome::new(ack, row.cursor, &row.plan, answer, alone));
        }
    }

    /// Whether nothing was committed so far.
    pub fn is_untouched(&self) -> bool {
        self.outcomes.iter().all(Option::is_none)
    }

    pub fn is_busy(&self, ack: &Ack) -> bool {
        !self.busy.is_empty() && self.busy.contains(&ack.key())
    }

    /// What has to be published after the commit.
    pub fn take_landed(&mut self) -> Vec<(Ack, Acked)> {
        std::mem::take(&mut self.landed)
    }

    /// `None` for acks that would need another round.
    pub fn outcomes(&mut self) -> Vec<Option<AckOutcome>> {
        std::mem::take(&mut self.outcomes)
    }
}

impl Round<'_> {
    pub fn ask(&self) -> procedures::Ack<'_> {
        let acks: Vec<_> =
            self.rows.iter().map(|row| (row.first, row.items.as_slice(), row.cursor, &row.plan)).collect();
        procedures::Ack { deferred: self.deferred, ..ask(&acks) }
    }

    pub fn completions(&self) -> procedures::Complete<'_> {
        let mut ask = procedures::Complete::default();
        for row in &self.rows {
            ask.ids.push(row.first.id);
            ask.partitions.push(row.first.partition);
            ask.groups.push(&row.first.group);
            ask.leases.push(row.first.lease.unwrap_or_default());
            ask.expected.push(row.cursor);
            ask.to.push(row.plan.without_budget.cursor);
        }
        ask
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

/// After the commit: updates the lease book, and makes a freed partition ready again.
pub fn publish(shared: &Shared, ack: &Ack, answer: &Acked) {
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
            let known = ack.service.as_ref().map(|service| &service.partition);
            watch.released(ack.partition, &answer.partition, ack.lease, more, known);
        }
        if !ours {
            shared.wake.released(
                ack.lease,
                ack.partition,
                &ack.group,
                &answer.queue,
                &answer.partition,
                more,
            );
        }
    }
}

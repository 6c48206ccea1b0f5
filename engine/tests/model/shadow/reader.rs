//! One group in one partition: how far its cursor certainly is, how far it may be, and what was delivered to it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included};

use uuid::Uuid;

use super::leases::Leases;
use super::log::Stored;
use crate::words::{Micros, Op, id_ceiling, offset};

#[derive(Default)]
pub struct Reader {
    /// Everything up to here was acknowledged and confirmed.
    finished: Option<Uuid>,
    /// Calls that are running or were lost, and may have moved the cursor up to here.
    maybe: Vec<(Op, Uuid)>,
    /// A seek to the end may have passed over everything up to here.
    skipped: Option<Uuid>,
    seeks_begun: u64,
    seeks_done: u64,
    delivered: BTreeSet<Uuid>,
    /// The last message delivered since the last seek.
    delivered_max: Option<Uuid>,
    deliveries: Vec<Delivery>,
    pub leases: Leases,
}

struct Delivery {
    op: Op,
    ids: Vec<Uuid>,
    /// How far the cursor may have been at that time.
    reach: Option<Uuid>,
}

/// What was certain when a call began.
#[derive(Debug, Clone, Copy)]
pub struct View {
    pub finished: Option<Uuid>,
    delivered_max: Option<Uuid>,
    /// `None`: a seek was in progress.
    seeks: Option<u64>,
}

impl Reader {
    pub fn view(&self) -> View {
        View {
            finished: self.finished,
            delivered_max: self.delivered_max,
            seeks: (self.seeks_begun == self.seeks_done).then_some(self.seeks_done),
        }
    }

    /// Whether no seek can have happened in between.
    pub fn unmoved_since(&self, view: &View) -> bool {
        self.seeks_begun == self.seeks_done && view.seeks == Some(self.seeks_done)
    }

    pub fn may_finish(&mut self, op: Op, top: Uuid) {
        self.maybe.push((op, top));
    }

    pub fn did_not_finish(&mut self, op: Op) {
        self.maybe.retain(|(own, _)| *own != op);
    }

    pub fn finish(&mut self, op: Op, since: &View, top: Option<Uuid>) {
        self.did_not_finish(op);
        if self.unmoved_since(since) {
            self.finished = self.finished.max(top);
        } else if let Some(top) = top {
            self.maybe.push((op, top));
        }
    }

    pub fn seek_began(&mut self, op: Op) {
        self.seeks_begun += 1;
        self.delivered_max = None;
        self.maybe.push((op, Uuid::max()));
        // They may no longer be finished, but the cursor may still be behind them.
        if let Some(finished) = self.finished.take() {
            self.maybe.push((op, finished));
        }
    }

    pub fn seek_answered(&mut self, op: Op, at: Micros, to_end: bool) {
        self.seeks_done += 1;
        self.maybe.retain(|(own, top)| *own != op || *top != Uuid::max());
        if to_end {
            self.skipped = self.skipped.max(Some(id_ceiling(at)));
        }
    }

    /// How far the cursor may be.
    fn reach(&self) -> Option<Uuid> {
        let maybe = self.maybe.iter().map(|(_, top)| *top).max();
        self.finished.max(self.skipped).max(maybe)
    }

    pub fn deliver(
        &mut self,
        op: Op,
        view: &View,
        ids: &[Uuid],
        known: &BTreeMap<Uuid, Stored>,
    ) -> Result<(), String> {
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] >= pair[1]) {
            let (first, second) = (offset(pair[0]), offset(pair[1]));
            return Err(format!("#{second} was delivered behind #{first} in one answer"));
        }
        if self.unmoved_since(view) {
            if view.finished >= Some(ids[0]) {
                return Err(format!("#{} was delivered again after it was finished", offset(ids[0])));
            }
            let late = ids.iter().find(|id| !self.delivered.contains(id) && view.delivered_max > Some(**id));
            if let Some(late) = late {
                let after = view.delivered_max.map(offset);
                return Err(format!("#{} was delivered for the first time after {after:?}", offset(*late)));
            }
        }
        let delivery = Delivery { op, ids: ids.to_vec(), reach: self.reach() };
        delivery.skips_nothing(known)?;
        self.deliveries.push(delivery);
        if self.unmoved_since(view) {
            self.delivered_max = self.delivered_max.max(ids.last().copied());
        }
        self.delivered.extend(ids);
        Ok(())
    }

    /// For a group that acknowledges at delivery; called after `deliver`.
    pub fn delivered_for_good(&mut self, ids: &[Uuid]) -> Result<(), String> {
        let earlier = &self.deliveries[..self.deliveries.len() - 1];
        for id in ids {
            if let Some(first) = earlier.iter().find(|delivery| delivery.ids.contains(id)) {
                return Err(format!("#{} was delivered twice, first by op {}", offset(*id), first.op));
            }
        }
        self.finished = self.finished.max(ids.last().copied());
        Ok(())
    }

    /// The first message that no call can have finished.
    pub fn first_unfinished(&self, known: &BTreeMap<Uuid, Stored>) -> Option<Uuid> {
        let above = self.reach().map_or(Included(Uuid::nil()), Excluded);
        known.range((above, Included(Uuid::max()))).map(|(id, _)| *id).next()
    }

    pub fn nothing_was_skipped(&self, known: &BTreeMap<Uuid, Stored>) -> Result<(), String> {
        self.deliveries.iter().try_for_each(|delivery| delivery.skips_nothing(known))
    }

    pub fn nothing_was_lost(&self, known: &BTreeMap<Uuid, Stored>) -> Result<(), String> {
        // A failed pop of a group that acknowledges at delivery may have taken messages that it did not deliver.
        let at_most_once = self.maybe.iter().any(|(_, top)| *top == Uuid::max());
        let lost = known
            .keys()
            .find(|id| !self.delivered.contains(id) && self.skipped < Some(**id) && !at_most_once);
        lost.map_or(Ok(()), |id| Err(format!("#{} was never delivered", offset(*id))))
    }
}

impl Delivery {
    /// Checks that it contains everything from the cursor to its last message.
    fn skips_nothing(&self, known: &BTreeMap<Uuid, Stored>) -> Result<(), String> {
        let (first, last) = (self.ids[0], self.ids[self.ids.len() - 1]);
        let from = match self.reach {
            None => Included(Uuid::nil()),
            Some(reach) if reach < first => Excluded(reach),
            Some(_) => Included(first),
        };
        let missing = known.range((from, Included(last))).find(|(id, _)| self.ids.binary_search(id).is_err());
        missing.map_or(Ok(()), |(id, _)| {
            let (id, last) = (offset(*id), offset(last));
            Err(format!("op {} skipped #{id} on the way to #{last}", self.op))
        })
    }
}

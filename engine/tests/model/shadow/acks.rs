//! Acknowledgements: what they certainly finished, what they may have finished, and which responses are wrong.

use queen_protocol::AckStatus;
use uuid::Uuid;

use super::leases::Standing;
use super::letters::Nack;
use super::reader::View;
use super::{Checked, Shadow, Violation};
use crate::words::{Group, Micros, Op, Partition, RETRY_LIMIT, Via, offset};

/// Items of one call with one partition, group and lease: they are applied together.
#[derive(Debug, Clone)]
pub struct AckSet {
    pub partition: Partition,
    pub group: Group,
    pub lease: Option<String>,
    pub items: Vec<(Uuid, AckStatus)>,
}

#[derive(Debug, Clone, Default)]
pub struct ItemAnswer {
    pub success: bool,
    pub noop: bool,
    pub dlq: bool,
    /// `None` if the result does not say.
    pub released: Option<bool>,
    pub error: Option<String>,
}

pub struct AckTicket {
    pub(super) op: Op,
    pub(super) at: Micros,
    pub(super) via: Via,
    pub(super) sets: Vec<Asked>,
}

#[derive(Clone)]
pub(super) struct Asked {
    pub(super) set: AckSet,
    pub(super) view: View,
    first: Option<(Uuid, i32)>,
}

impl Shadow {
    pub fn ack_began(&mut self, op: Op, at: Micros, via: Via, sets: Vec<AckSet>) -> AckTicket {
        let asked = sets.into_iter().map(|set| self.asked(op, at, set)).collect();
        AckTicket { op, at, via, sets: asked }
    }

    fn asked(&mut self, op: Op, at: Micros, set: AckSet) -> Asked {
        for (id, status) in &set.items {
            if matches!(status, AckStatus::Failed | AckStatus::Dlq) {
                let (partition, group) = (set.partition, set.group);
                self.nacks.insert((op, *id), Nack { partition, group, status: *status, dlq: None });
            }
        }
        let reader = self.reader(set.partition, set.group);
        let view = reader.view();
        let top = set.highest();
        if let Some(top) = top {
            reader.may_finish(op, top);
        }
        let ends = set.items.iter().any(|(_, status)| matches!(status, AckStatus::Failed | AckStatus::Retry));
        reader.leases.may_end(op, at, set.lease.as_deref(), top, ends);
        let first = set.lease.as_ref().and_then(|lease| reader.leases.first(lease));
        if let Some(lease) = set.lease.as_ref().filter(|_| set.nacks()) {
            reader.leases.attempts_may_change(lease);
        }
        Asked { set, view, first }
    }

    /// `answers`: the results of each set, in the order of its items.
    pub fn ack_answered(&mut self, ticket: &AckTicket, at: Micros, answers: &[Vec<ItemAnswer>]) -> Checked {
        for (asked, answers) in ticket.sets.iter().zip(answers) {
            let set = &asked.set;
            let text = format!("{:?} ack {}", ticket.via, set.describe(answers));
            self.note(at, ticket.op, set.partition, Some(set.group), text);
            let failed = |what| Violation { partition: set.partition, group: Some(set.group), what };
            let span = (ticket.at, at);
            self.judge(ticket.op, ticket.via, span, asked, answers).map_err(failed)?;
            self.apply(ticket.op, ticket.via, at, asked, answers);
        }
        Ok(())
    }

    pub fn ack_lost(&mut self, ticket: &AckTicket, at: Micros, why: &str) {
        for asked in &ticket.sets {
            let (partition, group) = (asked.set.partition, Some(asked.set.group));
            let text = format!("{:?} ack up to {:?}: {why}", ticket.via, asked.set.highest().map(offset));
            self.note(at, ticket.op, partition, group, text);
        }
    }

    fn judge(
        &mut self,
        op: Op,
        via: Via,
        span: (Micros, Micros),
        asked: &Asked,
        answers: &[ItemAnswer],
    ) -> Result<(), String> {
        let set = &asked.set;
        let reader = self.reader(set.partition, set.group);
        let standing = set.lease.as_ref().and_then(|lease| reader.leases.standing(lease, span, op));
        let unmoved = reader.unmoved_since(&asked.view);
        for ((id, status), answer) in set.items.iter().zip(answers) {
            let number = offset(*id);
            let refusal = answer.error.as_deref().unwrap_or_default();
            let completed = *status == AckStatus::Completed;
            if refusal.contains("not found") {
                return Err(format!("#{number} was delivered and cannot be found: {refusal}"));
            }
            let live = standing == Some(Standing::Live) && via == Via::Healthy;
            if live && (refusal.contains("lease") || (completed && !answer.success)) {
                return Err(format!("the ack of #{number} under a live lease was refused: {refusal}"));
            }
            if standing == Some(Standing::Over) && answer.success && !answer.noop {
                return Err(format!("a lease that was over acknowledged #{number}"));
            }
            // If the result is a repeated one, a completion may concern something that was finished before.
            let before = unmoved && asked.view.finished >= Some(*id);
            if before && answer.success && !answer.noop && (via == Via::Healthy || !completed) {
                return Err(format!("#{number} was finished before and acknowledged again as {status:?}"));
            }
        }
        let all = answers.iter().all(|answer| answer.success);
        if via == Via::Healthy && all && standing == Some(Standing::Live) {
            let first = set.in_order().into_iter().find(|&item| {
                matches!(set.items[item].1, AckStatus::Failed | AckStatus::Retry)
                    && Some(set.items[item].0) > asked.view.finished
            });
            if let (Some(item), Some((head, attempts))) = (first, asked.first)
                && set.items[item].1 == AckStatus::Failed
                && answers[item].dlq != (set.items[item].0 == head && attempts >= RETRY_LIMIT)
            {
                let (number, dlq) = (offset(set.items[item].0), answers[item].dlq);
                return Err(format!("#{number} failed after {attempts} retries: dead letter {dlq}"));
            }
        }
        Ok(())
    }

    fn apply(&mut self, op: Op, via: Via, at: Micros, asked: &Asked, answers: &[ItemAnswer]) {
        let set = &asked.set;
        for ((id, _), answer) in set.items.iter().zip(answers) {
            if let Some(nack) = self.nacks.get_mut(&(op, *id))
                && (via == Via::Healthy || answer.success)
            {
                nack.dlq = Some(answer.dlq);
            }
        }
        let reader = self.reader(set.partition, set.group);
        let all = answers.iter().all(|answer| answer.success || answer.came_late());
        let none = answers.iter().all(|answer| !answer.success);
        let released = answers[0].released;
        if all {
            reader.finish(op, &asked.view, set.walked(answers));
            // If the result is a repeated one, it is not certain that a nack stopped the cursor.
            if let Some(top) = set.highest().filter(|_| via == Via::Broken && set.nacks()) {
                reader.may_finish(op, top);
            }
        } else if none && via == Via::Healthy {
            reader.did_not_finish(op);
        }
        if via == Via::Healthy && released == Some(false) {
            reader.leases.ended_nothing(op);
        } else if via == Via::Healthy || all {
            reader.leases.over(op, at);
        }
        if let Some(lease) = set.lease.as_ref().filter(|_| released == Some(true)) {
            reader.leases.released(lease, at);
        }
    }
}

impl ItemAnswer {
    /// A nack of a message that was finished before is refused individually. With a broken engine, this very
    /// call may have finished it.
    fn came_late(&self) -> bool {
        self.error.as_ref().is_some_and(|why| why.contains("committed"))
    }
}

impl AckSet {
    fn nacks(&self) -> bool {
        self.items.iter().any(|(_, status)| *status != AckStatus::Completed)
    }

    fn in_order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by_key(|&item| self.items[item].0);
        order
    }

    /// How far the cursor can get: not past a retry, unless that concerns a message that was finished
    /// before, which is not known yet.
    pub(super) fn highest(&self) -> Option<Uuid> {
        let passable = self.items.iter().filter(|(_, status)| *status != AckStatus::Retry);
        passable.map(|(id, _)| *id).max()
    }

    /// How far the cursor got: a nack stops it, unless it made a dead letter or came too late.
    fn walked(&self, answers: &[ItemAnswer]) -> Option<Uuid> {
        let passed = |item: &usize| {
            let answer = &answers[*item];
            self.items[*item].1 == AckStatus::Completed || answer.dlq || answer.came_late()
        };
        self.in_order().into_iter().take_while(passed).last().map(|item| self.items[item].0)
    }

    fn describe(&self, answers: &[ItemAnswer]) -> String {
        let items = self.in_order().into_iter().map(|item| {
            let ((id, status), answer) = (&self.items[item], &answers[item]);
            let told = match (answer.success, answer.noop, answer.dlq, &answer.error) {
                (true, true, ..) => " noop".to_owned(),
                (true, _, true, _) => " dead".to_owned(),
                (true, ..) => String::new(),
                (false, .., error) => format!(" refused: {}", error.as_deref().unwrap_or_default()),
            };
            format!("#{} {status:?}{told}", offset(*id))
        });
        let released = if answers[0].released == Some(true) { " releases" } else { "" };
        let lease = self.lease.as_deref().unwrap_or("none");
        format!("lease {lease}{released}: {}", items.collect::<Vec<_>>().join(", "))
    }
}

//! The expected state of the queue: what was sent, what was confirmed, what may have happened in between. Every check
//! holds for any interleaving: a call that is still running, was lost or was refused by a broken engine may or may not
//! have been executed, and nothing is concluded from it. It knows no engine and no database; times are arguments.
//!
//! A call is reported twice: when it began, which returns a ticket, and when it was answered.

mod acks;
mod leases;
mod letters;
mod log;
mod reader;
#[cfg(test)]
mod tests;
mod transactions;

use std::collections::HashMap;
use std::fmt::Write as _;

use uuid::Uuid;

pub use acks::{AckSet, ItemAnswer};
pub use letters::DeadLetter;
pub use log::{Placed, Row, Sent};

use crate::words::{Group, LEASE_SECONDS, Micros, Op, PARTITIONS, Partition, Serial, Via, offset};
use leases::{Grant, Standing};
use letters::Nack;
use log::Log;
use reader::{Reader, View};
use transactions::Transaction;

pub struct Shadow {
    ops: Op,
    log: Log,
    readers: HashMap<(Partition, Group), Reader>,
    transactions: HashMap<Op, Transaction>,
    nacks: HashMap<(Op, Uuid), Nack>,
    history: Vec<Event>,
}

struct Event {
    at: Micros,
    op: Op,
    partition: Partition,
    group: Option<Group>,
    text: String,
}

/// A guarantee that was not kept, and where.
#[derive(Debug)]
pub struct Violation {
    pub partition: Partition,
    pub group: Option<Group>,
    pub what: String,
}

pub type Checked<T = ()> = Result<T, Violation>;

/// A message as a pop delivers it.
#[derive(Debug, Clone)]
pub struct Message {
    pub id: Uuid,
    pub transaction: String,
    pub serial: Serial,
    pub created_at: Micros,
    pub retries: i32,
}

pub struct PopTicket {
    op: Op,
    at: Micros,
    via: Via,
    group: Group,
    lease_seconds: i32,
    views: Vec<View>,
}

pub struct SeekTicket {
    op: Op,
    group: Group,
}

pub struct RenewTicket {
    op: Op,
    at: Micros,
    via: Via,
    group: Group,
    lease: String,
    seconds: i32,
}

impl Default for Shadow {
    fn default() -> Self {
        let keys = (0..PARTITIONS).flat_map(|partition| Group::ALL.map(|group| (partition, group)));
        Self {
            ops: 0,
            log: Log::default(),
            readers: keys.map(|key| (key, Reader::default())).collect(),
            transactions: HashMap::new(),
            nacks: HashMap::new(),
            history: Vec::new(),
        }
    }
}

impl Shadow {
    pub fn next_op(&mut self) -> Op {
        self.ops += 1;
        self.ops
    }

    pub fn pop_began(&mut self, at: Micros, via: Via, group: Group, lease_seconds: i32) -> PopTicket {
        let op = self.next_op();
        let views = (0..PARTITIONS).map(|partition| self.reader(partition, group).view()).collect();
        if group.is_auto() {
            // Until the response arrives, the cursor may be anywhere.
            for partition in 0..PARTITIONS {
                self.reader(partition, group).may_finish(op, Uuid::max());
            }
        }
        let lease_seconds = if lease_seconds > 0 { lease_seconds } else { LEASE_SECONDS };
        PopTicket { op, at, via, group, lease_seconds, views }
    }

    /// `messages`: by partition; none for an empty response.
    pub fn pop_answered(
        &mut self,
        ticket: &PopTicket,
        at: Micros,
        lease: &str,
        messages: &[(Partition, Vec<Message>)],
    ) -> Checked {
        let group = ticket.group;
        if ticket.via == Via::Healthy && group.is_auto() {
            for partition in 0..PARTITIONS {
                self.reader(partition, group).did_not_finish(ticket.op);
            }
        }
        for (partition, messages) in messages {
            let ids: Vec<Uuid> = messages.iter().map(|message| message.id).collect();
            let retries = messages[0].retries;
            let text = format!("{:?} pop delivers {} retry {retries} lease {lease}", ticket.via, run(&ids));
            self.note(at, ticket.op, *partition, Some(group), text);
            let failed = |what| Violation { partition: *partition, group: Some(group), what };
            for (place, message) in messages.iter().enumerate() {
                if message.retries > if place == 0 { crate::words::RETRY_LIMIT } else { 0 } {
                    return Err(failed(format!("retry {} on #{}", message.retries, offset(message.id))));
                }
                self.log.delivered(*partition, message).map_err(failed)?;
                self.observed(message.serial);
            }
            let known = self.log.known(*partition);
            let reader = self.readers.get_mut(&(*partition, group)).expect("all readers are there");
            reader.deliver(ticket.op, &ticket.views[*partition], &ids, known).map_err(failed)?;
            if group.is_auto() {
                reader.delivered_for_good(&ids).map_err(failed)?;
                continue;
            }
            let grant = Grant::new(ticket.op, lease, ticket.via, (ticket.at, at), ticket.lease_seconds)
                .over(&ids, retries);
            reader.leases.granted(grant).map_err(failed)?;
        }
        Ok(())
    }

    pub fn seek_began(&mut self, at: Micros, group: Group) -> SeekTicket {
        let op = self.next_op();
        for partition in 0..PARTITIONS {
            self.note(at, op, partition, Some(group), "seek begins".to_owned());
            let reader = self.reader(partition, group);
            reader.seek_began(op);
            reader.leases.may_all_end(op, at);
        }
        SeekTicket { op, group }
    }

    pub fn seek_answered(&mut self, ticket: &SeekTicket, at: Micros, to_end: bool) {
        for partition in 0..PARTITIONS {
            let text = format!("seek to the {} ends", if to_end { "end" } else { "start" });
            self.note(at, ticket.op, partition, Some(ticket.group), text);
            let reader = self.reader(partition, ticket.group);
            reader.seek_answered(ticket.op, at, to_end);
            reader.leases.over(ticket.op, at);
        }
    }

    pub fn renew_began(
        &mut self,
        at: Micros,
        via: Via,
        group: Group,
        lease: &str,
        seconds: i32,
    ) -> RenewTicket {
        let op = self.next_op();
        for partition in 0..PARTITIONS {
            self.reader(partition, group).leases.renewing(lease);
        }
        RenewTicket { op, at, via, group, lease: lease.to_owned(), seconds }
    }

    /// `renewed`: how many partition leases were extended. `until`: the earliest time at which they expire.
    pub fn renew_answered(
        &mut self,
        ticket: &RenewTicket,
        at: Micros,
        renewed: usize,
        until: Option<Micros>,
    ) -> Checked {
        let length = i64::from(ticket.seconds) * 1_000_000;
        let text = format!("{:?} renew {}: {renewed} until {until:?}", ticket.via, ticket.lease);
        let mut standings = Vec::new();
        for partition in 0..PARTITIONS {
            let leases = &self.reader(partition, ticket.group).leases;
            if let Some(standing) = leases.standing(&ticket.lease, (ticket.at, at), ticket.op) {
                standings.push((partition, standing));
                self.note(at, ticket.op, partition, Some(ticket.group), text.clone());
            }
        }
        let count = |wanted| standings.iter().filter(|(_, standing)| *standing == wanted).count();
        let (live, over, all) = (count(Standing::Live), count(Standing::Over), standings.len());
        let too_few = renewed < live && ticket.via == Via::Healthy;
        let too_short = renewed > 0 && until.is_none_or(|until| until < ticket.at + length);
        if too_few || too_short || renewed > all - over {
            let what = format!("{text}; of {all} leases {live} are live and {over} over");
            let partition = standings.first().map_or(0, |(partition, _)| *partition);
            return Err(Violation { partition, group: Some(ticket.group), what });
        }
        for (partition, _) in standings {
            let least = until.filter(|_| renewed == all);
            let most = (ticket.via == Via::Healthy).then_some(at + length);
            self.reader(partition, ticket.group).leases.renewed(&ticket.lease, least, most);
        }
        Ok(())
    }

    /// Called when a pop returns nothing: everything known to be stored was delivered, or may have been finished.
    pub fn nothing_is_left(&self, group: Group) -> Checked {
        for partition in 0..PARTITIONS {
            let reader = &self.readers[&(partition, group)];
            if let Some(left) = reader.first_unfinished(self.log.known(partition)) {
                let what = format!("a pop finds nothing while #{} waits", offset(left));
                return Err(Violation { partition, group: Some(group), what });
            }
        }
        Ok(())
    }

    /// Every stored message reached the group, and no delivery has a gap. For the end, when everything is known.
    pub fn all_was_delivered(&self, group: Group) -> Checked {
        for partition in 0..PARTITIONS {
            let reader = &self.readers[&(partition, group)];
            let failed = |what| Violation { partition, group: Some(group), what };
            reader.nothing_was_skipped(self.log.known(partition)).map_err(failed)?;
            if group != Group::Far {
                reader.nothing_was_lost(self.log.known(partition)).map_err(failed)?;
            }
        }
        Ok(())
    }

    /// The report about a guarantee that was not kept.
    pub fn explain(&self, violation: &Violation) -> String {
        let mut text = format!(
            "{}\n  in p{} for {:?}; what happened there:\n",
            violation.what, violation.partition, violation.group
        );
        let start = self.history.first().map_or(0, |event| event.at);
        let told = self.history.iter().filter(|event| {
            event.partition == violation.partition
                && (event.group.is_none() || violation.group.is_none() || event.group == violation.group)
        });
        for event in told {
            let at = (event.at - start) as f64 / 1000.0;
            let group = event.group.map(Group::name).unwrap_or_default();
            let _ = writeln!(text, "  {at:9.1} ms  op {:<5} {group:14} {}", event.op, event.text);
        }
        text
    }

    fn reader(&mut self, partition: Partition, group: Group) -> &mut Reader {
        self.readers.get_mut(&(partition, group)).expect("all readers are there")
    }

    fn note(&mut self, at: Micros, op: Op, partition: Partition, group: Option<Group>, text: String) {
        self.history.push(Event { at, op, partition, group, text });
    }
}

/// Offsets of messages, shortened: `#3..#9`.
fn run(ids: &[Uuid]) -> String {
    match ids {
        [] => "nothing".to_owned(),
        [one] => format!("#{}", offset(*one)),
        [first, .., last] => format!("#{}..#{} ({})", offset(*first), offset(*last), ids.len()),
    }
}

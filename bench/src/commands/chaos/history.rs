//! The requests sent to the brokers and their responses, with times. Judges nothing.
//!
//! Times are those of one monotonic clock. `sent` is taken before the first byte is sent, `ended` after the last byte of the response
//! arrived or the caller gave up: whatever the broker did, it did not do it before `sent`, and what a response reports was done by
//! `ended`.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use uuid::Uuid;

pub type Time = Duration;

/// Producers write to it, and transactors read it.
pub const SOURCE: u8 = 0;
/// Transactors write to it.
pub const SINK: u8 = 1;
/// Without deduplication: three transaction ids, used repeatedly.
pub const REPEATS: u8 = 2;
/// Messages that fail twice become dead letters.
pub const FRAIL: u8 = 3;
/// Deleted and recreated while it is in use.
pub const FLEETING: u8 = 4;
pub const QUEUES: [&str; 5] = ["source", "sink", "repeats", "frail", "fleeting"];

/// A partition of a queue. It has one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    pub queue: u8,
    pub number: u16,
}

/// A message: the contents of its payload. `seq` counts in the order in which the lane's writer first sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub lane: Lane,
    pub seq: u32,
}

/// A consumer group, as a position in [`GROUPS`].
pub type Group = usize;

/// The behavior of a group's consumers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// Complete, fail, forget, renew, and are late.
    Mixed,
    /// Acknowledge in transactions that write to the sink.
    Moves,
    /// Wait for minutes, so that a lost wake-up shows.
    Waits,
    /// Wait for minutes as well, and handle messages like `Mixed`: a message may arrive while its partition is leased.
    Dozes,
    /// Pop once at the start, and come back when the faults are over.
    Away,
    /// Take messages without a lease.
    AutoAck,
    /// Moved back to the beginning every now and then; wait for minutes as well.
    Rewound,
    /// Complete or fail, so that some messages become dead letters.
    GivesUp,
    /// Complete messages of a queue that is deleted at times.
    Fleeting,
}

/// Every group reads all of one queue.
pub const GROUPS: [(&str, u8, Manner); 13] = [
    ("alpha", SOURCE, Manner::Mixed),
    ("beta", SOURCE, Manner::Mixed),
    ("movers", SOURCE, Manner::Moves),
    ("gamma", SINK, Manner::Mixed),
    ("delta", SINK, Manner::Mixed),
    ("sleepers", SOURCE, Manner::Waits),
    ("away", SOURCE, Manner::Away),
    ("auto", SOURCE, Manner::AutoAck),
    ("rewound", SINK, Manner::Rewound),
    ("repeated", REPEATS, Manner::Mixed),
    ("frail", FRAIL, Manner::GivesUp),
    ("fleeting", FLEETING, Manner::Fleeting),
    ("dozers", SOURCE, Manner::Dozes),
];
/// The group whose acknowledgements are transactions.
pub const MOVERS: Group = 2;
pub const AUTO: Group = 7;
pub const REWOUND: Group = 8;
/// The group whose messages may become dead letters.
pub const GIVES_UP: Group = 10;
pub const FLEETERS: Group = 11;

impl Manner {
    /// Whether every accepted message must be delivered to the group.
    pub fn is_owed_all(self) -> bool {
        !matches!(self, Manner::AutoAck | Manner::Fleeting)
    }

    /// Whether a partition has one holder at a time, whose reports alone move its cursor forward.
    pub fn has_plain_leases(self) -> bool {
        !matches!(self, Manner::AutoAck | Manner::Rewound | Manner::Fleeting)
    }

    /// Whether a message is only delivered after everything before it was completed.
    pub fn is_in_order(self) -> bool {
        self.has_plain_leases() && self != Manner::GivesUp
    }
}

/// What a caller knows about its request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome<T> {
    Answered(T),
    /// The request may have been executed, may be executed later, or never.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Push {
    pub sent: Time,
    pub ended: Time,
    pub broker: usize,
    pub items: Vec<Key>,
    pub outcome: Outcome<Vec<Receipt>>,
}

/// What a 2xx reports about an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Receipt {
    /// Queued, or a duplicate of a queued one.
    Stored(Uuid),
    /// Deferred in the database, to be stored in order.
    Deferred(Uuid),
    /// In the spool of the broker.
    Buffered(Uuid),
    Failed,
}

/// A pop that delivered messages. Those of a lane are in the order of the response.
#[derive(Clone, Debug)]
pub struct Pop {
    pub sent: Time,
    pub ended: Time,
    pub broker: usize,
    pub group: Group,
    pub lease: String,
    pub lease_time: Duration,
    /// How long it was willing to wait.
    pub wait: Duration,
    pub messages: Vec<(Key, Uuid)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    Completed,
    /// `retry` or `failed`: the lease ends, and the message is redelivered.
    Again,
}

/// The acknowledgements of one call that concern one lane.
#[derive(Clone, Debug)]
pub struct Settle {
    pub sent: Time,
    pub ended: Time,
    pub lease: String,
    pub lane: Lane,
    pub items: Vec<(Key, Verdict)>,
    pub outcome: Outcome<Vec<Settled>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settled {
    pub success: bool,
    pub noop: bool,
    /// A 202: accepted under a live lease, which is held until it is executed.
    pub deferred: bool,
}

#[derive(Clone, Debug)]
pub struct Renewal {
    pub sent: Time,
    pub ended: Time,
    pub lease: String,
    pub extension: Duration,
    /// How many partitions it covered.
    pub outcome: Outcome<u32>,
}

/// One attempt of a transaction that acknowledges everything of one lane in a lease and pushes `outputs`.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub sent: Time,
    pub ended: Time,
    /// The same for all attempts.
    pub number: u32,
    pub broker: usize,
    pub lease: String,
    pub sources: Vec<Key>,
    pub outputs: Vec<Key>,
    pub outcome: Outcome<bool>,
}

/// A group was moved back to the beginning.
#[derive(Clone, Copy, Debug)]
pub struct Seek {
    pub sent: Time,
    pub outcome: Outcome<()>,
}

/// A time in which nothing is checked that depends on durations.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: Time,
    pub until: Time,
}

#[derive(Debug, Default)]
pub struct History {
    pub pushes: Vec<Push>,
    pub pops: Vec<Pop>,
    /// Pops with a lost response: they may hold a lease that no consumer knows.
    pub lost_pops: u64,
    /// Messages that such a pop may have completed.
    pub lost_auto_acks: u64,
    pub settles: Vec<Settle>,
    pub renewals: Vec<Renewal>,
    pub transactions: Vec<Transaction>,
    pub seeks: Vec<Seek>,
    /// Every attempt to delete the fleeting queue, from its request to the time by which it must have happened.
    pub deletes: Vec<Span>,
    pub faults: Vec<Span>,
    /// While the clock of PostgreSQL was wrong.
    pub clock_jumps: Vec<Span>,
    /// The contents of the dead-letter queue at the end, with the ids under which messages had been stored.
    pub dead: Vec<(Key, Uuid)>,
    /// Calls that were canceled on purpose, by method and path, and how many of them got no response.
    pub hang_ups: BTreeMap<String, u64>,
    open: Open,
}

/// What is still to be delivered, kept up to date to wait for the end.
#[derive(Debug, Default)]
struct Open {
    missing: HashSet<(Group, Key)>,
    delivered: HashSet<(Group, Key)>,
    /// Missing, except for groups that are away.
    backlog: usize,
    last_delivery: Time,
}

impl History {
    pub fn push(&mut self, push: Push) {
        if let Outcome::Answered(receipts) = &push.outcome {
            let accepted = |receipt: &Receipt| *receipt != Receipt::Failed;
            for (&key, _) in push.items.iter().zip(receipts).filter(|(_, receipt)| accepted(receipt)) {
                self.open.accept(key);
            }
        }
        self.pushes.push(push);
    }

    pub fn pop(&mut self, pop: Pop) {
        self.open.last_delivery = pop.ended;
        for &(key, _) in &pop.messages {
            self.open.delivered.insert((pop.group, key));
            if self.open.missing.remove(&(pop.group, key)) && !is_away(pop.group) {
                self.open.backlog -= 1;
            }
        }
        self.pops.push(pop);
    }

    pub fn transaction(&mut self, transaction: Transaction) {
        if transaction.outcome == Outcome::Answered(true) {
            for &key in &transaction.outputs {
                self.open.accept(key);
            }
        }
        self.transactions.push(transaction);
    }

    /// Requests and responses, a line per call, in the order of the responses.
    pub fn lines(&self) -> String {
        let mut lines: Vec<(Time, String)> = Vec::new();
        lines.extend(self.pushes.iter().map(|push| (push.ended, format!("{push:?}"))));
        lines.extend(self.pops.iter().map(|pop| (pop.ended, format!("{pop:?}"))));
        lines.extend(self.settles.iter().map(|settle| (settle.ended, format!("{settle:?}"))));
        lines.extend(self.renewals.iter().map(|renewal| (renewal.ended, format!("{renewal:?}"))));
        lines.extend(self.transactions.iter().map(|one| (one.ended, format!("{one:?}"))));
        lines.extend(self.seeks.iter().map(|seek| (seek.sent, format!("{seek:?}"))));
        lines.extend(self.deletes.iter().map(|span| (span.until, format!("delete {span:?}"))));
        lines.extend(self.faults.iter().map(|span| (span.until, format!("fault {span:?}"))));
        lines.sort();
        lines.into_iter().map(|(_, line)| line + "\n").collect()
    }

    /// Deliveries that are owed.
    pub fn missing(&self) -> usize {
        self.open.missing.len()
    }

    /// Deliveries that are owed to groups other than the absent ones.
    pub fn backlog(&self) -> usize {
        self.open.backlog
    }

    pub fn last_delivery(&self) -> Time {
        self.open.last_delivery
    }
}

impl Open {
    fn accept(&mut self, key: Key) {
        for group in groups_of(key.lane.queue) {
            let owed = !self.delivered.contains(&(group, key)) && self.missing.insert((group, key));
            if owed && !is_away(group) {
                self.backlog += 1;
            }
        }
    }
}

fn is_away(group: Group) -> bool {
    GROUPS[group].2 == Manner::Away
}

/// The groups to which every accepted message of a queue must be delivered.
pub fn groups_of(queue: u8) -> impl Iterator<Item = Group> {
    (0..GROUPS.len()).filter(move |&group| GROUPS[group].1 == queue && GROUPS[group].2.is_owed_all())
}

//! What was sent to the brokers and what they answered, with the times of both. Judges nothing.
//!
//! Times are those of one monotonic clock. `sent` is taken before the first byte leaves, `ended` after the last byte of
//! the answer came or the caller gave up: whatever the broker did, it did not do it before `sent`, and what an answer
//! tells was done by `ended`.

use std::collections::HashSet;
use std::time::Duration;

use uuid::Uuid;

pub type Time = Duration;

/// Producers write to it, and transactors read it.
pub const SOURCE: u8 = 0;
/// Transactors write to it.
pub const SINK: u8 = 1;
pub const QUEUES: [&str; 2] = ["source", "sink"];

/// A partition of a queue. It has one writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane {
    pub queue: u8,
    pub number: u16,
}

/// A message: what its payload carries. `seq` counts up in the order in which the writer of the lane sent them first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub lane: Lane,
    pub seq: u32,
}

/// A consumer group, as a position in [`GROUPS`].
pub type Group = usize;

/// Every group reads all of one queue.
pub const GROUPS: [(&str, u8); 5] =
    [("alpha", SOURCE), ("beta", SOURCE), ("movers", SOURCE), ("gamma", SINK), ("delta", SINK)];
/// The group whose acknowledgements are transactions.
pub const MOVERS: Group = 2;

/// What a caller knows about what it asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome<T> {
    Answered(T),
    /// It may have been done, may be done any time from now, or never.
    Unknown,
}

#[derive(Clone, Debug)]
pub struct Push {
    pub sent: Time,
    pub broker: usize,
    pub items: Vec<Key>,
    pub outcome: Outcome<Vec<Receipt>>,
}

/// What a 2xx says about an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Receipt {
    /// Queued, or a duplicate of what was queued before.
    Stored(Uuid),
    /// Put aside in the database, to be stored in order.
    Deferred(Uuid),
    /// In the spool of the broker.
    Buffered(Uuid),
    Failed,
}

/// A pop that delivered something. The messages of a lane are in the order of the answer.
#[derive(Clone, Debug)]
pub struct Pop {
    pub sent: Time,
    pub ended: Time,
    pub group: Group,
    pub lease: String,
    pub lease_time: Duration,
    pub messages: Vec<(Key, Uuid)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Verdict {
    Completed,
    /// `retry` or `failed`: the lease ends, and the message comes again.
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
    /// A 202: accepted under a live lease, which is held until it has landed.
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

/// One try of a transaction that acknowledges everything of one lane in a lease and pushes `outputs`.
#[derive(Clone, Debug)]
pub struct Transaction {
    pub sent: Time,
    pub ended: Time,
    /// The same for all tries.
    pub number: u32,
    pub broker: usize,
    pub lease: String,
    pub sources: Vec<Key>,
    pub outputs: Vec<Key>,
    pub outcome: Outcome<bool>,
}

#[derive(Debug, Default)]
pub struct History {
    pub pushes: Vec<Push>,
    pub pops: Vec<Pop>,
    /// Pops whose answer was lost: they may hold a lease that nobody knows.
    pub lost_pops: u64,
    pub settles: Vec<Settle>,
    pub renewals: Vec<Renewal>,
    pub transactions: Vec<Transaction>,
    open: Open,
}

/// What is still to be delivered, kept up to date so that the end can be waited for.
#[derive(Debug, Default)]
struct Open {
    missing: HashSet<(Group, Key)>,
    delivered: HashSet<(Group, Key)>,
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
            self.open.missing.remove(&(pop.group, key));
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

    /// Deliveries that are owed.
    pub fn missing(&self) -> usize {
        self.open.missing.len()
    }

    pub fn last_delivery(&self) -> Time {
        self.open.last_delivery
    }
}

impl Open {
    fn accept(&mut self, key: Key) {
        for group in groups_of(key.lane.queue) {
            if !self.delivered.contains(&(group, key)) {
                self.missing.insert((group, key));
            }
        }
    }
}

pub fn groups_of(queue: u8) -> impl Iterator<Item = Group> {
    (0..GROUPS.len()).filter(move |&group| GROUPS[group].1 == queue)
}

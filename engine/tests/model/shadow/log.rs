//! What was sent and what is stored: one message per transaction id, ids and times that only grow, nothing invented.

use std::collections::{BTreeMap, HashMap, HashSet};

use uuid::Uuid;

use super::{Checked, Message, Shadow, Violation, run};
use crate::words::{Micros, Op, PARTITIONS, Partition, Serial, Via, offset};

#[derive(Default)]
pub struct Log {
    lanes: [Lane; PARTITIONS],
    sent: HashMap<Serial, Fate>,
}

#[derive(Default)]
struct Lane {
    stored: BTreeMap<Uuid, Stored>,
    by_transaction: HashMap<String, Uuid>,
}

pub struct Stored {
    transaction: String,
    serial: Option<Serial>,
    created_at: Option<Micros>,
}

/// A message that is being pushed.
#[derive(Debug, Clone)]
pub struct Sent {
    pub partition: Partition,
    pub serial: Serial,
    pub transaction: Option<String>,
    /// No other message with this transaction id is sent to this partition.
    pub unique: bool,
}

struct Fate {
    sent: Sent,
    op: Op,
    rolled_back: bool,
}

/// The result of a push for one message.
#[derive(Debug, Clone)]
pub struct Placed {
    pub id: Uuid,
    pub transaction: String,
    pub duplicate: bool,
}

pub struct PushTicket {
    op: Op,
    via: Via,
    items: Vec<Sent>,
    /// By partition, the last message that was known when the call began.
    floors: Vec<Option<Uuid>>,
}

impl PushTicket {
    /// Separates messages with unknown outcome from the rest.
    pub fn split(self, is_lost: impl Fn(Serial) -> bool) -> (Self, Self) {
        let (lost, answered) = self.items.into_iter().partition(|sent: &Sent| is_lost(sent.serial));
        let with = |items| Self { op: self.op, via: self.via, items, floors: self.floors.clone() };
        (with(answered), with(lost))
    }
}

/// A message as the database holds it.
#[derive(Debug, Clone)]
pub struct Row {
    pub id: Uuid,
    pub offset: i64,
    pub transaction: String,
    pub serial: Serial,
    pub created_at: Micros,
}

impl Shadow {
    pub fn push_began(&mut self, op: Op, via: Via, items: Vec<Sent>) -> PushTicket {
        for sent in &items {
            self.log.sent.insert(sent.serial, Fate { sent: sent.clone(), op, rolled_back: false });
        }
        let last = |lane: &Lane| lane.stored.last_key_value().map(|(id, _)| *id);
        PushTicket { op, via, items, floors: self.log.lanes.iter().map(last).collect() }
    }

    pub fn push_answered(&mut self, ticket: &PushTicket, at: Micros, placed: &[Placed]) -> Checked {
        for (sent, placed) in ticket.items.iter().zip(placed) {
            let word = if placed.duplicate { "duplicate" } else { "queued" };
            let text = format!("{:?} push: #{} {word} {}", ticket.via, offset(placed.id), placed.transaction);
            self.note(at, ticket.op, sent.partition, None, text);
        }
        let mut floors = ticket.floors.clone();
        for (sent, placed) in ticket.items.iter().zip(placed) {
            let floor = &mut floors[sent.partition];
            let failed = |what| Violation { partition: sent.partition, group: None, what };
            self.log.placed(ticket.via, sent, placed, floor).map_err(failed)?;
        }
        Ok(())
    }

    pub fn push_lost(&mut self, ticket: &PushTicket, at: Micros, why: &str) {
        for sent in &ticket.items {
            let text = format!("{:?} push of {}: {why}", ticket.via, sent.serial);
            self.note(at, ticket.op, sent.partition, None, text);
        }
    }

    pub fn push_rolled_back(&mut self, ticket: &PushTicket) {
        for sent in &ticket.items {
            if let Some(fate) = self.log.sent.get_mut(&sent.serial) {
                fate.rolled_back = true;
            }
        }
    }

    /// The contents of a partition in the database at the end, in order. No operation is pending anymore.
    pub fn truth(&mut self, at: Micros, partition: Partition, rows: &[Row]) -> Checked {
        let ids: Vec<Uuid> = rows.iter().map(|row| row.id).collect();
        self.note(at, 0, partition, None, format!("the log holds {}", run(&ids)));
        self.log.truth(partition, rows).map_err(|what| Violation { partition, group: None, what })
    }

    pub(super) fn sender(&self, serial: Serial) -> Option<Op> {
        self.log.sent.get(&serial).map(|fate| fate.op)
    }

    /// How many of these messages are known to be stored.
    pub(super) fn stored(&self, serials: &[Serial]) -> usize {
        let held = |serial: &Serial| {
            self.log
                .lanes
                .iter()
                .any(|lane| lane.stored.values().any(|stored| stored.serial == Some(*serial)))
        };
        serials.iter().filter(|serial| held(serial)).count()
    }
}

impl Log {
    pub fn known(&self, partition: Partition) -> &BTreeMap<Uuid, Stored> {
        &self.lanes[partition].stored
    }

    fn placed(
        &mut self,
        via: Via,
        sent: &Sent,
        placed: &Placed,
        floor: &mut Option<Uuid>,
    ) -> Result<(), String> {
        let id = offset(placed.id);
        if sent.transaction.as_ref().is_some_and(|transaction| *transaction != placed.transaction) {
            return Err(format!("#{id} was pushed as {:?} and answered as {placed:?}", sent.transaction));
        }
        if sent.unique && placed.duplicate {
            return Err(format!("#{id} {} is called a duplicate of itself", placed.transaction));
        }
        // A broken engine that finds a message stored cannot always distinguish its own from another's.
        let own = !placed.duplicate && (via == Via::Healthy || sent.unique);
        if own {
            if floor.is_some_and(|floor| floor >= placed.id) {
                return Err(format!("#{id} was stored before what came before it: {:?}", floor.map(offset)));
            }
            *floor = Some(placed.id);
        }
        self.learn(sent.partition, placed.id, &placed.transaction, own.then_some(sent.serial), None)
    }

    pub fn delivered(&mut self, partition: Partition, message: &Message) -> Result<(), String> {
        self.known_sent(partition, message.serial, &message.transaction, message.id)?;
        let (serial, created_at) = (Some(message.serial), Some(message.created_at));
        self.learn(partition, message.id, &message.transaction, serial, created_at)
    }

    fn known_sent(
        &self,
        partition: Partition,
        serial: Serial,
        transaction: &str,
        id: Uuid,
    ) -> Result<(), String> {
        let id = offset(id);
        let Some(fate) = self.sent.get(&serial) else {
            return Err(format!("#{id} holds {serial}, which nobody pushed"));
        };
        if fate.sent.partition != partition {
            return Err(format!("#{id} holds {serial}, which was pushed to p{}", fate.sent.partition));
        }
        if fate.sent.transaction.as_ref().is_some_and(|sent| sent != transaction) {
            return Err(format!("#{id} is {transaction} and was pushed as {:?}", fate.sent.transaction));
        }
        if fate.rolled_back {
            return Err(format!("#{id} was pushed by op {}, which was rolled back", fate.op));
        }
        Ok(())
    }

    fn learn(
        &mut self,
        partition: Partition,
        id: Uuid,
        transaction: &str,
        serial: Option<Serial>,
        created_at: Option<Micros>,
    ) -> Result<(), String> {
        let lane = &mut self.lanes[partition];
        let first = *lane.by_transaction.entry(transaction.to_owned()).or_insert(id);
        if first != id {
            return Err(format!("{transaction} is stored twice: #{} and #{}", offset(first), offset(id)));
        }
        let stored = lane.stored.entry(id).or_insert_with(|| Stored {
            transaction: transaction.to_owned(),
            serial: None,
            created_at: None,
        });
        if stored.transaction != transaction {
            return Err(format!("#{} is both {} and {transaction}", offset(id), stored.transaction));
        }
        match (stored.serial, serial) {
            (Some(first), Some(second)) if first != second => {
                return Err(format!("#{} holds both {first} and {second}", offset(id)));
            }
            (None, serial) => stored.serial = serial,
            (Some(_), _) => {}
        }
        let Some(at) = created_at else { return Ok(()) };
        if *stored.created_at.get_or_insert(at) != at {
            return Err(format!("#{} was created at two times", offset(id)));
        }
        let before = lane.stored.range(..id).rev().find_map(|(_, stored)| stored.created_at);
        let after = lane.stored.range(id..).skip(1).find_map(|(_, stored)| stored.created_at);
        if before.is_some_and(|before| before > at) || after.is_some_and(|after| after < at) {
            return Err(format!("createdAt runs backwards at #{}", offset(id)));
        }
        Ok(())
    }

    fn truth(&mut self, partition: Partition, rows: &[Row]) -> Result<(), String> {
        let mut serials = HashSet::new();
        for (place, row) in rows.iter().enumerate() {
            if row.offset != place as i64 || offset(row.id) != place as u64 {
                return Err(format!("#{} is in place {place} of the log", row.offset));
            }
            if place > 0 && (rows[place - 1].id >= row.id || rows[place - 1].created_at > row.created_at) {
                return Err(format!("ids or times run backwards at #{place}"));
            }
            if !serials.insert(row.serial) {
                return Err(format!("{} is stored twice, the second time as #{place}", row.serial));
            }
            self.known_sent(partition, row.serial, &row.transaction, row.id)?;
            self.learn(partition, row.id, &row.transaction, Some(row.serial), Some(row.created_at))?;
        }
        let held: HashSet<Uuid> = rows.iter().map(|row| row.id).collect();
        match self.lanes[partition].stored.keys().find(|id| !held.contains(id)) {
            Some(lost) => Err(format!("#{} was answered or delivered and is not in the log", offset(*lost))),
            None => Ok(()),
        }
    }
}

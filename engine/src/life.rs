//! What happens to traced messages, noted in memory and written by `jobs/life.rs` a moment later. Best effort: the
//! number of waiting events is limited, and those that do not fit are counted and dropped. The message path never
//! waits for it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use queen_protocol::{AckStatus, TraceParent};
use tokio::sync::Notify;
use uuid::Uuid;

use crate::log::Partition;
use crate::message::ack_plan::Item;

/// Events that wait to be written, about 10 MB at worst.
const WAITING_MAX: usize = 10_000;

/// Acks that wait to be looked up.
const LOOK_UPS_MAX: usize = 1_000;

/// An error text may be as large as a request; here its beginning is enough.
const ERROR_CHARS_MAX: usize = 1_000;

/// Of one transaction: every message it acknowledges is a parent of every message it pushes.
const RELATIONS_MAX: usize = 1_000;

/// A message whose sender asked for it to be traced.
#[derive(Debug, Clone)]
pub struct TracedMessage {
    pub offset: i64,
    pub message_id: Uuid,
    pub transaction_id: Arc<str>,
    pub parent: Option<TraceParent>,
}

/// The traced messages of one delivery.
#[derive(Debug)]
pub struct Traced {
    /// The offset of the first message of the delivery, traced or not, and the number of this delivery of it, from 1;
    /// `None`: only another broker knows them.
    pub first: Option<(i64, i32)>,
    pub messages: Vec<TracedMessage>,
}

impl Traced {
    /// Failures are counted for the first message only.
    fn attempt(&self, offset: i64) -> Option<i32> {
        self.first.map(|(first, attempt)| if offset == first { attempt } else { 1 })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happened {
    Delivered,
    Completed,
    Failed,
    Retry,
    DeadLetter,
    /// Given up, in a queue that keeps no dead letters.
    Dropped,
    /// A message was pushed in the transaction that acknowledged this one.
    Child,
    /// A message was acknowledged in the transaction that pushed this one.
    Parent,
}

impl Happened {
    pub fn word(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Retry => "retry",
            Self::DeadLetter => "dead_letter",
            Self::Dropped => "dropped",
            Self::Child => "child",
            Self::Parent => "parent",
        }
    }
}

/// A message by all its names.
#[derive(Debug, Clone)]
pub struct Named {
    pub partition: Arc<Partition>,
    pub offset: i64,
    pub message_id: Uuid,
    pub transaction_id: Arc<str>,
}

/// The transaction in which one message was acknowledged and another pushed.
#[derive(Debug, Clone)]
pub struct Relation {
    pub transaction: Uuid,
    pub other: Named,
}

#[derive(Debug, Clone)]
pub struct Event {
    pub at: Instant,
    pub partition: Uuid,
    pub offset: i64,
    pub message_id: Uuid,
    pub transaction_id: Arc<str>,
    pub happened: Happened,
    pub group: Option<Arc<str>>,
    pub attempt: Option<i32>,
    pub error: Option<String>,
    pub relation: Option<Relation>,
}

/// An ack of a lease that another broker served and that has traced messages; the log has to be asked which.
#[derive(Debug)]
pub struct LookUp {
    pub at: Instant,
    pub partition: Uuid,
    pub group: Arc<str>,
    pub items: Vec<Item>,
    pub moved: Moved,
}

impl LookUp {
    /// The end of the offsets to look up.
    pub fn end(&self) -> i64 {
        let items = self.items.iter().map(|item| item.offset + 1).max().unwrap_or(0);
        items.max(self.moved.to)
    }

    pub fn events(&self, traced: &Traced) -> Vec<Event> {
        settled(self.at, self.partition, &self.group, traced, &self.items, self.moved)
    }
}

/// How many events were recorded, and how many were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifeCounts {
    pub recorded: u64,
    pub dropped: u64,
}

/// # Invariants
/// - No more events wait than the limit; the oldest stay.
#[derive(Default)]
pub struct Life {
    waiting: Mutex<VecDeque<Event>>,
    look_ups: Mutex<VecDeque<LookUp>>,
    /// Held while writing, so that events of one broker stay in order.
    pub writing: tokio::sync::Mutex<()>,
    pub noted: Notify,
    recorded: AtomicU64,
    dropped: AtomicU64,
}

impl Life {
    pub fn note(&self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let mut waiting = self.waiting();
        let room = WAITING_MAX.saturating_sub(waiting.len());
        let over = events.len().saturating_sub(room);
        waiting.extend(events.into_iter().take(room));
        drop(waiting);
        self.forgotten(over);
        self.noted.notify_one();
    }

    pub fn look_up(&self, look_up: LookUp) {
        let mut look_ups = self.look_ups.lock().unwrap_or_else(PoisonError::into_inner);
        let full = look_ups.len() >= LOOK_UPS_MAX;
        if !full {
            look_ups.push_back(look_up);
        }
        drop(look_ups);
        self.forgotten(usize::from(full));
        self.noted.notify_one();
    }

    pub fn take_look_up(&self) -> Option<LookUp> {
        self.look_ups.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
    }

    /// The oldest waiting events.
    pub fn take(&self, limit: usize) -> Vec<Event> {
        let mut waiting = self.waiting();
        let count = limit.min(waiting.len());
        waiting.drain(..count).collect()
    }

    /// Puts back events that could not be sent; they come first again.
    pub fn give_back(&self, events: Vec<Event>) {
        let mut waiting = self.waiting();
        let room = WAITING_MAX.saturating_sub(waiting.len());
        let over = events.len().saturating_sub(room);
        for event in events.into_iter().take(room).rev() {
            waiting.push_front(event);
        }
        drop(waiting);
        self.forgotten(over);
    }

    pub fn is_empty(&self) -> bool {
        self.waiting().is_empty()
    }

    pub fn written(&self, events: usize) {
        self.recorded.fetch_add(events as u64, Relaxed);
    }

    pub fn forgotten(&self, events: usize) {
        self.dropped.fetch_add(events as u64, Relaxed);
    }

    pub fn counts(&self) -> LifeCounts {
        LifeCounts { recorded: self.recorded.load(Relaxed), dropped: self.dropped.load(Relaxed) }
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<Event>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn event(at: Instant, partition: Uuid, message: &TracedMessage, happened: Happened) -> Event {
    Event {
        at,
        partition,
        offset: message.offset,
        message_id: message.message_id,
        transaction_id: message.transaction_id.clone(),
        happened,
        group: None,
        attempt: None,
        error: None,
        relation: None,
    }
}

/// `auto`: no ack will follow, because the delivery was one.
pub fn delivered(at: Instant, partition: Uuid, group: &Arc<str>, traced: &Traced, auto: bool) -> Vec<Event> {
    let mut events = Vec::with_capacity(traced.messages.len());
    for message in &traced.messages {
        let group = Some(group.clone());
        events.push(Event {
            group: group.clone(),
            attempt: traced.attempt(message.offset),
            ..event(at, partition, message, Happened::Delivered)
        });
        if auto {
            events.push(Event { group, ..event(at, partition, message, Happened::Completed) });
        }
    }
    events
}

/// What an ack did: where it took the cursor from and to, and whether dead letters are kept.
#[derive(Debug, Clone, Copy)]
pub struct Moved {
    pub from: i64,
    pub to: i64,
    pub kept: bool,
}

/// A cursor that moves past a message has finished it; if it was reported as failed, the group gave up on it.
pub fn settled(
    at: Instant,
    partition: Uuid,
    group: &Arc<str>,
    traced: &Traced,
    items: &[Item],
    moved: Moved,
) -> Vec<Event> {
    let mut events = Vec::new();
    for message in traced.messages.iter().filter(|message| message.offset >= moved.from) {
        let item = items.iter().find(|item| item.offset == message.offset);
        let passed = message.offset < moved.to;
        let happened = match item.map_or(AckStatus::Completed, |item| item.status) {
            AckStatus::Completed if passed => Happened::Completed,
            AckStatus::Failed | AckStatus::Dlq if passed && moved.kept => Happened::DeadLetter,
            AckStatus::Failed | AckStatus::Dlq if passed => Happened::Dropped,
            AckStatus::Failed => Happened::Failed,
            AckStatus::Retry => Happened::Retry,
            // Behind a failed message: not applied, and delivered again.
            AckStatus::Completed | AckStatus::Dlq => continue,
        };
        let error = item.and_then(|item| item.error.as_deref()).filter(|_| happened != Happened::Completed);
        events.push(Event {
            group: Some(group.clone()),
            attempt: traced.attempt(message.offset),
            error: error.map(|error| error.chars().take(ERROR_CHARS_MAX).collect()),
            ..event(at, partition, message, happened)
        });
    }
    events
}

/// Both sides of every relation, and the number of events there was no room for.
pub fn related(at: Instant, transaction: Uuid, parents: &[Named], children: &[Named]) -> (Vec<Event>, usize) {
    let mut events = Vec::new();
    let pairs = parents.iter().flat_map(|parent| children.iter().map(move |child| (parent, child)));
    for (parent, child) in pairs.take(RELATIONS_MAX) {
        for (message, happened, other) in
            [(parent, Happened::Child, child), (child, Happened::Parent, parent)]
        {
            events.push(Event {
                at,
                partition: message.partition.id,
                offset: message.offset,
                message_id: message.message_id,
                transaction_id: message.transaction_id.clone(),
                happened,
                group: None,
                attempt: None,
                error: None,
                relation: Some(Relation { transaction, other: other.clone() }),
            });
        }
    }
    (events, 2 * (parents.len() * children.len()).saturating_sub(RELATIONS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use AckStatus::{Completed, Dlq, Failed, Retry};

    fn traced(offsets: &[i64]) -> Traced {
        let message = |&offset| TracedMessage {
            offset,
            message_id: Uuid::from_u128(offset as u128),
            transaction_id: offset.to_string().into(),
            parent: None,
        };
        Traced { first: Some((0, 2)), messages: offsets.iter().map(message).collect() }
    }

    fn told(offsets: &[i64], items: &[(i64, AckStatus)], moved: Moved) -> Vec<(i64, Happened)> {
        let item = |&(offset, status)| Item { offset, status, error: Some("why".to_owned()) };
        let items: Vec<Item> = items.iter().map(item).collect();
        let now = crate::clock::now();
        let events = settled(now, Uuid::nil(), &"g".into(), &traced(offsets), &items, moved);
        assert!(events.iter().all(|event| event.error.is_some() != (event.happened == Happened::Completed)));
        events.into_iter().map(|event| (event.offset, event.happened)).collect()
    }

    #[test]
    fn a_cursor_that_moves_on_completes_what_nobody_said_anything_about() {
        let moved = Moved { from: 1, to: 4, kept: true };
        let told = told(&[0, 1, 3, 4], &[(3, Completed)], moved);
        assert_eq!(told, [(1, Happened::Completed), (3, Happened::Completed)]);
    }

    #[test]
    fn a_failure_ends_in_a_dead_letter_only_if_the_cursor_went_past_it() {
        let items = [(0, Completed), (1, Failed), (2, Completed), (3, Failed)];
        let again = told(&[0, 1, 2, 3], &items, Moved { from: 0, to: 1, kept: true });
        assert_eq!(again, [(0, Happened::Completed), (1, Happened::Failed), (3, Happened::Failed)]);
        let spent = told(&[1, 2], &items, Moved { from: 0, to: 4, kept: true });
        assert_eq!(spent, [(1, Happened::DeadLetter), (2, Happened::Completed)]);
        let moved = Moved { from: 0, to: 2, kept: false };
        assert_eq!(
            told(&[0, 1, 2], &[(0, Dlq), (1, Failed), (2, Retry)], moved),
            [(0, Happened::Dropped), (1, Happened::Dropped), (2, Happened::Retry)]
        );
    }

    #[test]
    fn what_there_is_no_room_for_is_counted() {
        let life = Life::default();
        let event = event(crate::clock::now(), Uuid::nil(), &traced(&[1]).messages[0], Happened::Delivered);
        life.note(vec![event.clone(); WAITING_MAX - 1]);
        life.note(vec![event; 3]);
        assert_eq!(life.counts(), LifeCounts { recorded: 0, dropped: 2 });
        let taken = life.take(WAITING_MAX + 1);
        assert_eq!(taken.len(), WAITING_MAX);
        life.note(taken[..1].to_vec());
        life.give_back(taken);
        assert_eq!(life.counts().dropped, 3);
    }

    #[test]
    fn everybody_who_was_acknowledged_is_a_parent_of_everybody_who_was_pushed() {
        let partition =
            Arc::new(Partition { id: Uuid::from_u128(1), number: 1, queue: "q".into(), name: "p".into() });
        let named = |offset: i64| Named {
            partition: partition.clone(),
            offset,
            message_id: Uuid::from_u128(offset as u128),
            transaction_id: offset.to_string().into(),
        };
        let many: Vec<Named> = (0..100).map(named).collect();
        let (events, over) = related(crate::clock::now(), Uuid::nil(), &many[..2], &many[2..4]);
        assert_eq!((events.len(), over), (8, 0));
        assert_eq!(events.iter().filter(|event| event.happened == Happened::Child).count(), 4);
        let (events, over) = related(crate::clock::now(), Uuid::nil(), &many, &many);
        assert_eq!((events.len(), over), (2 * RELATIONS_MAX, 18_000));
    }
}

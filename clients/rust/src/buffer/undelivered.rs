//! Messages that a buffer could not deliver: reported to a waiting receipt, otherwise kept for the next flush.

use std::sync::{Arc, Weak};

use serde_json::value::RawValue;

use super::batch::Outcome;
use crate::error::Error;
use crate::item::{Item, Written};

/// A message that a buffer could not deliver. Pushing it again with its transaction id, as [`item`](Self::item) does, stores it at
/// most once.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Undelivered {
    /// The queue it was for.
    pub queue: String,
    /// The partition it was for.
    pub partition: String,
    /// Its transaction id.
    pub transaction_id: String,
    /// Its trace id.
    pub trace_id: Option<String>,
    /// Its W3C trace context.
    pub traceparent: Option<String>,
    /// Its `tracestate`.
    pub tracestate: Option<String>,
    /// Its payload.
    pub payload: Box<RawValue>,
    /// Why it was not delivered.
    pub error: Error,
}

impl Undelivered {
    pub(super) fn new(written: Written, error: Error) -> Self {
        let Written { queue, partition, transaction_id, trace_id, traceparent, tracestate, payload } =
            written;
        Self { queue, partition, transaction_id, trace_id, traceparent, tracestate, payload, error }
    }

    /// The same message as an item, to push it again.
    pub fn item(&self) -> Item {
        let item = Item::new(&self.payload).partition(&self.partition).transaction_id(&self.transaction_id);
        let item = self.trace_id.iter().fold(item, Item::trace_id);
        let item = self.traceparent.iter().fold(item, Item::traceparent);
        self.tracestate.iter().fold(item, Item::tracestate)
    }

    pub(super) fn to_error(&self) -> Error {
        self.error.clone().with_undelivered(vec![self.clone()])
    }

    fn bytes(&self) -> usize {
        self.queue.len() + self.partition.len() + self.transaction_id.len() + self.payload.get().len()
    }
}

/// Undelivered messages until the next flush, each stored once.
#[derive(Default)]
pub(super) struct List {
    entries: Vec<Entry>,
    bytes: usize,
}

/// The batch only identifies the receipts; keeping it here would keep all its other results too.
struct Entry {
    outcome: Weak<Outcome>,
    index: usize,
    undelivered: Arc<Undelivered>,
}

impl List {
    pub fn add(&mut self, outcome: &Arc<Outcome>, index: usize, undelivered: Arc<Undelivered>) {
        self.bytes += undelivered.bytes();
        self.entries.push(Entry { outcome: Arc::downgrade(outcome), index, undelivered });
    }

    /// A message was reported.
    pub fn remove(&mut self, outcome: &Arc<Outcome>, index: usize) {
        let is_it = |entry: &Entry| entry.index == index && entry.outcome.as_ptr() == Arc::as_ptr(outcome);
        if let Some(place) = self.entries.iter().position(is_it) {
            self.bytes -= self.entries.remove(place).undelivered.bytes();
        }
    }

    pub fn take(&mut self) -> Vec<Undelivered> {
        let List { entries, .. } = std::mem::take(self);
        entries.into_iter().map(|entry| Arc::unwrap_or_clone(entry.undelivered)).collect()
    }

    pub fn is_over(&self, messages: usize, bytes: usize) -> bool {
        self.entries.len() >= messages || self.bytes >= bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item::{Place, Pushable};
    use serde_json::Value;

    const PLACE: Place<'_> = Place { queue: "q", partition: "other" };

    fn undelivered(item: Item) -> Undelivered {
        let mut json = Vec::new();
        item.write(&mut json, PLACE).unwrap();
        Undelivered::new(serde_json::from_slice(&json).unwrap(), Error::bad_use("x"))
    }

    #[test]
    fn pushed_again_it_is_the_same_message_with_all_that_was_said_about_it() {
        let item = Item::new(&7)
            .partition("p")
            .transaction_id("t")
            .trace_id("i")
            .traceparent("00-1")
            .tracestate("s");
        let lost = undelivered(item);
        let mut again = Vec::new();
        lost.item().write(&mut again, PLACE).unwrap();
        let again: Value = serde_json::from_slice(&again).unwrap();
        assert_eq!(
            again,
            serde_json::json!({"queue": "q", "partition": "p", "transactionId": "t", "traceId": "i", "traceparent": "00-1",
                               "tracestate": "s", "payload": 7})
        );
    }

    #[test]
    fn a_list_is_full_by_count_or_bytes_and_drops_reported_messages() {
        let (outcome, other) = (Arc::<Outcome>::default(), Arc::<Outcome>::default());
        let mut list = List::default();
        let large = Arc::new(undelivered(Item::new(&"x".repeat(1_000)).transaction_id("t")));
        list.add(&outcome, 3, large.clone());
        assert!(list.is_over(10, 1_000) && list.is_over(1, 10_000) && !list.is_over(10, 10_000));
        list.remove(&other, 3);
        list.remove(&outcome, 2);
        assert!(list.is_over(1, 10_000));
        list.remove(&outcome, 3);
        assert!(!list.is_over(1, 1) && list.take().is_empty());
        list.add(&outcome, 3, large);
        assert_eq!(list.take().len(), 1);
        assert!(!list.is_over(1, 1));
    }
}

//! Decides what the next flight carries. Pure: it owns no clock, no channel and no connection.

use std::collections::{HashMap, HashSet, VecDeque};
use std::hash::Hash;

#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Items (messages, claims, acks) in one flight.
    pub items: usize,
    pub bytes: usize,
    /// Entries of one key that may share a flight.
    pub merged: usize,
    /// And their bytes.
    pub merged_bytes: usize,
}

/// Entries waiting for a flight, in one queue per key.
///
/// # Invariants
/// - Entries of one key leave in the order they came, and never in two flights at once.
/// - A limit is exceeded only by a single oversized entry, which travels alone.
/// - Keys take turns: one that has just flown goes behind all others.
pub struct Batcher<K, E> {
    waiting: HashMap<K, VecDeque<Weighed<E>>>,
    turns: VecDeque<K>,
    flying: HashSet<K>,
    entries: usize,
    items: usize,
}

struct Weighed<E> {
    entry: E,
    items: usize,
    bytes: usize,
}

impl<K: Hash + Eq + Clone, E> Batcher<K, E> {
    pub fn new() -> Self {
        Self { waiting: HashMap::new(), turns: VecDeque::new(), flying: HashSet::new(), entries: 0, items: 0 }
    }

    pub fn offer(&mut self, key: K, entry: E, items: usize, bytes: usize) {
        self.entries += 1;
        self.items += items;
        let queue = self.waiting.entry(key.clone()).or_default();
        queue.push_back(Weighed { entry, items, bytes });
        if queue.len() == 1 && !self.flying.contains(&key) {
            self.turns.push_back(key);
        }
    }

    /// Entries of one key are adjacent in the result. Every key in it must come back through `landed`.
    pub fn take(&mut self, limits: Limits) -> Vec<(K, E)> {
        let mut flight = Vec::new();
        let (mut items, mut bytes) = (0, 0);
        while let Some(key) = self.turns.pop_front() {
            let Some(queue) = self.waiting.get_mut(&key) else { continue };
            let before = flight.len();
            let mut merged_bytes = 0;
            while let Some(next) = queue.front() {
                let full = items + next.items > limits.items || bytes + next.bytes > limits.bytes;
                let merged = flight.len() - before;
                let heavy = merged > 0 && merged_bytes + next.bytes > limits.merged_bytes;
                if (full && !flight.is_empty()) || merged == limits.merged || heavy {
                    break;
                }
                items += next.items;
                bytes += next.bytes;
                merged_bytes += next.bytes;
                if let Some(next) = queue.pop_front() {
                    flight.push((key.clone(), next.entry));
                }
            }
            if queue.is_empty() {
                self.waiting.remove(&key);
            }
            if flight.len() == before {
                self.turns.push_front(key);
                break;
            }
            self.flying.insert(key);
        }
        self.entries -= flight.len();
        self.items -= items;
        flight
    }

    /// What was left out of a flight, with its items and bytes, goes before everything that has come since. Its key
    /// stays in the air until it comes back through `landed`.
    pub fn put_back(&mut self, key: &K, entries: Vec<(E, usize, usize)>) {
        let queue = self.waiting.entry(key.clone()).or_default();
        for (entry, items, bytes) in entries.into_iter().rev() {
            self.entries += 1;
            self.items += items;
            queue.push_front(Weighed { entry, items, bytes });
        }
    }

    /// The entries of a key in the air that were put back, and those behind them, as many as may share a flight.
    pub fn take_put_back(&mut self, key: &K, limits: Limits) -> Vec<E> {
        let mut flight = Vec::new();
        let Some(queue) = self.waiting.get_mut(key) else { return flight };
        let (mut items, mut bytes) = (0, 0);
        while let Some(next) = queue.front() {
            let full = items + next.items > limits.items
                || bytes + next.bytes > limits.bytes.min(limits.merged_bytes);
            if !flight.is_empty() && (full || flight.len() == limits.merged) {
                break;
            }
            items += next.items;
            bytes += next.bytes;
            flight.extend(queue.pop_front().map(|next| next.entry));
        }
        if queue.is_empty() {
            self.waiting.remove(key);
        }
        self.entries -= flight.len();
        self.items -= items;
        flight
    }

    /// The next entries of a key in the air, as long as they are `late`.
    pub fn take_late(&mut self, key: &K, late: impl Fn(&E) -> bool) -> Vec<E> {
        let mut taken = Vec::new();
        let Some(queue) = self.waiting.get_mut(key) else { return taken };
        while let Some(next) = queue.pop_front_if(|next| late(&next.entry)) {
            self.entries -= 1;
            self.items -= next.items;
            taken.push(next.entry);
        }
        if queue.is_empty() {
            self.waiting.remove(key);
        }
        taken
    }

    pub fn landed(&mut self, key: &K) {
        if self.flying.remove(key) && self.waiting.contains_key(key) {
            self.turns.push_back(key.clone());
        }
    }

    /// The entry that has waited longest for its turn, if a flight could leave now.
    pub fn next(&self) -> Option<&E> {
        let queue = self.waiting.get(self.turns.front()?)?;
        queue.front().map(|weighed| &weighed.entry)
    }

    pub fn items(&self) -> usize {
        self.items
    }

    pub fn len(&self) -> usize {
        self.entries
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: Limits = Limits { items: 10, bytes: 1000, merged: 100, merged_bytes: 1000 };

    #[test]
    fn a_key_in_the_air_holds_back_only_itself() {
        let mut batcher = Batcher::new();
        batcher.offer("a", 1, 1, 1);
        assert_eq!(batcher.take(LIMITS), [("a", 1)]);
        batcher.offer("a", 2, 1, 1);
        batcher.offer("b", 3, 1, 1);
        assert_eq!(batcher.take(LIMITS), [("b", 3)]);
        assert!(batcher.take(LIMITS).is_empty());
        batcher.landed(&"a");
        assert_eq!(batcher.take(LIMITS), [("a", 2)]);
    }

    #[test]
    fn an_oversized_entry_travels_alone() {
        let mut batcher = Batcher::new();
        batcher.offer("a", 1, 1, 1);
        batcher.offer("b", 2, 99, 1);
        batcher.offer("c", 3, 1, 1);
        assert_eq!(batcher.take(LIMITS), [("a", 1)]);
        assert_eq!(batcher.take(LIMITS), [("b", 2)]);
        assert_eq!(batcher.take(LIMITS), [("c", 3)]);
    }

    #[test]
    fn entries_of_one_key_share_a_flight_up_to_the_merge_limit() {
        let mut batcher = Batcher::new();
        for entry in 0..3 {
            batcher.offer("a", entry, 1, 1);
        }
        assert_eq!(batcher.take(Limits { merged: 2, ..LIMITS }), [("a", 0), ("a", 1)]);
    }

    #[test]
    fn entries_of_one_key_share_a_flight_up_to_their_bytes() {
        let mut batcher = Batcher::new();
        for (entry, bytes) in [500, 9, 90, 10].into_iter().enumerate() {
            batcher.offer("a", entry, 1, bytes);
        }
        batcher.offer("b", 4, 1, 1);
        let limits = Limits { merged_bytes: 100, ..LIMITS };
        assert_eq!(batcher.take(limits), [("a", 0), ("b", 4)], "one entry may be larger");
        batcher.landed(&"a");
        assert_eq!(batcher.take(limits), [("a", 1), ("a", 2)]);
    }

    #[test]
    fn what_is_put_back_leaves_before_what_came_since_and_only_once_its_key_has_landed() {
        let mut batcher = Batcher::new();
        batcher.offer("a", 1, 1, 1);
        batcher.offer("a", 2, 1, 1);
        batcher.offer("b", 3, 1, 1);
        assert_eq!(batcher.take(LIMITS).len(), 3);
        batcher.offer("a", 4, 1, 1);
        batcher.put_back(&"a", vec![(1, 1, 1), (2, 1, 1)]);
        batcher.landed(&"b");
        assert_eq!((batcher.len(), batcher.items()), (3, 3));
        assert!(batcher.take(LIMITS).is_empty() && batcher.next().is_none());
        batcher.landed(&"a");
        assert_eq!(batcher.take(Limits { merged: 2, ..LIMITS }), [("a", 1), ("a", 2)]);
        batcher.put_back(&"a", vec![(1, 1, 1), (2, 1, 1)]);
        assert_eq!(batcher.take_put_back(&"a", Limits { merged: 2, ..LIMITS }), [1, 2]);
        batcher.landed(&"a");
        assert_eq!(batcher.take(LIMITS), [("a", 4)]);
        assert_eq!((batcher.len(), batcher.items()), (0, 0));
    }

    #[test]
    fn those_that_are_late_are_taken_from_the_front_of_a_key_in_the_air() {
        let mut batcher = Batcher::new();
        for entry in [1, 2, 3, 9, 4] {
            batcher.offer("a", entry, 2, 1);
        }
        assert_eq!(batcher.take(Limits { merged: 1, ..LIMITS }), [("a", 1)]);
        assert_eq!(batcher.take_late(&"a", |entry| *entry < 5), [2, 3]);
        assert_eq!((batcher.len(), batcher.items()), (2, 4));
        assert_eq!(batcher.take_late(&"a", |_| true), [9, 4]);
        batcher.landed(&"a");
        assert!(batcher.next().is_none() && batcher.len() == 0);
    }

    proptest! {
        #[test]
        fn nothing_is_lost_doubled_or_overtaken(
            steps in prop::collection::vec((0u8..6, 0u8..3, 1usize..8), 0..200), merged in 1usize..4
        ) {
            let mut batcher = Batcher::new();
            let mut offered = 0usize;
            let mut flown: HashMap<u8, Vec<usize>> = HashMap::new();
            let mut air: Vec<HashSet<u8>> = Vec::new();
            let limits = Limits { merged, ..LIMITS };
            let fly = |batcher: &mut Batcher<u8, usize>, air: &mut Vec<HashSet<u8>>, flown: &mut HashMap<u8, Vec<usize>>| {
                let flight = batcher.take(limits);
                let keys: HashSet<u8> = flight.iter().map(|(key, _)| *key).collect();
                for other in air.iter() {
                    assert!(other.is_disjoint(&keys));
                }
                for (key, entry) in &flight {
                    flown.entry(*key).or_default().push(*entry);
                }
                let any = !keys.is_empty();
                if any { air.push(keys); }
                any
            };
            for (key, action, items) in steps {
                match action {
                    0 | 1 => { batcher.offer(key, offered, items, 1); offered += 1; }
                    _ if air.len() > 1 => for key in air.remove(0) { batcher.landed(&key); },
                    _ => { fly(&mut batcher, &mut air, &mut flown); }
                }
            }
            while batcher.len() > 0 {
                if !fly(&mut batcher, &mut air, &mut flown) {
                    for key in air.remove(0) { batcher.landed(&key); }
                }
            }
            prop_assert_eq!(flown.values().map(Vec::len).sum::<usize>(), offered);
            for entries in flown.values() {
                prop_assert!(entries.is_sorted());
            }
        }
    }
}

//! The segments a broker remembers: what it has just written or read. A cache, bounded in bytes; the log in
//! PostgreSQL is the truth.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use uuid::Uuid;

use super::ids::TransactionHash;

/// One row of the log.
#[derive(Debug)]
pub struct Segment {
    pub base_offset: i64,
    pub created_at: i64,
    /// Packed `TransactionHash`es.
    pub transactions: Vec<u8>,
    frames: String,
    /// Where each line ends.
    ends: Vec<u32>,
}

impl Segment {
    pub fn new(base_offset: i64, created_at: i64, transactions: Vec<u8>, frames: String) -> Self {
        let mut ends: Vec<u32> = Vec::with_capacity(transactions.len() / TransactionHash::BYTES);
        ends.extend(memchr::memchr_iter(b'\n', frames.as_bytes()).map(|at| at as u32));
        ends.push(frames.len() as u32);
        Self { base_offset, created_at, transactions, frames, ends }
    }

    pub fn count(&self) -> usize {
        self.ends.len()
    }

    pub fn end(&self) -> i64 {
        self.base_offset + self.ends.len() as i64
    }

    /// The frame at an offset of the partition; the offset must lie in this segment.
    pub fn frame(&self, offset: i64) -> &str {
        let index = (offset - self.base_offset) as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize + 1 };
        &self.frames[start..self.ends[index] as usize]
    }

    fn weight(&self) -> usize {
        self.frames.len() + self.transactions.len() + self.ends.len() * 4 + 160
    }
}

/// # Invariants
/// - The weights add up to at most the budget, except for one oversized segment.
/// - A range is returned only if every offset of it is there.
pub struct Segments {
    kept: BTreeMap<(Uuid, i64), Arc<Segment>>,
    arrivals: VecDeque<(Uuid, i64)>,
    weight: usize,
    budget: usize,
    hits: u64,
    misses: u64,
}

impl Segments {
    pub fn new(budget: usize) -> Self {
        Self { kept: BTreeMap::new(), arrivals: VecDeque::new(), weight: 0, budget, hits: 0, misses: 0 }
    }

    pub fn insert(&mut self, partition: Uuid, segment: Arc<Segment>) {
        let key = (partition, segment.base_offset);
        self.weight += segment.weight();
        if let Some(before) = self.kept.insert(key, segment) {
            self.weight -= before.weight();
        } else {
            self.arrivals.push_back(key);
        }
        while self.weight > self.budget && self.arrivals.len() > 1 {
            let Some(oldest) = self.arrivals.pop_front() else { break };
            if let Some(gone) = self.kept.remove(&oldest) {
                self.weight -= gone.weight();
            }
        }
    }

    pub fn forget(&mut self, partition: Uuid) {
        let keys: Vec<_> =
            self.kept.range((partition, 0)..=(partition, i64::MAX)).map(|(key, _)| *key).collect();
        for key in keys {
            if let Some(gone) = self.kept.remove(&key) {
                self.weight -= gone.weight();
            }
        }
    }

    pub fn range(&self, partition: Uuid, first: i64, last: i64) -> Option<Vec<Arc<Segment>>> {
        let (_, start) = self.kept.range((partition, 0)..=(partition, first)).next_back()?;
        let mut found = Vec::new();
        let mut next = first;
        for (_, segment) in self.kept.range((partition, start.base_offset)..(partition, last)) {
            if segment.base_offset > next || segment.end() <= next {
                return None;
            }
            next = segment.end();
            found.push(segment.clone());
        }
        (next >= last).then_some(found)
    }

    /// How many ranges were found here, and how many were not.
    pub fn count(&mut self, hits: usize, misses: usize) {
        self.hits += hits as u64;
        self.misses += misses as u64;
    }

    pub fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    pub fn weight(&self) -> usize {
        self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn segment(base: i64, count: usize) -> Arc<Segment> {
        let lines: Vec<String> = (0..count).map(|i| format!("m{}", base + i as i64)).collect();
        Arc::new(Segment::new(base, 0, vec![0; 16 * count], lines.join("\n")))
    }

    #[test]
    fn a_hole_is_not_an_answer() {
        let mut segments = Segments::new(1 << 20);
        let id = Uuid::from_u128(1);
        segments.insert(id, segment(0, 3));
        segments.insert(id, segment(5, 2));
        assert!(segments.range(id, 1, 3).is_some());
        assert!(segments.range(id, 1, 6).is_none());
        segments.insert(id, segment(3, 2));
        let found = segments.range(id, 1, 6).unwrap();
        let frames: Vec<&str> = (1..6)
            .map(|offset| {
                found.iter().find(|s| offset < s.end() && offset >= s.base_offset).unwrap().frame(offset)
            })
            .collect();
        assert_eq!(frames, ["m1", "m2", "m3", "m4", "m5"]);
        assert!(segments.range(id, 6, 9).is_none());
        assert!(segments.range(Uuid::from_u128(2), 0, 1).is_none());
    }

    proptest! {
        #[test]
        fn the_budget_holds_and_what_is_answered_is_whole(
            steps in prop::collection::vec((0u128..3, 0i64..40, 1usize..6), 1..100), first in 0i64..40, length in 1i64..10
        ) {
            let mut segments = Segments::new(2_000);
            for (partition, base, count) in steps {
                segments.insert(Uuid::from_u128(partition), segment(base * 6, count));
                let sum: usize = segments.kept.values().map(|s| s.weight()).sum();
                prop_assert_eq!(sum, segments.weight());
                prop_assert!(sum <= 2_000);
            }
            if let Some(found) = segments.range(Uuid::from_u128(0), first, first + length) {
                for offset in first..first + length {
                    let holder = found.iter().find(|s| offset >= s.base_offset && offset < s.end()).unwrap();
                    prop_assert_eq!(holder.frame(offset), format!("m{offset}"));
                }
            }
        }
    }
}

//! What a broker remembers of the partitions it writes to: the head, and the transaction hashes of the deduplication
//! window. "Never seen" from here is exact up to `complete`; "seen" is only a suspicion, which the log confirms.

use std::collections::{HashSet, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::ids::TransactionHash;
use crate::cache::Cache;

/// Fingerprints are hashes already, but too short for a hash set, which needs different bits at both ends.
#[derive(Default)]
pub struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only u32 fingerprints are hashed here")
    }
    fn write_u32(&mut self, value: u32) {
        self.0 = u64::from(value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// Four bytes of a hash: among a million of them, one new id in four thousand is suspected and looked up in the log.
type Fingerprints = HashSet<u32, BuildHasherDefault<Spread>>;

/// A window is remembered in this many slices, so that old hashes are forgotten without touching every hash.
const SLICES: u32 = 4;

/// Approximate size of the map entries, deque and bookkeeping of one partition.
const PARTITION_WEIGHT: usize = 300;

/// Including its share of the set's empty slots.
const FINGERPRINT_WEIGHT: usize = 6;

struct Written {
    /// Everything a client chose below this offset and inside the window is in `slices`.
    complete: Option<i64>,
    /// The head when last seen: this broker's next write lands here or later.
    head: i64,
    /// This broker has notified its own readers up to here.
    published: i64,
    slices: VecDeque<(Instant, Fingerprints)>,
    /// What `slices` has been cut to. Unlimited if nothing of this partition was ever forgotten.
    window: Duration,
}

impl Written {
    fn new(complete: Option<i64>, head: i64) -> Self {
        Self { complete, head, published: 0, slices: VecDeque::new(), window: Duration::MAX }
    }

    /// The window of a queue changes with its options. If it has grown, it again covers hashes that were forgotten.
    fn follow(&mut self, window: Duration) {
        if window > self.window {
            self.complete = None;
        }
        self.window = window;
    }

    fn weight(&self) -> usize {
        let hashes: usize = self.slices.iter().map(|(_, slice)| slice.capacity()).sum();
        PARTITION_WEIGHT + hashes * FINGERPRINT_WEIGHT
    }

    fn remember(&mut self, now: Instant, window: Duration, hashes: impl Iterator<Item = TransactionHash>) {
        // A slice can be dropped once its youngest hash, one slice length after its start, has left the window.
        let slice_length = window / SLICES;
        while self.slices.front().is_some_and(|(start, _)| now - *start > window + slice_length) {
            self.slices.pop_front();
        }
        let mut chosen = hashes.filter(|hash| hash.is_chosen()).peekable();
        if chosen.peek().is_none() {
            return;
        }
        if self.slices.back().is_none_or(|(start, _)| now - *start > slice_length) {
            self.slices.push_back((now, Fingerprints::default()));
        }
        if let Some((_, slice)) = self.slices.back_mut() {
            slice.extend(chosen.map(TransactionHash::fingerprint));
        }
    }
}

/// What `queen.push` is given about a partition that is about to be written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expectation {
    /// The cache is complete up to here; -1: nothing is known.
    pub complete: i64,
    /// The next write lands here or later.
    pub head: i64,
    pub suspect: bool,
}

/// # Invariants
/// - A hash that is in the window below `Expectation::complete` and not suspected has not been written.
/// - Memory stays within the budget; a forgotten partition is merely unknown.
pub struct Dedup {
    partitions: Cache<Uuid, Written>,
    hits: u64,
    misses: u64,
}

impl Dedup {
    pub fn new(budget: usize) -> Self {
        Self { partitions: Cache::new(budget), hits: 0, misses: 0 }
    }

    /// Called before a write. A partition that was never written to is known completely.
    pub fn opened(&mut self, partition: Uuid, head: i64) {
        if self.partitions.get(&partition).is_none() {
            let complete = (head == 0).then_some(0);
            self.partitions.insert(partition, Written::new(complete, head), PARTITION_WEIGHT);
        }
    }

    pub fn expect(
        &mut self,
        window: Duration,
        partition: Uuid,
        hashes: impl IntoIterator<Item = TransactionHash>,
    ) -> Expectation {
        let Some(written) = self.partitions.get(&partition) else {
            self.misses += 1;
            return Expectation { complete: -1, head: 0, suspect: false };
        };
        written.follow(window);
        let seen = |hash: TransactionHash| {
            written.slices.iter().any(|(_, slice)| slice.contains(&hash.fingerprint()))
        };
        let suspect = hashes.into_iter().filter(|hash| hash.is_chosen()).any(seen);
        match written.complete.is_some() && !suspect {
            true => self.hits += 1,
            false => self.misses += 1,
        }
        Expectation { complete: written.complete.unwrap_or(-1), head: written.head, suspect }
    }

    /// Records the result of a push: our own segment, and what others had written before it.
    ///
    /// `compared`: the database has compared with everything from this offset on (-1: with the whole window), so the
    /// cache is complete now, provided that it is still complete up to there.
    #[expect(clippy::too_many_arguments, reason = "one fact each about one push")]
    pub fn appended(
        &mut self,
        now: Instant,
        window: Duration,
        partition: Uuid,
        base_offset: i64,
        hashes: &[TransactionHash],
        unseen: Option<&[u8]>,
        compared: Option<i64>,
    ) {
        let head = base_offset + hashes.len() as i64;
        if self.partitions.get(&partition).is_none() {
            self.partitions.insert(partition, Written::new(None, head), PARTITION_WEIGHT);
        }
        let Some(written) = self.partitions.get(&partition) else { return };
        written.follow(window);
        written.head = written.head.max(head);
        if !hashes.is_empty() {
            written.published = written.published.max(head);
        }
        // If hashes were evicted since the expectation was made, the cache is no longer complete below it.
        let joins = |from: i64| from < 0 || written.complete.is_some_and(|complete| complete >= from);
        if compared.is_some_and(joins) || written.complete == Some(base_offset) {
            written.complete = Some(head);
        }
        let unseen = unseen.into_iter().flat_map(TransactionHash::read_all);
        written.remember(now, window, unseen.chain(hashes.iter().copied()));
        let weight = written.weight();
        self.partitions.reweigh(&partition, weight);
    }

    /// A conflict has reported everything up to the head, although nothing was appended.
    pub fn caught_up(
        &mut self,
        now: Instant,
        window: Duration,
        partition: Uuid,
        head: i64,
        unseen: Option<&[u8]>,
        expected: i64,
    ) {
        self.appended(now, window, partition, head, &[], unseen, Some(expected));
    }

    /// Whether this broker itself has written everything below `head`.
    pub fn wrote(&mut self, partition: Uuid, head: i64) -> bool {
        self.partitions.get(&partition).is_some_and(|written| written.published >= head)
    }

    pub fn forget(&mut self, partition: Uuid) {
        self.partitions.remove(&partition);
    }

    /// How many pushes this cache could answer for, and how many it could not.
    pub fn counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    pub fn weight(&self) -> usize {
        self.partitions.weight()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use proptest::prelude::*;

    const WINDOW: Duration = Duration::from_secs(3600);
    const P: Uuid = Uuid::from_u128(1);

    fn hash(id: u32) -> TransactionHash {
        TransactionHash::new(&id.to_string(), true)
    }

    #[test]
    fn a_cold_cache_knows_nothing_and_a_new_partition_everything() {
        let mut dedup = Dedup::new(1 << 20);
        assert_eq!(dedup.expect(WINDOW, P, [hash(1)]), Expectation { complete: -1, head: 0, suspect: false });
        dedup.opened(P, 0);
        assert_eq!(dedup.expect(WINDOW, P, [hash(1)]), Expectation { complete: 0, head: 0, suspect: false });
        dedup.appended(clock::now(), WINDOW, P, 0, &[hash(1)], None, None);
        assert_eq!(dedup.expect(WINDOW, P, [hash(1)]), Expectation { complete: 1, head: 1, suspect: true });
        assert_eq!(dedup.expect(WINDOW, P, [hash(2)]), Expectation { complete: 1, head: 1, suspect: false });
    }

    #[test]
    fn somebody_elses_segment_in_between_stops_completeness_until_it_was_compared() {
        let mut dedup = Dedup::new(1 << 20);
        dedup.opened(P, 0);
        dedup.appended(clock::now(), WINDOW, P, 5, &[TransactionHash::new("minted", false)], None, None);
        assert_eq!(dedup.expect(WINDOW, P, [hash(1)]).complete, 0);
        let unseen = hash(7).to_bytes();
        dedup.appended(clock::now(), WINDOW, P, 6, &[hash(8)], Some(&unseen), Some(-1));
        assert_eq!(dedup.expect(WINDOW, P, [hash(7)]), Expectation { complete: 7, head: 7, suspect: true });
    }

    #[test]
    fn ids_nobody_chose_cost_no_memory() {
        let mut dedup = Dedup::new(1 << 20);
        dedup.opened(P, 0);
        let minted: Vec<_> = (0..10_000).map(|i| TransactionHash::new(&i.to_string(), false)).collect();
        dedup.appended(clock::now(), WINDOW, P, 0, &minted, None, None);
        assert!(dedup.weight() <= PARTITION_WEIGHT);
    }

    #[test]
    fn what_left_the_window_is_forgotten() {
        let mut dedup = Dedup::new(1 << 20);
        let start = clock::now();
        dedup.opened(P, 0);
        dedup.appended(start, WINDOW, P, 0, &[hash(1)], None, None);
        dedup.appended(start + WINDOW * 2, WINDOW, P, 1, &[hash(2)], None, None);
        assert!(!dedup.expect(WINDOW, P, [hash(1)]).suspect);
    }

    #[test]
    fn a_window_that_grows_is_compared_anew() {
        let (mut dedup, start) = (Dedup::new(1 << 20), clock::now());
        dedup.opened(P, 0);
        dedup.appended(start, WINDOW, P, 0, &[hash(1)], None, None);
        dedup.appended(start + WINDOW, WINDOW / 10, P, 1, &[hash(2)], None, None);
        assert_eq!(
            dedup.expect(WINDOW / 10, P, [hash(1)]),
            Expectation { complete: 2, head: 2, suspect: false }
        );
        assert_eq!(dedup.expect(WINDOW, P, [hash(1)]).complete, -1, "it was forgotten");
        dedup.appended(start + WINDOW, WINDOW, P, 2, &[], Some(&hash(1).to_bytes()), Some(-1));
        assert_eq!(dedup.expect(WINDOW, P, [hash(1)]), Expectation { complete: 2, head: 2, suspect: true });
    }

    proptest! {
        #[test]
        fn inside_the_window_no_written_hash_is_ever_called_new(
            steps in prop::collection::vec((0u64..2_000, 0u32..50), 1..100)
        ) {
            let mut dedup = Dedup::new(1 << 20);
            dedup.opened(P, 0);
            let mut now = clock::now();
            let mut log: Vec<(Instant, u32)> = Vec::new();
            for (pause, id) in steps {
                now += Duration::from_secs(pause);
                let expected = dedup.expect(WINDOW, P, [hash(id)]);
                let stored = log.iter().any(|(at, other)| *other == id && now - *at <= WINDOW);
                prop_assert!(!stored || expected.suspect);
                prop_assert_eq!(expected.complete, log.len() as i64);
                if !stored {
                    dedup.appended(now, WINDOW, P, log.len() as i64, &[hash(id)], None, None);
                    log.push((now, id));
                }
            }
        }

        #[test]
        fn the_budget_holds(partitions in prop::collection::vec((0u128..50, 1u32..200), 1..40)) {
            let mut dedup = Dedup::new(100_000);
            let all: Vec<_> = (0..200).map(hash).collect();
            for (partition, count) in partitions {
                let hashes = &all[..count as usize];
                dedup.appended(clock::now(), WINDOW, Uuid::from_u128(partition), 0, hashes, None, Some(-1));
                prop_assert!(dedup.weight() <= 100_000);
            }
        }
    }
}

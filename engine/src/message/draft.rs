//! Drafts: everything one flight has for one partition, as the segment that is about to be appended, duplicates left
//! out. They make decisions, and call nothing.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use uuid::Uuid;

use super::parcel::{Outcome, Parcel, Placed};
use crate::db::procedures::Stored;
use crate::log::Partition;
use crate::log::ids::{TransactionHash, message_id};

/// Everything one flight has for one partition.
pub struct Draft<'a> {
    pub parcels: Vec<&'a Parcel>,
    /// (parcel, message) still to be appended.
    pending: Vec<(usize, usize)>,
    placed: Vec<Vec<Option<Placed>>>,
    gone: bool,
    pub behind: bool,
    pub busy: bool,
    /// What the last statement was given, kept until its response is taken up.
    pub hashes: Vec<TransactionHash>,
    pub transactions: Vec<u8>,
    pub frames: String,
    pub compares: bool,
    pub expected: i64,
    /// The cache was given the window's hashes. If it could not keep them, the database has to compare.
    pub taught: bool,
    /// The head from where the first try may have landed.
    pub floor: i64,
    /// The log below this was compared with everything in the draft.
    pub compared: i64,
}

/// How a message is recognized in the log.
type Mark = (TransactionHash, Option<Uuid>);

impl<'a> Draft<'a> {
    /// One draft for each partition; parcels of one partition must be adjacent.
    pub fn of(parcels: &[&'a Parcel]) -> Vec<Self> {
        let mut drafts: Vec<Draft<'_>> = Vec::new();
        for parcel in parcels {
            match drafts.last_mut() {
                Some(draft) if draft.partition().id == parcel.partition.id => draft.parcels.push(parcel),
                _ => drafts.push(Draft::new(parcel)),
            }
        }
        drafts.iter_mut().for_each(Draft::start);
        drafts
    }

    fn new(first: &'a Parcel) -> Self {
        Self {
            parcels: vec![first],
            pending: Vec::new(),
            placed: Vec::new(),
            gone: false,
            behind: false,
            busy: false,
            hashes: Vec::new(),
            transactions: Vec::new(),
            frames: String::new(),
            compares: false,
            expected: -1,
            taught: false,
            floor: 0,
            compared: 0,
        }
    }

    fn start(&mut self) {
        for (index, parcel) in self.parcels.iter().enumerate() {
            self.placed.push(vec![None; parcel.hashes.len()]);
            self.pending.extend((0..parcel.hashes.len()).map(|message| (index, message)));
        }
    }

    /// The head before the first try of these parcels, remembered with them: by the time of the next try, others may
    /// have written behind it.
    pub fn first_try(&self, head: i64) -> i64 {
        let mut floor = head;
        for parcel in &self.parcels {
            match parcel.floor.compare_exchange(-1, head, Relaxed, Relaxed) {
                Ok(_) => {}
                Err(first) => floor = floor.min(first),
            }
        }
        floor
    }

    /// Without deduplication a chosen id may be in the log twice, so finding it again means nothing, unless this is a
    /// second try and it is found where the first may have landed.
    pub fn may_repeat(&self) -> bool {
        let retried = self.parcels.iter().any(|parcel| parcel.recheck);
        !retried && !self.deduplicates() && self.hashes.iter().any(|hash| hash.is_chosen())
    }

    pub fn is_open(&self) -> bool {
        !self.pending.is_empty() && !self.behind && !self.busy
    }

    pub fn partition(&self) -> &Arc<Partition> {
        &self.parcels[0].partition
    }

    pub fn dedup_seconds(&self) -> i32 {
        self.parcels[0].dedup_seconds
    }

    pub fn deduplicates(&self) -> bool {
        self.dedup_seconds() > 0
    }

    pub fn window(&self) -> Duration {
        Duration::from_secs(self.dedup_seconds().max(0) as u64)
    }

    /// Puts what is pending into a segment; a transaction id that comes twice is written once.
    pub fn write(&mut self) {
        self.hashes.clear();
        self.transactions.clear();
        self.frames.clear();
        if self.is_whole() {
            return self.write_whole();
        }
        let deduplicates = self.deduplicates();
        let mut seen = HashSet::new();
        let lines: Vec<Vec<&str>> =
            self.parcels.iter().map(|parcel| parcel.frames.split('\n').collect()).collect();
        for &(parcel, message) in &self.pending {
            let hash = self.parcels[parcel].hashes[message];
            if deduplicates && hash.is_chosen() && !seen.insert(hash) {
                continue;
            }
            if !self.hashes.is_empty() {
                self.frames.push('\n');
            }
            self.hashes.push(hash);
            self.transactions.extend_from_slice(&hash.to_bytes());
            self.frames.push_str(lines[parcel][message]);
        }
    }

    /// Everything is still to be written, and nothing twice: the usual case.
    fn is_whole(&self) -> bool {
        let total: usize = self.parcels.iter().map(|parcel| parcel.hashes.len()).sum();
        if self.pending.len() < total {
            return false;
        }
        if total == 1 || self.dedup_seconds() == 0 {
            return true;
        }
        let mut seen = HashSet::with_capacity(total);
        let mut hashes = self.parcels.iter().flat_map(|parcel| &parcel.hashes);
        hashes.all(|hash| !hash.is_chosen() || seen.insert(*hash))
    }

    fn write_whole(&mut self) {
        self.frames.reserve(self.parcels.iter().map(|parcel| parcel.frames.len() + 1).sum());
        for parcel in &self.parcels {
            if !self.hashes.is_empty() {
                self.frames.push('\n');
            }
            self.frames.push_str(&parcel.frames);
            self.hashes.extend_from_slice(&parcel.hashes);
        }
        self.transactions.reserve(self.hashes.len() * TransactionHash::BYTES);
        for hash in &self.hashes {
            self.transactions.extend_from_slice(&hash.to_bytes());
        }
    }

    /// The segment is in the log: everything pending is in it, or repeats something that is.
    pub fn appended(&mut self, base_offset: i64, created_at: i64) {
        // As many hashes as messages: none of them repeats another.
        let deduplicates = self.deduplicates() && self.hashes.len() < self.pending.len();
        let number = self.partition().number;
        let mut first: HashMap<TransactionHash, Placed> = HashMap::new();
        let mut next = base_offset;
        for (parcel, message) in std::mem::take(&mut self.pending) {
            let hash = self.parcels[parcel].hashes[message];
            let repeated = if deduplicates && hash.is_chosen() { first.get(&hash).copied() } else { None };
            self.placed[parcel][message] = Some(match repeated {
                Some(placed) => Placed { duplicate: true, ..placed },
                None => {
                    let promised = self.parcels[parcel].promised.get(message).copied();
                    let id = promised.unwrap_or_else(|| message_id(created_at, next, number));
                    let placed = Placed { id, offset: Some(next), duplicate: false };
                    if deduplicates {
                        first.insert(hash, placed);
                    }
                    next += 1;
                    placed
                }
            });
        }
    }

    /// When the first message that needs comparing was accepted, if any was accepted before it could be stored.
    pub fn accepted(&self) -> Option<i64> {
        if !self.deduplicates() {
            return None;
        }
        let chosen = self
            .pending
            .iter()
            .filter(|(parcel, message)| self.parcels[*parcel].hashes[*message].is_chosen());
        chosen.filter_map(|(parcel, message)| self.parcels[*parcel].accepted(*message)).min()
    }

    /// `stored`: messages that are older than the window, but were within it when some of these were accepted.
    pub fn drop_accepted(&mut self, stored: &[Stored]) {
        let stored: HashMap<TransactionHash, &Stored> =
            stored.iter().map(|stored| (self.hashes[stored.index], stored)).collect();
        let window = i64::from(self.dedup_seconds()) * 1_000_000;
        for (parcel, message) in std::mem::take(&mut self.pending) {
            let hash = self.parcels[parcel].hashes[message];
            let accepted = self.parcels[parcel].accepted(message).filter(|_| hash.is_chosen());
            let repeats = |stored: &&&Stored| accepted.is_some_and(|at| stored.created_at >= at - window);
            match stored.get(&hash).filter(repeats) {
                Some(stored) => self.placed[parcel][message] = Some(self.found(stored, true)),
                None => self.pending.push((parcel, message)),
            }
        }
    }

    /// Messages that are already stored are not written again. One found where an earlier try of ours may have put it
    /// is ours.
    pub fn drop_stored(&mut self, stored: &[Stored]) {
        let stored: HashMap<Mark, &Stored> = stored
            .iter()
            .map(|stored| (self.mark(self.hashes[stored.index], stored.promised), stored))
            .collect();
        for (parcel, message) in std::mem::take(&mut self.pending) {
            let hash = self.parcels[parcel].hashes[message];
            let own = self.parcels[parcel].promised.get(message).copied();
            match stored.get(&self.mark(hash, own)) {
                Some(stored) => {
                    // No one else can have written an id that was minted here.
                    let retried = self.parcels[parcel].recheck || !hash.is_chosen();
                    let ours = retried && stored.offset >= self.floor;
                    self.placed[parcel][message] = Some(self.found(stored, !ours));
                }
                None => self.pending.push((parcel, message)),
            }
        }
    }

    /// Without deduplication a transaction id may be in the log twice, and only its writer has promised this id.
    fn mark(&self, hash: TransactionHash, promised: Option<Uuid>) -> Mark {
        (hash, promised.filter(|_| self.dedup_seconds() == 0 && hash.is_chosen()))
    }

    fn found(&self, stored: &Stored, duplicate: bool) -> Placed {
        let computed = || message_id(stored.created_at, stored.offset, self.partition().number);
        Placed { id: stored.promised.unwrap_or_else(computed), offset: Some(stored.offset), duplicate }
    }

    pub fn gone(&mut self) {
        self.gone = true;
        self.pending.clear();
    }

    /// By parcel.
    pub fn into_outcomes(self) -> impl Iterator<Item = Outcome> {
        let (gone, behind) = (self.gone, self.behind);
        self.placed.into_iter().map(move |messages| match messages.iter().copied().collect() {
            _ if gone => Outcome::Gone,
            Some(placed) => Outcome::Stored(placed),
            None if behind => Outcome::Behind(messages),
            None => Outcome::Gone,
        })
    }
}

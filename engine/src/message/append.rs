//! Appending to the log: from parcels (what one caller has for one partition) to segments, duplicates left out.
//! Push and transaction both end here; it knows a connection and the dedup cache, and no lane.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use uuid::Uuid;

use super::defer::Deferral;
use crate::clock;
use crate::db::procedures::{self, Locked, PushOutcome, Stored};
use crate::db::{Connection, Error};
use crate::log::Partition;
use crate::log::ids::{TransactionHash, message_id};
use crate::log::segments::Segment;
use crate::shared::Shared;

/// Messages of one caller for one partition, in order.
#[derive(Debug)]
pub struct Parcel {
    pub partition: Arc<Partition>,
    pub dedup_seconds: i32,
    pub hashes: Vec<TransactionHash>,
    /// One line per hash.
    pub frames: String,
    pub bytes_max: usize,
    /// The ids of its messages, if they were given some before they had a place in the log: deferred ones, and those of
    /// queues without deduplication.
    pub promised: Vec<Uuid>,
    /// What became of it when it was found behind deferred pushes. Boxed: hardly ever there, and parcels are moved a lot.
    pub deferral: OnceLock<Box<Deferral>>,
    /// An earlier try may have committed.
    pub recheck: bool,
    /// The head before the first try: where that may have landed. -1: not tried yet.
    pub floor: AtomicI64,
    /// Shared by the parcels of one request for one partition, if there are several: why an earlier one failed. Those
    /// behind it fail as well, instead of overtaking it.
    pub failure: Option<Arc<OnceLock<Error>>>,
}

impl Parcel {
    /// Fails those of its request and partition that come behind it.
    pub fn fail_next(&self, error: &Error) {
        if let Some(failure) = &self.failure {
            let _ = failure.set(error.clone());
        }
    }

    /// What a message is found by in the log. Without deduplication a transaction id may stand there twice, and nobody
    /// but its writer has promised this id.
    fn mark(&self, hash: TransactionHash, promised: Option<Uuid>) -> Mark {
        (hash, promised.filter(|_| self.dedup_seconds == 0 && hash.is_chosen()))
    }

    /// When a message was accepted, if that was before it could be stored: microseconds since 1970.
    fn accepted(&self, message: usize) -> Option<i64> {
        let (seconds, nanos) = self.promised.get(message)?.get_timestamp()?.to_unix();
        Some(seconds as i64 * 1_000_000 + i64::from(nanos) / 1_000)
    }

    /// Why an earlier one of its request and partition failed.
    pub fn failed_before(&self) -> Option<Error> {
        self.failure.as_ref()?.get().cloned()
    }

    /// The same for another partition. Only before its first try.
    pub fn moved(&self, partition: Arc<Partition>) -> Self {
        Self {
            partition,
            dedup_seconds: self.dedup_seconds,
            hashes: self.hashes.clone(),
            frames: self.frames.clone(),
            bytes_max: self.bytes_max,
            promised: self.promised.clone(),
            deferral: OnceLock::new(),
            recheck: self.recheck,
            floor: AtomicI64::new(-1),
            failure: self.failure.clone(),
        }
    }
}

type Mark = (TransactionHash, Option<Uuid>);

/// Where a message ended up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    pub offset: i64,
    pub created_at: i64,
    pub duplicate: bool,
    /// The id it is known by, if it was promised one.
    pub promised: Option<Uuid>,
}

impl Placed {
    /// `number`: the partition's.
    pub fn message_id(&self, number: i64) -> Uuid {
        self.promised.unwrap_or_else(|| message_id(self.created_at, self.offset, number))
    }
}

/// What became of a parcel.
#[derive(Debug)]
pub enum Landed {
    Placed(Vec<Placed>),
    /// The partition has deferred pushes, which must not be overtaken. Nothing was appended; what was stored before is
    /// where it says.
    Behind(Vec<Option<Placed>>),
    /// There is no such partition any more.
    Gone,
}

/// Whose turn it is while a partition has deferred pushes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    Direct,
    Deferred,
}

/// Everything one flight has for one partition.
struct Draft<'a> {
    parcels: Vec<&'a Parcel>,
    /// (parcel, message) still to be appended.
    pending: Vec<(usize, usize)>,
    placed: Vec<Vec<Option<Placed>>>,
    gone: bool,
    behind: bool,
    busy: bool,
    /// What the last statement was given, kept until its answer is taken up.
    hashes: Vec<TransactionHash>,
    transactions: Vec<u8>,
    frames: String,
    compares: bool,
    expected: i64,
    /// The cache was given the window's hashes. If it could not keep them, the database has to compare.
    taught: bool,
    /// Where the first try may have landed.
    floor: i64,
    /// What is below was compared with everything in here.
    compared: i64,
}

/// Instead of an expected head, as in push.sql.
const NOTHING_TO_COMPARE: i64 = -2;
const COMPARE_ALL: i64 = -3;

/// Two rounds settle a conflict; more happen only if others keep writing the same transaction ids.
const ROUNDS_MAX: usize = 10;

/// Appends parcels within a transaction; those of one partition must be adjacent. What was appended is added to
/// `published`, which the caller publishes once it is committed.
pub async fn append(
    shared: &Shared,
    db: &Connection,
    parcels: &[&Parcel],
    turn: Turn,
    published: &mut Vec<Publication>,
) -> Result<Vec<Landed>, Error> {
    let mut drafts = drafts(parcels);
    drop_accepted(db, &mut drafts).await?;
    rounds(shared, db, &mut drafts, (turn, Locked::Wait), published).await?;
    Ok(drafts.into_iter().flat_map(Draft::into_landed).collect())
}

/// The same without a transaction: each round is committed by itself, so what was appended is published also if a later
/// one fails. Then the error is that of the parcels which are not in the log, and so it is with those of locked
/// partitions.
pub async fn append_alone(
    shared: &Shared,
    db: &Connection,
    parcels: &[&Parcel],
    locked: Locked,
    published: &mut Vec<Publication>,
) -> Result<Vec<Result<Landed, Error>>, Error> {
    let mut drafts = drafts(parcels);
    let failure = rounds(shared, db, &mut drafts, (Turn::Direct, locked), published).await.err();
    if let Some(error) = failure.as_ref().filter(|_| published.is_empty()) {
        return Err(error.clone());
    }
    let mut landed = Vec::with_capacity(parcels.len());
    for draft in drafts {
        let failure = match &failure {
            Some(error) if draft.is_open() => Some(error.clone()),
            _ if draft.busy => Some(Error::Busy),
            _ => None,
        };
        landed.extend(draft.into_landed().map(|landed| failure.clone().map_or(Ok(landed), Err)));
    }
    Ok(landed)
}

fn drafts<'a>(parcels: &[&'a Parcel]) -> Vec<Draft<'a>> {
    let mut drafts: Vec<Draft<'_>> = Vec::new();
    for parcel in parcels {
        match drafts.last_mut() {
            Some(draft) if draft.parcels[0].partition.id == parcel.partition.id => draft.parcels.push(parcel),
            _ => drafts.push(Draft::new(parcel)),
        }
    }
    for draft in &mut drafts {
        draft.start();
    }
    drafts
}

/// A message that was accepted long ago may repeat one that has left the window since. Its own window ends when it was
/// accepted; with what is in the window now, every round compares.
async fn drop_accepted(db: &Connection, drafts: &mut [Draft<'_>]) -> Result<(), Error> {
    let mut ask = procedures::Accepted::default();
    let mut asked = Vec::new();
    for (index, draft) in drafts.iter_mut().enumerate() {
        let Some(accepted) = draft.accepted() else { continue };
        draft.write();
        asked.push((index, accepted));
    }
    if asked.is_empty() {
        return Ok(());
    }
    for &(index, accepted) in &asked {
        let draft = &drafts[index];
        ask.partitions.push(draft.partition().id);
        ask.times.push(clock::system_time(accepted));
        ask.windows.push(draft.parcels[0].dedup_seconds);
        ask.transactions.push(&draft.transactions);
    }
    let stored = procedures::find_accepted(db, &ask).await?;
    for ((index, _), stored) in asked.into_iter().zip(stored) {
        drafts[index].drop_accepted(&stored);
    }
    Ok(())
}

async fn rounds(
    shared: &Shared,
    db: &Connection,
    drafts: &mut [Draft<'_>],
    how: (Turn, Locked),
    published: &mut Vec<Publication>,
) -> Result<(), Error> {
    // The procedure locks in this order.
    let mut order: Vec<usize> = (0..drafts.len()).collect();
    order.sort_unstable_by_key(|&index| drafts[index].partition().id);
    // More for each window that is learnt, or that there is no room for.
    for _ in 0..ROUNDS_MAX + 2 * drafts.len() {
        order.retain(|&index| drafts[index].is_open());
        if order.is_empty() {
            break;
        }
        round(shared, db, drafts, &order, how, published).await?;
    }
    if drafts.iter().any(Draft::is_open) {
        return Err(Error::Changed("the partition kept changing while messages were appended to it"));
    }
    Ok(())
}

async fn round(
    shared: &Shared,
    db: &Connection,
    drafts: &mut [Draft<'_>],
    order: &[usize],
    (turn, locked): (Turn, Locked),
    published: &mut Vec<Publication>,
) -> Result<(), Error> {
    let mut heads = Vec::with_capacity(order.len());
    let mut suspects = Vec::with_capacity(order.len());
    for &index in order {
        let draft = &mut drafts[index];
        draft.write();
        let hashes = draft.hashes.iter().copied();
        let expectation = shared.dedup().expect(draft.window(), draft.partition().id, hashes);
        draft.floor = draft.first_try(expectation.head);
        draft.compares =
            draft.parcels[0].dedup_seconds > 0 && draft.hashes.iter().any(|hash| hash.is_chosen());
        draft.expected = expectation.complete;
        heads.push(match expectation.complete {
            _ if !draft.compares => NOTHING_TO_COMPARE,
            -1 | 0 if draft.taught => COMPARE_ALL,
            complete => complete,
        });
        suspects.push(draft.compares && expectation.suspect);
    }
    let deferred = turn == Turn::Deferred;
    let mut ask = procedures::Push { expected: heads, suspects, deferred, locked, ..Default::default() };
    for &index in order {
        let draft = &drafts[index];
        ask.partitions.push(draft.partition().id);
        ask.counts.push(draft.hashes.len() as i32);
        ask.bytes.push(draft.parcels.iter().map(|parcel| parcel.bytes_max).max().unwrap_or(0) as i32);
        ask.transactions.push(&draft.transactions);
        ask.frames.push(&draft.frames);
        // A deferred push is executed in the transaction that marks it as done, so no earlier try has committed.
        let recheck = draft.floor.max(draft.compared);
        ask.recheck.push(if deferred || draft.may_repeat() { i64::MAX } else { recheck });
    }
    let answers = procedures::push(db, &ask).await?;
    let now = clock::now();
    for answer in answers {
        let draft = &mut drafts[order[answer.position]];
        let partition = draft.partition().clone();
        let window = draft.window();
        match answer.outcome {
            PushOutcome::Appended { base_offset, created_at } => {
                let frames = std::mem::take(&mut draft.frames);
                let transactions = std::mem::take(&mut draft.transactions);
                published.push(Publication {
                    partition,
                    segment: Arc::new(Segment::new(base_offset, created_at, transactions, frames)),
                    window,
                    unseen: answer.unseen,
                    compared: draft.compares.then_some(draft.expected),
                });
                draft.settle(base_offset, created_at);
            }
            PushOutcome::Conflict { head, stored } => {
                let too_much = answer.unseen.is_none() && stored.is_empty();
                draft.taught |= answer.unseen.is_some();
                if draft.compares && !too_much {
                    let mut dedup = shared.dedup();
                    if db.is_current() {
                        let unseen = answer.unseen.as_deref();
                        dedup.caught_up(now, window, partition.id, head, unseen, draft.expected);
                    }
                }
                if !draft.compares {
                    draft.compared = head;
                }
                draft.drop_stored(&stored);
            }
            PushOutcome::Behind => draft.behind = true,
            PushOutcome::Busy => draft.busy = true,
            PushOutcome::Gone => {
                shared.directory.forget(&partition);
                shared.dedup().forget(partition.id);
                draft.gone = true;
                draft.pending.clear();
            }
        }
    }
    Ok(())
}

impl<'a> Draft<'a> {
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

    /// The head before the first try of what is in here, remembered with it: by the time of the next try, others may
    /// have written behind it.
    fn first_try(&self, head: i64) -> i64 {
        let mut floor = head;
        for parcel in &self.parcels {
            match parcel.floor.compare_exchange(-1, head, Relaxed, Relaxed) {
                Ok(_) => {}
                Err(first) => floor = floor.min(first),
            }
        }
        floor
    }

    /// Without deduplication a chosen id may stand in the log twice, so finding it again means nothing, unless this
    /// is a second try and it is found where the first may have landed.
    fn may_repeat(&self) -> bool {
        let retried = self.parcels.iter().any(|parcel| parcel.recheck);
        !retried && self.parcels[0].dedup_seconds == 0 && self.hashes.iter().any(|hash| hash.is_chosen())
    }

    fn is_open(&self) -> bool {
        !self.pending.is_empty() && !self.behind && !self.busy
    }

    fn partition(&self) -> &Arc<Partition> {
        &self.parcels[0].partition
    }

    fn window(&self) -> Duration {
        Duration::from_secs(self.parcels[0].dedup_seconds.max(0) as u64)
    }

    fn start(&mut self) {
        for (index, parcel) in self.parcels.iter().enumerate() {
            self.placed.push(vec![None; parcel.hashes.len()]);
            self.pending.extend((0..parcel.hashes.len()).map(|message| (index, message)));
        }
    }

    /// Puts what is pending into a segment; a transaction id that comes twice is written once.
    fn write(&mut self) {
        self.hashes.clear();
        self.transactions.clear();
        self.frames.clear();
        if self.is_whole() {
            return self.write_whole();
        }
        let deduplicates = self.parcels[0].dedup_seconds > 0;
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
        if total == 1 || self.parcels[0].dedup_seconds == 0 {
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
    fn settle(&mut self, base_offset: i64, created_at: i64) {
        // As many hashes as messages: none of them repeats another.
        let deduplicates = self.parcels[0].dedup_seconds > 0 && self.hashes.len() < self.pending.len();
        let mut first: HashMap<TransactionHash, (i64, Option<Uuid>)> = HashMap::new();
        let mut next = base_offset;
        for (parcel, message) in std::mem::take(&mut self.pending) {
            let hash = self.parcels[parcel].hashes[message];
            let repeated = if deduplicates && hash.is_chosen() { first.get(&hash).copied() } else { None };
            let own = self.parcels[parcel].promised.get(message).copied();
            let (offset, promised) = repeated.unwrap_or((next, own));
            if repeated.is_none() {
                if deduplicates {
                    first.insert(hash, (offset, promised));
                }
                next += 1;
            }
            let duplicate = repeated.is_some();
            self.placed[parcel][message] = Some(Placed { offset, created_at, duplicate, promised });
        }
    }

    /// When the first message that needs comparing was accepted, if any was accepted before it could be stored.
    fn accepted(&self) -> Option<i64> {
        if self.parcels[0].dedup_seconds <= 0 {
            return None;
        }
        let chosen = self
            .pending
            .iter()
            .filter(|(parcel, message)| self.parcels[*parcel].hashes[*message].is_chosen());
        chosen.filter_map(|(parcel, message)| self.parcels[*parcel].accepted(*message)).min()
    }

    /// `stored`: older than the window, but for some of these messages it was in it when they were accepted.
    fn drop_accepted(&mut self, stored: &[Stored]) {
        let stored: HashMap<TransactionHash, &Stored> =
            stored.iter().map(|stored| (self.hashes[stored.index], stored)).collect();
        let window = i64::from(self.parcels[0].dedup_seconds) * 1_000_000;
        for (parcel, message) in std::mem::take(&mut self.pending) {
            let hash = self.parcels[parcel].hashes[message];
            let accepted = self.parcels[parcel].accepted(message).filter(|_| hash.is_chosen());
            let repeats = |stored: &&&Stored| accepted.is_some_and(|at| stored.created_at >= at - window);
            match stored.get(&hash).filter(repeats) {
                Some(&&Stored { offset, created_at, promised, .. }) => {
                    self.placed[parcel][message] =
                        Some(Placed { offset, created_at, duplicate: true, promised });
                }
                None => self.pending.push((parcel, message)),
            }
        }
    }

    /// What is stored already is not written again. Found where an earlier try of ours may have put it, it is ours.
    fn drop_stored(&mut self, stored: &[Stored]) {
        let first = self.parcels[0];
        let stored: HashMap<Mark, &Stored> = stored
            .iter()
            .map(|stored| (first.mark(self.hashes[stored.index], stored.promised), stored))
            .collect();
        for (parcel, message) in std::mem::take(&mut self.pending) {
            let hash = self.parcels[parcel].hashes[message];
            let own = self.parcels[parcel].promised.get(message).copied();
            match stored.get(&self.parcels[parcel].mark(hash, own)) {
                Some(&&Stored { offset, created_at, promised, .. }) => {
                    // Nobody else can have written an id that was minted here.
                    let retried = self.parcels[parcel].recheck || !hash.is_chosen();
                    let ours = retried && offset >= self.floor;
                    self.placed[parcel][message] =
                        Some(Placed { offset, created_at, duplicate: !ours, promised });
                }
                None => self.pending.push((parcel, message)),
            }
        }
    }

    fn into_landed(self) -> impl Iterator<Item = Landed> {
        let (gone, behind) = (self.gone, self.behind);
        self.placed.into_iter().map(move |messages| match messages.iter().copied().collect() {
            _ if gone => Landed::Gone,
            Some(placed) => Landed::Placed(placed),
            None if behind => Landed::Behind(messages),
            None => Landed::Gone,
        })
    }
}

/// A segment that is about to become visible, and what the dedup cache learns by it.
pub struct Publication {
    partition: Arc<Partition>,
    segment: Arc<Segment>,
    window: Duration,
    unseen: Option<Vec<u8>>,
    compared: Option<i64>,
}

/// After the commit, and never before: a cache that knew of an append that was rolled back would take another
/// broker's segment for it.
pub fn publish(shared: &Shared, db: &Connection, published: &[Publication]) {
    if published.is_empty() {
        return;
    }
    let now = clock::now();
    let mut dedup = shared.dedup();
    let kept = if db.is_current() { published } else { &[] };
    for publication in kept {
        let segment = &publication.segment;
        let hashes: Vec<TransactionHash> = TransactionHash::read_all(&segment.transactions).collect();
        dedup.appended(
            now,
            publication.window,
            publication.partition.id,
            segment.base_offset,
            &hashes,
            publication.unseen.as_deref(),
            publication.compared,
        );
    }
    drop(dedup);
    let mut segments = shared.segments();
    let kept = if db.is_current() { published } else { &[] };
    for publication in kept {
        segments.insert(publication.partition.id, publication.segment.clone());
    }
    drop(segments);
    let counted = |publication: &'_ Publication| publication.segment.count();
    shared.tally.appended(published.iter().map(|new| (&new.partition.queue, counted(new))));
    let look_at = shared.wake.look_at(now);
    shared.watches.pushed(published.iter().map(|publication| &publication.partition), look_at);
    shared.wake.pushed();
}

//! The spool: pushes that are accepted while the database cannot be reached, on the local disk. Each is synced before it is
//! answered; `intake/spool.rs` moves them into the log in the order they came.

pub mod files;
pub mod record;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot, watch};
use tracing::warn;
use uuid::Uuid;

use crate::clock;
use crate::config::SpoolConfig;
use files::Files;
pub use files::Read;

/// Requests that wait for the disk. Beyond that, the next one is refused.
const WAITING_MAX: usize = 10_000;

/// What is written and synced together.
const GROUP_MAX: usize = 1_000;

/// Folders for brokers that share a machine.
const FOLDERS_MAX: usize = 100;

/// Requests that are moved in a moment.
const LITTLE: usize = 200;

/// How long pushes wait for the rest of the spool, before they go behind it.
const MOVED_WITHIN: Duration = Duration::from_secs(1);

const LOCK: &str = "lock";
const ID: &str = "id";

/// One request, as it is stored in the spool.
#[derive(Debug, Serialize, Deserialize)]
pub struct Spooled<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub producer_sub: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub items: Vec<SpooledItem<'a>>,
}

/// A message with everything that was decided when it was accepted.
#[derive(Debug, Serialize, Deserialize)]
pub struct SpooledItem<'a> {
    #[serde(borrow)]
    pub queue: Cow<'a, str>,
    #[serde(borrow)]
    pub partition: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub transaction_id: Cow<'a, str>,
    /// Whether the client chose the transaction id.
    pub chosen: bool,
    pub message_id: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<Uuid>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<Cow<'a, str>>,
    /// The payload is encrypted with this key.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub key_id: Option<Cow<'a, str>>,
    /// Its queue may not have required that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_doubt: bool,
    #[serde(borrow)]
    pub payload: &'a RawValue,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum SpoolError {
    #[error("the database connection cannot be used, and the spool is full: {bytes} bytes wait on disk")]
    Full { bytes: u64 },
    #[error("the database connection cannot be used, and the spool cannot be written: {0}")]
    Disk(String),
    /// Only for the intake: what is in the spool waits.
    #[error("the spool cannot be used: {0}")]
    Unusable(String),
    #[error("this broker has no spool")]
    None,
}

/// The spool of a broker. Clones share it.
#[derive(Clone)]
pub struct Spool(Arc<Inner>);

struct Inner {
    id: Uuid,
    dir: PathBuf,
    bytes_max: u64,
    jobs: SyncSender<Job>,
    books: Arc<Books>,
    /// Keeps other brokers out of the folder.
    lock: Mutex<Option<File>>,
}

/// What is known of the files without reading them.
#[derive(Default)]
struct Books {
    state: Mutex<State>,
    /// How many lanes there are.
    lanes: AtomicUsize,
    /// Signaled when something was written.
    written: Notify,
    /// Since when the rest of the spool is being moved into the log.
    ending: watch::Sender<Option<Instant>>,
}

#[derive(Default)]
struct State {
    bytes: u64,
    messages: u64,
    /// Requests with messages for a (queue, partition).
    lanes: HashMap<(String, String), usize>,
    /// Requests by the second in which they were accepted.
    times: BTreeMap<u64, usize>,
    /// Whether the last write failed.
    broken: bool,
}

/// What a record contains.
struct Load {
    bytes: u64,
    messages: u64,
    lanes: Vec<(String, String)>,
    /// When it was accepted: seconds since 1970.
    time: Option<u64>,
}

enum Job {
    Append { body: Vec<u8>, load: Load, reply: oneshot::Sender<io::Result<()>> },
    Read { from: u64, reply: oneshot::Sender<io::Result<Vec<Read>>> },
    Done { below: u64 },
}

/// A reading of the spool, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolStats {
    pub messages: u64,
    pub bytes: u64,
    /// How much it may hold, in bytes.
    pub bytes_max: u64,
    /// When the oldest request in it was accepted: seconds since 1970.
    pub oldest: Option<u64>,
    /// Whether the last write worked.
    pub healthy: bool,
}

impl Spool {
    /// Takes the first folder that no other broker of this machine uses, with anything that an earlier broker has left
    /// in it.
    pub fn open(config: &SpoolConfig) -> io::Result<Self> {
        for number in 0..FOLDERS_MAX {
            let dir = config.dir.join(number.to_string());
            make_folder(&config.dir, &dir)?;
            if let Some(lock) = locked(&dir)? {
                return Self::take(config, dir, lock);
            }
        }
        Err(io::Error::other(format!("{FOLDERS_MAX} brokers use {} already", config.dir.display())))
    }

    /// Folders that are no longer in use and still hold something.
    pub fn left_behind(config: &SpoolConfig) -> io::Result<Vec<Self>> {
        let mut found = Vec::new();
        for number in 0..FOLDERS_MAX {
            let dir = config.dir.join(number.to_string());
            if !dir.is_dir() {
                break;
            }
            if !files::any(&dir)? {
                continue;
            }
            if let Some(lock) = locked(&dir)? {
                let spool = Self::take(config, dir, lock)?;
                if !spool.is_empty() {
                    found.push(spool);
                }
            }
        }
        Ok(found)
    }

    fn take(config: &SpoolConfig, dir: PathBuf, lock: File) -> io::Result<Self> {
        let books = Arc::new(Books::default());
        let mut state = State::default();
        let mut records = 0;
        let files = Files::open(&dir, config.file_bytes, config.file_records, |record| {
            records += 1;
            match load(record.body) {
                Some(load) => state.add(&load),
                None => warn!(record = record.number, "a record of the spool cannot be understood"),
            }
        })?;
        // An empty folder gets a new id, so that machines that were copied from one another do not share one.
        let id = match identity(&dir) {
            Ok(id) if records > 0 => id,
            _ => new_identity(&dir)?,
        };
        books.lanes.store(state.lanes.len(), Relaxed);
        *books.lock() = state;
        let (jobs, receiver) = sync_channel(WAITING_MAX);
        let thread = std::thread::Builder::new().name("spool".to_owned());
        let shared = books.clone();
        thread.spawn(move || run(files, &receiver, &shared))?;
        let lock = Mutex::new(Some(lock));
        Ok(Self(Arc::new(Inner { id, dir, bytes_max: config.bytes_max, jobs, books, lock })))
    }

    /// The id under which the database remembers how much of this spool is in the log.
    pub fn id(&self) -> Uuid {
        self.0.id
    }

    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Whether messages for one of these are in the spool and must not be overtaken.
    pub fn holds<'a>(&self, mut lanes: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
        if self.0.books.lanes.load(Relaxed) == 0 {
            return false;
        }
        let state = self.0.books.lock();
        lanes.any(|(queue, partition)| state.lanes.contains_key(&(queue.to_owned(), partition.to_owned())))
    }

    /// Leaves the folder to the next broker. This spool must not be used any more.
    pub fn close(&self) {
        self.0.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub fn is_empty(&self) -> bool {
        self.0.books.lock().messages == 0
    }

    /// Returns once the request is on disk.
    ///
    /// # Cancel safety
    /// Once called the request is written even if the caller goes away.
    pub async fn append(&self, request: &Spooled<'_>) -> Result<(), SpoolError> {
        let body = serde_json::to_vec(request).map_err(|error| SpoolError::Disk(error.to_string()))?;
        let load = request.load(body.len());
        let (reply, answer) = oneshot::channel();
        {
            let mut state = self.0.books.lock();
            if state.bytes + load.bytes > self.0.bytes_max {
                return Err(SpoolError::Full { bytes: state.bytes });
            }
            // Counted before it is written, so that later messages for the same partition go behind it.
            state.add(&load);
            self.0.books.lanes.store(state.lanes.len(), Relaxed);
        }
        if let Err(TrySendError::Full(job) | TrySendError::Disconnected(job)) =
            self.0.jobs.try_send(Job::Append { body, load, reply })
        {
            if let Job::Append { load, .. } = job {
                self.0.books.failed(&[load]);
            }
            return Err(SpoolError::Disk("too many requests wait for it".to_owned()));
        }
        let ended = || Err(io::Error::other("it has ended"));
        answer.await.unwrap_or_else(|_| ended()).map_err(|error| SpoolError::Disk(error.to_string()))
    }

    /// Tells that records are being moved into the log (`None`: no longer). Once little is left, pushes wait for the rest.
    pub fn moving(&self, records: Option<&[Read]>) {
        let little = || self.0.books.lock().times.values().sum::<usize>() <= LITTLE;
        let now = clock::now();
        let since =
            |since: &Option<Instant>| since.filter(|since| now - *since < MOVED_WITHIN).unwrap_or(now);
        let ends = records.is_some() && little();
        self.0.books.ending.send_modify(|ending| *ending = ends.then(|| since(ending)));
    }

    /// Whether messages have to go behind what the spool holds for these lanes. Waits while the rest of it is being moved:
    /// with a steady stream of messages that go behind it, the spool would never become empty.
    pub async fn holds_longer<'a>(&self, lanes: impl Iterator<Item = (&'a str, &'a str)> + Clone) -> bool {
        if !self.holds(lanes.clone()) {
            return false;
        }
        let mut ending = self.0.books.ending.subscribe();
        loop {
            // Read first: what is held may end in between.
            let since = *ending.borrow_and_update();
            if !self.holds(lanes.clone()) {
                return false;
            }
            // A move that hangs delays no push for longer.
            let Some(until) = since.map(|since| since + MOVED_WITHIN) else { return true };
            match tokio::time::timeout_at(until.into(), ending.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) | Err(_) => return true,
            }
        }
    }

    /// Waits until there is something new.
    pub async fn written(&self) {
        self.0.books.written.notified().await;
    }

    /// The next records, in order.
    pub async fn read(&self, from: u64) -> io::Result<Vec<Read>> {
        let (reply, answer) = oneshot::channel();
        let full = || io::Error::other("too many requests wait for the disk");
        self.0.jobs.try_send(Job::Read { from, reply }).map_err(|_| full())?;
        answer.await.unwrap_or_else(|_| Err(io::Error::other("the spool has ended")))
    }

    /// These records are in the database, and so is everything before them. To be called once for each record.
    pub fn done(&self, records: &[Read]) {
        let Some(last) = records.last() else { return };
        let loads: Vec<Load> = records.iter().filter_map(|record| load(&record.body)).collect();
        self.0.books.remove(&loads);
        // Those that wait look again.
        self.0.books.ending.send_modify(|_| ());
        // If the queue is full, the next call covers this one.
        let _ = self.0.jobs.try_send(Job::Done { below: last.number + 1 });
    }

    pub fn stats(&self) -> SpoolStats {
        let state = self.0.books.lock();
        SpoolStats {
            messages: state.messages,
            bytes: state.bytes,
            bytes_max: self.0.bytes_max,
            oldest: state.times.keys().next().copied(),
            healthy: !state.broken,
        }
    }
}

impl Books {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(&self, loads: &[Load]) {
        let mut state = self.lock();
        loads.iter().for_each(|load| state.remove(load));
        self.lanes.store(state.lanes.len(), Relaxed);
    }

    fn failed(&self, loads: &[Load]) {
        self.remove(loads);
        self.lock().broken = true;
    }

    fn written(&self) {
        self.lock().broken = false;
        self.written.notify_one();
    }
}

impl State {
    fn add(&mut self, load: &Load) {
        self.bytes += load.bytes;
        self.messages += load.messages;
        for lane in &load.lanes {
            *self.lanes.entry(lane.clone()).or_default() += 1;
        }
        if let Some(time) = load.time {
            *self.times.entry(time).or_default() += 1;
        }
    }

    fn remove(&mut self, load: &Load) {
        self.bytes = self.bytes.saturating_sub(load.bytes);
        self.messages = self.messages.saturating_sub(load.messages);
        for lane in &load.lanes {
            if let Some(count) = self.lanes.get_mut(lane) {
                *count -= 1;
                if *count == 0 {
                    self.lanes.remove(lane);
                }
            }
        }
        if let Some(time) = load.time
            && let Some(count) = self.times.get_mut(&time)
        {
            *count -= 1;
            if *count == 0 {
                self.times.remove(&time);
            }
        }
    }
}

impl Spooled<'_> {
    fn load(&self, bytes: usize) -> Load {
        let lane = |item: &SpooledItem<'_>| (item.queue.to_string(), item.partition.to_string());
        let mut lanes: Vec<_> = self.items.iter().map(lane).collect();
        lanes.sort_unstable();
        lanes.dedup();
        // Ids of messages are minted when they are accepted.
        let minted = self.items.first().and_then(|item| item.message_id.get_timestamp());
        let time = minted.map(|time| time.to_unix().0);
        Load { bytes: bytes as u64, messages: self.items.len() as u64, lanes, time }
    }
}

fn load(body: &[u8]) -> Option<Load> {
    serde_json::from_slice::<Spooled<'_>>(body).ok().map(|request| request.load(body.len()))
}

fn run(mut files: Files, jobs: &Receiver<Job>, books: &Books) {
    while let Ok(first) = jobs.recv() {
        let (mut bodies, mut loads, mut replies) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(job) = next.take() {
            match job {
                Job::Append { body, load, reply } => {
                    bodies.push(body);
                    loads.push(load);
                    replies.push(reply);
                }
                Job::Read { from, reply } => drop(reply.send(files.read(from))),
                Job::Done { below } => files.done(below),
            }
            if bodies.len() < GROUP_MAX {
                next = jobs.try_recv().ok();
            }
        }
        if bodies.is_empty() {
            continue;
        }
        let result = files.append(&bodies);
        match result {
            Ok(_) => books.written(),
            Err(_) => books.failed(&loads),
        }
        for reply in replies {
            let told =
                result.as_ref().map(|_| ()).map_err(|error| io::Error::new(error.kind(), error.to_string()));
            // The caller may be gone; the request is on disk all the same.
            let _ = reply.send(told);
        }
    }
}

/// Only the broker's user may read messages. The folder above keeps its usual permissions.
fn make_folder(above: &Path, dir: &Path) -> io::Result<()> {
    std::fs::create_dir_all(above)?;
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// `None`: another broker uses it.
fn locked(dir: &Path) -> io::Result<Option<File>> {
    let lock = private().truncate(false).open(dir.join(LOCK))?;
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(std::fs::TryLockError::WouldBlock) => Ok(None),
        Err(std::fs::TryLockError::Error(error)) => Err(error),
    }
}

/// Options for a file that only this user can read, created if it is missing.
fn private() -> OpenOptions {
    File::options().create(true).write(true).mode(0o600).clone()
}

fn identity(dir: &Path) -> io::Result<Uuid> {
    let text = std::fs::read_to_string(dir.join(ID))?;
    Uuid::try_parse(text.trim()).map_err(io::Error::other)
}

fn new_identity(dir: &Path) -> io::Result<Uuid> {
    let id = Uuid::now_v7();
    let temporary = dir.join("id.new");
    let mut file = private().truncate(true).open(&temporary)?;
    file.write_all(id.to_string().as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, dir.join(ID))?;
    // A file is only as durable as its name, and so is a folder.
    File::open(dir)?.sync_all()?;
    dir.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use uuid::{NoContext, Timestamp};

    const ACCEPTED: u64 = 1_700_000_000;

    fn config(dir: &Path, bytes_max: u64) -> SpoolConfig {
        SpoolConfig { dir: dir.to_owned(), bytes_max, file_bytes: 1 << 20, file_records: 100 }
    }

    fn request<'a>(queue: &'a str, payload: &'a RawValue) -> Spooled<'a> {
        let item = SpooledItem {
            queue: queue.into(),
            partition: "p".into(),
            namespace: None,
            task: None,
            transaction_id: "t".into(),
            chosen: true,
            message_id: Uuid::new_v7(Timestamp::from_unix(NoContext, ACCEPTED, 0)),
            trace_id: None,
            traceparent: None,
            tracestate: None,
            key_id: None,
            in_doubt: false,
            payload,
        };
        Spooled { producer_sub: None, items: vec![item] }
    }

    #[tokio::test]
    async fn what_is_in_the_spool_holds_back_only_its_own_partition_until_it_is_done() {
        let dir = tempfile::tempdir().unwrap();
        let payload = RawValue::from_string("{ \"n\" : 1e400 }".to_owned()).unwrap();
        let spool = Spool::open(&config(dir.path(), 1 << 20)).unwrap();
        spool.append(&request("q", &payload)).await.unwrap();
        let id = spool.id();
        assert!(spool.holds([("other", "p"), ("q", "p")].into_iter()));
        assert!(!spool.holds([("other", "p"), ("q", "other")].into_iter()));
        spool.close();
        let mut left = Spool::left_behind(&config(dir.path(), 1 << 20)).unwrap();
        let spool = left.remove(0);
        assert_eq!((spool.id(), spool.stats().messages, spool.stats().oldest), (id, 1, Some(ACCEPTED)));
        let records = spool.read(0).await.unwrap();
        let read: Spooled<'_> = serde_json::from_slice(&records[0].body).unwrap();
        assert_eq!(read.items[0].payload.get(), "{ \"n\" : 1e400 }");
        spool.done(&records);
        assert!(spool.is_empty() && spool.stats().oldest.is_none() && !spool.holds([("q", "p")].into_iter()));
        assert!(spool.read(1).await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn who_comes_while_the_last_of_it_is_moved_waits_for_that_and_no_longer_than_a_second() {
        let dir = tempfile::tempdir().unwrap();
        let payload = RawValue::from_string("1".to_owned()).unwrap();
        let spool = Spool::open(&config(dir.path(), 1 << 20)).unwrap();
        let lane = || [("q", "p")].into_iter();
        let now = async |held| tokio::time::timeout(Duration::from_millis(1), held).await.ok();
        assert!(!spool.holds_longer(lane()).await);
        spool.append(&request("q", &payload)).await.unwrap();
        assert_eq!(now(spool.holds_longer(lane())).await, Some(true), "nothing is being moved");

        let records = spool.read(0).await.unwrap();
        spool.moving(Some(&records));
        assert_eq!(now(spool.holds_longer(lane())).await, None);
        assert!(spool.holds_longer(lane()).await, "it takes too long");
        assert_eq!(now(spool.holds_longer(lane())).await, Some(true), "and it still hangs");
        spool.moving(Some(&records));
        let waiting = async {
            tokio::task::yield_now().await;
            spool.done(&records);
        };
        assert!(!tokio::join!(spool.holds_longer(lane()), waiting).0);

        // A few that came behind those that are being moved are waited for as well, but not many.
        spool.append(&request("q", &payload)).await.unwrap();
        let records = spool.read(1).await.unwrap();
        spool.append(&request("q", &payload)).await.unwrap();
        spool.moving(Some(&records));
        assert_eq!(now(spool.holds_longer(lane())).await, None);
        spool.done(&records);
        assert_eq!(now(spool.holds_longer(lane())).await, None);
        spool.moving(None);
        assert_eq!(now(spool.holds_longer(lane())).await, Some(true), "the move has failed");
        for _ in 0..LITTLE {
            spool.append(&request("q", &payload)).await.unwrap();
        }
        spool.moving(Some(&records));
        assert_eq!(now(spool.holds_longer(lane())).await, Some(true));
    }

    #[tokio::test]
    async fn a_full_spool_says_so_and_two_brokers_do_not_share_one() {
        let dir = tempfile::tempdir().unwrap();
        let payload = RawValue::from_string("1".to_owned()).unwrap();
        let spool = Spool::open(&config(dir.path(), 250)).unwrap();
        spool.append(&request("q", &payload)).await.unwrap();
        let refused = spool.append(&request("q", &payload)).await;
        assert!(matches!(refused, Err(SpoolError::Full { .. })), "{refused:?}");
        assert_eq!(spool.stats().messages, 1);
        let other = Spool::open(&config(dir.path(), 250)).unwrap();
        assert_ne!((other.dir(), other.id()), (spool.dir(), spool.id()));
        assert!(other.is_empty());
        assert!(Spool::left_behind(&config(dir.path(), 250)).unwrap().is_empty(), "both are in use");
        let id = other.id();
        other.close();
        let next = Spool::open(&config(dir.path(), 250)).unwrap();
        assert_ne!(next.id(), id, "an empty one starts anew");
    }

    #[tokio::test]
    async fn only_the_user_of_the_broker_may_look_into_it() {
        let dir = tempfile::tempdir().unwrap();
        let payload = RawValue::from_string("1".to_owned()).unwrap();
        let spool = Spool::open(&config(&dir.path().join("made"), 1 << 20)).unwrap();
        spool.append(&request("q", &payload)).await.unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(spool.dir()), 0o700);
        let files: Vec<_> =
            std::fs::read_dir(spool.dir()).unwrap().map(|file| file.unwrap().path()).collect();
        assert_eq!(files.len(), 3, "{files:?}");
        for file in files {
            assert_eq!(mode(&file), 0o600, "{}", file.display());
        }
    }
}

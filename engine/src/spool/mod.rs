//! The spool: pushes that are accepted while the database cannot be asked, on the local disk. Synced before the answer,
//! handed in by `jobs/replay.rs` in the order they came.

mod files;
mod record;

use std::borrow::Cow;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot};
use tracing::warn;
use uuid::Uuid;

use crate::config::SpoolConfig;
use files::{Files, Found};

/// Requests that wait for the disk. More, and the caller is told that there is no room.
const WAITING_MAX: usize = 10_000;

/// What is written and synced together.
const GROUP_MAX: usize = 1_000;

/// Folders beside each other, for brokers that share a machine.
const FOLDERS_MAX: usize = 100;

const LOCK: &str = "lock";
const ID: &str = "id";

/// One request, as it stands in the spool.
#[derive(Debug, Serialize, Deserialize)]
pub struct Spooled<'a> {
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub producer_sub: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub items: Vec<SpooledItem<'a>>,
}

/// A message with all that was decided when it was accepted.
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
    /// The client chose the transaction id.
    pub chosen: bool,
    pub message_id: Uuid,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace_id: Option<Uuid>,
    #[serde(borrow)]
    pub payload: &'a RawValue,
}

#[derive(Debug, Clone, thiserror::Error)]
pub enum SpoolError {
    #[error("the database connection is lost and the spool is full: {bytes} bytes wait on disk")]
    Full { bytes: u64 },
    #[error("the database connection is lost and the spool cannot be written: {0}")]
    Disk(String),
}

/// Clones share it.
#[derive(Clone)]
pub struct Spool(Arc<Inner>);

struct Inner {
    id: Uuid,
    dir: PathBuf,
    bytes_max: u64,
    jobs: SyncSender<Job>,
    state: Mutex<State>,
    lanes: AtomicUsize,
    /// Something was written.
    written: Notify,
    /// Keeps the folder ours.
    lock: Mutex<Option<File>>,
}

#[derive(Default)]
struct State {
    bytes: u64,
    messages: u64,
    /// Requests with messages for a (queue, partition).
    lanes: HashMap<(String, String), usize>,
    healthy: bool,
}

/// What a record is about.
struct Load {
    bytes: u64,
    messages: u64,
    lanes: Vec<(String, String)>,
}

enum Job {
    Append { body: Vec<u8>, reply: oneshot::Sender<io::Result<()>> },
    Read { from: u64, reply: oneshot::Sender<io::Result<Vec<Found>>> },
    Done { below: u64 },
    Skip { to: u64 },
}

/// A reading for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolStats {
    pub messages: u64,
    pub bytes: u64,
    /// The last write worked.
    pub healthy: bool,
}

/// A record that was read back.
pub struct Read {
    pub number: u64,
    pub body: Vec<u8>,
}

impl Spool {
    /// Takes the first folder that no other broker of this machine uses, and what an earlier one has left in it.
    pub fn open(config: &SpoolConfig) -> io::Result<Self> {
        let (dir, lock) = folder(&config.dir)?;
        let id = identity(&dir)?;
        let (files, found) = Files::open(&dir, config.file_bytes, config.file_records)?;
        let mut state = State { healthy: true, ..State::default() };
        for record in &found {
            match load(&record.body) {
                Some(load) => state.add(&load),
                None => warn!(record = record.number, "a record of the spool cannot be understood"),
            }
        }
        let (jobs, receiver) = sync_channel(WAITING_MAX);
        std::thread::Builder::new().name("spool".to_owned()).spawn(move || run(files, &receiver))?;
        let lanes = AtomicUsize::new(state.lanes.len());
        Ok(Self(Arc::new(Inner {
            id,
            dir,
            bytes_max: config.bytes_max,
            jobs,
            state: Mutex::new(state),
            lanes,
            written: Notify::new(),
            lock: Mutex::new(Some(lock)),
        })))
    }

    /// For the database: how far it was handed in is remembered under this id.
    pub fn id(&self) -> Uuid {
        self.0.id
    }

    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// Whether one of these has messages in the spool, which must not be overtaken.
    pub fn holds<'a>(&self, mut lanes: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
        if self.0.lanes.load(Relaxed) == 0 {
            return false;
        }
        let state = self.0.lock();
        lanes.any(|(queue, partition)| state.lanes.contains_key(&(queue.to_owned(), partition.to_owned())))
    }

    /// Leaves the folder to the next broker. Nothing may be asked of this one any more.
    pub fn close(&self) {
        self.0.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    pub fn is_empty(&self) -> bool {
        self.0.lock().messages == 0
    }

    /// Returns once the request is on disk.
    ///
    /// # Cancel safety
    /// Once called the request is written even if the caller goes away.
    pub async fn append(&self, request: &Spooled<'_>) -> Result<(), SpoolError> {
        let body = serde_json::to_vec(request).map_err(|error| SpoolError::Disk(error.to_string()))?;
        let load = request.load(body.len());
        {
            let mut state = self.0.lock();
            if state.bytes + load.bytes > self.0.bytes_max {
                return Err(SpoolError::Full { bytes: state.bytes });
            }
            // Before it is written: what comes next for the same partition goes behind it.
            state.add(&load);
            self.0.lanes.store(state.lanes.len(), Relaxed);
        }
        let (reply, answer) = oneshot::channel();
        let result = match self.0.jobs.try_send(Job::Append { body, reply }) {
            Ok(()) => answer.await.unwrap_or_else(|_| Err(io::Error::other("the spool has ended"))),
            Err(_) => Err(io::Error::other("too many requests wait for the disk")),
        };
        let mut state = self.0.lock();
        state.healthy = result.is_ok();
        if let Err(error) = result {
            state.remove(&load);
            self.0.lanes.store(state.lanes.len(), Relaxed);
            return Err(SpoolError::Disk(error.to_string()));
        }
        drop(state);
        self.0.written.notify_one();
        Ok(())
    }

    /// Waits until there is something new.
    pub async fn written(&self) {
        self.0.written.notified().await;
    }

    /// The next records, in order.
    pub async fn read(&self, from: u64) -> io::Result<Vec<Read>> {
        let (reply, answer) = oneshot::channel();
        let full = || io::Error::other("too many requests wait for the disk");
        self.0.jobs.try_send(Job::Read { from, reply }).map_err(|_| full())?;
        let found = answer.await.unwrap_or_else(|_| Err(io::Error::other("the spool has ended")))?;
        Ok(found.into_iter().map(|found| Read { number: found.number, body: found.body }).collect())
    }

    /// These records are in the database, and so is everything before them.
    pub fn done(&self, records: &[Read]) {
        let Some(last) = records.last() else { return };
        let mut state = self.0.lock();
        for record in records {
            if let Some(load) = load(&record.body) {
                state.remove(&load);
            }
        }
        self.0.lanes.store(state.lanes.len(), Relaxed);
        drop(state);
        // Should the queue be full, the next one says it again.
        let _ = self.0.jobs.try_send(Job::Done { below: last.number + 1 });
    }

    /// The database knows of records up to here; their numbers are not used again.
    pub fn skip_to(&self, number: u64) {
        let _ = self.0.jobs.try_send(Job::Skip { to: number });
    }

    pub fn stats(&self) -> SpoolStats {
        let state = self.0.lock();
        SpoolStats { messages: state.messages, bytes: state.bytes, healthy: state.healthy }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn add(&mut self, load: &Load) {
        self.bytes += load.bytes;
        self.messages += load.messages;
        for lane in &load.lanes {
            *self.lanes.entry(lane.clone()).or_default() += 1;
        }
    }

    fn remove(&mut self, load: &Load) {
        self.bytes -= load.bytes;
        self.messages -= load.messages;
        for lane in &load.lanes {
            if let Some(count) = self.lanes.get_mut(lane) {
                *count -= 1;
                if *count == 0 {
                    self.lanes.remove(lane);
                }
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
        Load { bytes: bytes as u64, messages: self.items.len() as u64, lanes }
    }
}

fn load(body: &[u8]) -> Option<Load> {
    serde_json::from_slice::<Spooled<'_>>(body).ok().map(|request| request.load(body.len()))
}

fn run(mut files: Files, jobs: &Receiver<Job>) {
    while let Ok(first) = jobs.recv() {
        let mut next = Some(first);
        while let Some(job) = next.take() {
            let (mut bodies, mut replies) = (Vec::new(), Vec::new());
            let mut other = None;
            let mut job = Some(job);
            while let Some(taken) = job.take() {
                match taken {
                    Job::Append { body, reply } => {
                        bodies.push(body);
                        replies.push(reply);
                        if bodies.len() < GROUP_MAX {
                            job = jobs.try_recv().ok();
                        }
                    }
                    taken => other = Some(taken),
                }
            }
            if !bodies.is_empty() {
                append(&mut files, &bodies, replies);
            }
            match other {
                Some(Job::Read { from, reply }) => drop(reply.send(files.read(from))),
                Some(Job::Done { below }) => files.done(below),
                Some(Job::Skip { to }) => files.skip_to(to),
                Some(append @ Job::Append { .. }) => next = Some(append),
                None => {}
            }
        }
    }
}

fn append(files: &mut Files, bodies: &[Vec<u8>], replies: Vec<oneshot::Sender<io::Result<()>>>) {
    let result = files.append(bodies);
    for reply in replies {
        let told = match &result {
            Ok(_) => Ok(()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        };
        // Whoever asked may be gone; it is on disk all the same.
        let _ = reply.send(told);
    }
}

/// The first folder that is free, and the lock that keeps it ours.
fn folder(base: &Path) -> io::Result<(PathBuf, File)> {
    for number in 0..FOLDERS_MAX {
        let dir = base.join(number.to_string());
        std::fs::create_dir_all(&dir)?;
        let lock = File::options().create(true).truncate(false).write(true).open(dir.join(LOCK))?;
        match lock.try_lock() {
            Ok(()) => return Ok((dir, lock)),
            Err(std::fs::TryLockError::WouldBlock) => {}
            Err(std::fs::TryLockError::Error(error)) => return Err(error),
        }
    }
    Err(io::Error::other(format!("{FOLDERS_MAX} brokers use {} already", base.display())))
}

fn identity(dir: &Path) -> io::Result<Uuid> {
    let path = dir.join(ID);
    match std::fs::read_to_string(&path) {
        Ok(text) => Uuid::try_parse(text.trim()).map_err(io::Error::other),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let id = Uuid::now_v7();
            let temporary = dir.join("id.new");
            std::fs::write(&temporary, id.to_string())?;
            File::open(&temporary)?.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            File::open(dir)?.sync_all()?;
            Ok(id)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            message_id: Uuid::from_u128(7),
            trace_id: None,
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
        drop(spool);
        let spool = reopened(&config(dir.path(), 1 << 20)).await;
        assert_eq!((spool.id(), spool.stats().messages), (id, 1));
        let records = spool.read(0).await.unwrap();
        let read: Spooled<'_> = serde_json::from_slice(&records[0].body).unwrap();
        assert_eq!(read.items[0].payload.get(), "{ \"n\" : 1e400 }");
        spool.done(&records);
        assert!(spool.is_empty() && !spool.holds([("q", "p")].into_iter()));
        assert!(spool.read(1).await.unwrap().is_empty());
    }

    /// Its thread ends a moment after the last handle.
    async fn reopened(config: &SpoolConfig) -> Spool {
        let spool = Spool::open(config).unwrap();
        assert!(spool.dir().ends_with("0"));
        spool
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
    }
}

//! Names to partitions: what the broker has looked up, bounded. Only a hint: if a row was deleted in the meantime,
//! that shows when the entry is used, and the name is looked up again.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::cache::Cache;
use crate::log::Partition;

/// About 200 bytes each: 100,000 names in 20 MB.
const NAMES_MAX: usize = 100_000;

#[derive(Debug, Clone)]
pub struct Known {
    pub partition: Arc<Partition>,
    pub dedup_seconds: i32,
    /// Whether its queue requires payloads to be encrypted.
    pub encrypted: bool,
    /// The head at the time of the lookup.
    pub head: i64,
}

pub struct Directory {
    known: Mutex<Cache<String, Known>>,
    changes: AtomicU64,
}

impl Directory {
    pub fn new() -> Self {
        Self { known: Mutex::new(Cache::new(NAMES_MAX)), changes: AtomicU64::new(0) }
    }

    /// In the order asked, under one lock.
    pub fn find<'a>(&self, names: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<Option<Known>> {
        let mut known = self.lock();
        let mut key = String::new();
        names
            .map(|(queue, partition)| {
                write_key(&mut key, queue, partition);
                known.get(key.as_str()).cloned()
            })
            .collect()
    }

    /// To be read before a lookup whose result goes to [`Self::learn`].
    pub fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// Remembers a lookup, unless options changed since: otherwise it might be remembered for good that a queue is not
    /// encrypted.
    pub fn learn(&self, known: Known, changes: u64) {
        let mut key = String::new();
        write_key(&mut key, &known.partition.queue, &known.partition.name);
        let mut entries = self.lock();
        if self.changes() == changes {
            entries.insert(key, known, 1);
        }
    }

    pub fn forget(&self, partition: &Partition) {
        let mut key = String::new();
        write_key(&mut key, &partition.queue, &partition.name);
        self.lock().remove(key.as_str());
    }

    /// The partitions of a queue that are known here.
    pub fn ids(&self, queue: &str) -> Vec<Uuid> {
        let mut ids = Vec::new();
        self.lock().retain(|_, known| {
            if known.partition.queue.as_ref() == queue {
                ids.push(known.partition.id);
            }
            true
        });
        ids
    }

    /// After a queue was deleted or its options changed.
    pub fn forget_queue(&self, queue: &str) {
        let mut known = self.lock();
        self.changes.fetch_add(1, SeqCst);
        known.retain(|_, known| known.partition.queue.as_ref() != queue);
    }

    pub fn clear(&self) {
        let mut known = self.lock();
        self.changes.fetch_add(1, SeqCst);
        known.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Cache<String, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Names hold no NUL, so the pair is unambiguous.
fn write_key(key: &mut String, queue: &str, partition: &str) {
    key.clear();
    key.push_str(queue);
    key.push('\0');
    key.push_str(partition);
}

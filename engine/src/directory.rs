//! Names to partitions: what the broker has looked up, bounded. Only a hint: a row deleted behind its back shows
//! when it is used, and is then looked up again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cache::Cache;
use crate::db::procedures::{self, Open};
use crate::db::{Connections, Error, Priority};
use crate::log::{Partition, ids};

/// Partitions one statement opens at most.
const OPEN_MAX: usize = 500;

/// About 200 bytes each: 100,000 names in 20 MB.
const NAMES_MAX: usize = 100_000;

#[derive(Debug, Clone)]
pub struct Known {
    pub partition: Arc<Partition>,
    pub dedup_seconds: i32,
    /// The head when it was looked up.
    pub head: i64,
}

pub struct Directory {
    known: Mutex<Cache<String, Known>>,
    connections: Connections,
}

/// A partition somebody wants; namespace and task matter only if its queue is new.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    pub queue: &'a str,
    pub partition: &'a str,
    pub namespace: Option<&'a str>,
    pub task: Option<&'a str>,
}

impl Directory {
    pub fn new(connections: Connections) -> Self {
        Self { known: Mutex::new(Cache::new(NAMES_MAX)), connections }
    }

    /// In the order asked; `None` where there is no such partition and none is to be made.
    pub async fn open(&self, wanted: &[Wanted<'_>], create: bool) -> Result<Vec<Option<Known>>, Error> {
        let mut found: Vec<Option<Known>> = Vec::with_capacity(wanted.len());
        {
            let mut known = self.lock();
            let mut key = String::new();
            found.extend(wanted.iter().map(|want| {
                write_key(&mut key, want.queue, want.partition);
                known.get(key.as_str()).cloned()
            }));
        }
        let missing: Vec<usize> = (0..wanted.len()).filter(|&index| found[index].is_none()).collect();
        for chunk in missing.chunks(OPEN_MAX) {
            let mut ask = Open::default();
            for &index in chunk {
                let want = wanted[index];
                ask.queues.push(want.queue);
                ask.partitions.push(want.partition);
                ask.ids.push(ids::partition_id());
                ask.namespaces.push(want.namespace);
                ask.tasks.push(want.task);
            }
            let db = self.connections.acquire(Priority::Push).await?;
            let opened = procedures::open(&db, &ask, create).await?;
            drop(db);
            let mut known = self.lock();
            for row in opened {
                let index = chunk[row.position];
                let want = wanted[index];
                let partition = Arc::new(Partition {
                    id: row.id,
                    number: row.number,
                    queue: want.queue.into(),
                    name: want.partition.into(),
                });
                let entry = Known { partition, dedup_seconds: row.dedup_seconds, head: row.head };
                let mut key = String::new();
                write_key(&mut key, want.queue, want.partition);
                known.insert(key, entry.clone(), 1);
                found[index] = Some(entry);
            }
        }
        Ok(found)
    }

    pub fn forget(&self, partition: &Partition) {
        let mut key = String::new();
        write_key(&mut key, &partition.queue, &partition.name);
        self.lock().remove(key.as_str());
    }

    /// After a queue was deleted or its options changed.
    pub fn forget_queue(&self, queue: &str) {
        self.lock().retain(|_, known| known.partition.queue.as_ref() != queue);
    }

    pub fn clear(&self) {
        self.lock().clear();
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

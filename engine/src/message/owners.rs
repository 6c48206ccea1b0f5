//! The queues that partitions belong to, for callers that may not access all queues. A partition never changes its
//! queue and its id is never reused, so what was looked up once stays true. Its number may be reused, by a server that
//! has lost the end of the log.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use uuid::Uuid;

use crate::Engine;
use crate::cache::Cache;
use crate::db::keys;
use crate::error::Error;

/// About 100 bytes each: 10 MB for both.
const PARTITIONS_MAX: usize = 50_000;

pub struct Owners {
    known: Mutex<Known>,
}

struct Known {
    ids: Cache<Uuid, Arc<str>>,
    numbers: Cache<i64, Arc<str>>,
}

impl Known {
    fn new() -> Self {
        Self { ids: Cache::new(PARTITIONS_MAX), numbers: Cache::new(PARTITIONS_MAX) }
    }
}

impl Owners {
    pub fn new() -> Self {
        Self { known: Mutex::new(Known::new()) }
    }

    pub fn forget(&self) {
        *self.lock() = Known::new();
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Engine {
    /// The queue of each partition, in the order asked; `None` for one that does not exist.
    pub async fn owners(&self, partitions: &[Uuid]) -> Result<Vec<Option<Arc<str>>>, Error> {
        let mut found = look_up(&mut self.shared.owners.lock().ids, partitions);
        let unknown = unknown(partitions, &found);
        if !unknown.is_empty() {
            let incarnation = self.shared.connections.incarnation();
            let rows = keys::owners(&self.shared.connections, &unknown, &[]).await?;
            let rows = self.learn(rows, incarnation);
            let learnt: HashMap<Uuid, Arc<str>> = rows.map(|(id, _, queue)| (id, queue)).collect();
            fill_in(&mut found, partitions, &learnt);
        }
        Ok(found)
    }

    /// The same for the numbers that lease ids carry.
    pub async fn owners_of_numbers(&self, numbers: &[i64]) -> Result<Vec<Option<Arc<str>>>, Error> {
        let mut found = look_up(&mut self.shared.owners.lock().numbers, numbers);
        let unknown = unknown(numbers, &found);
        if !unknown.is_empty() {
            let incarnation = self.shared.connections.incarnation();
            let rows = keys::owners(&self.shared.connections, &[], &unknown).await?;
            let rows = self.learn(rows, incarnation);
            let learnt: HashMap<i64, Arc<str>> = rows.map(|(_, number, queue)| (number, queue)).collect();
            fill_in(&mut found, numbers, &learnt);
        }
        Ok(found)
    }

    /// The live lease of each (partition, group) pair, in the order asked.
    pub async fn live_leases(&self, readers: &[(Uuid, &str)]) -> Result<Vec<Option<Uuid>>, Error> {
        let (partitions, groups): (Vec<Uuid>, Vec<&str>) = readers.iter().copied().unzip();
        let mut leases = vec![None; readers.len()];
        for (place, lease) in keys::live_leases(&self.shared.connections, &partitions, &groups).await? {
            leases[place] = Some(lease);
        }
        Ok(leases)
    }

    /// `incarnation`: of the server, at the time of the query.
    fn learn(
        &self,
        rows: Vec<(Uuid, i64, String)>,
        incarnation: u64,
    ) -> impl Iterator<Item = (Uuid, i64, Arc<str>)> {
        let rows: Vec<_> = rows.into_iter().map(|(id, number, queue)| (id, number, queue.into())).collect();
        let mut known = self.shared.owners.lock();
        let current = self.shared.connections.incarnation() == incarnation;
        for (id, number, queue) in rows.iter().filter(|_| current) {
            known.ids.insert(*id, Arc::clone(queue), 1);
            known.numbers.insert(*number, Arc::clone(queue), 1);
        }
        rows.into_iter()
    }
}

fn look_up<K: Hash + Eq>(cache: &mut Cache<K, Arc<str>>, asked: &[K]) -> Vec<Option<Arc<str>>> {
    asked.iter().map(|key| cache.get(key).cloned()).collect()
}

fn fill_in<K: Hash + Eq>(found: &mut [Option<Arc<str>>], asked: &[K], learnt: &HashMap<K, Arc<str>>) {
    for (owner, key) in found.iter_mut().zip(asked) {
        if owner.is_none() {
            *owner = learnt.get(key).cloned();
        }
    }
}

/// The keys without an owner, each once.
fn unknown<K: Ord + Copy>(asked: &[K], found: &[Option<Arc<str>>]) -> Vec<K> {
    let missing = asked.iter().zip(found).filter(|(_, owner)| owner.is_none());
    let mut missing: Vec<K> = missing.map(|(key, _)| *key).collect();
    missing.sort_unstable();
    missing.dedup();
    missing
}

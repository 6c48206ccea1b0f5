//! All watches of a broker, by queue and group: where commits, acks and other brokers' hints are turned into
//! ready partitions and woken pops.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use uuid::Uuid;

use crate::log::Partition;
use crate::pop::watch::{Timers, Watch};

/// Beyond this, watches nobody waits on and that list nothing are dropped.
const WATCHES_MAX: usize = 20_000;

#[derive(Default)]
pub struct Watches {
    queues: Mutex<Registry>,
    pub timers: Arc<Timers>,
}

#[derive(Default)]
struct Registry {
    queues: HashMap<Arc<str>, HashMap<Arc<str>, Arc<Watch>>>,
    count: usize,
}

impl Watches {
    pub fn get(&self, queue: &str, group: &str) -> Arc<Watch> {
        let mut registry = self.lock();
        if let Some(watch) = registry.queues.get(queue).and_then(|groups| groups.get(group)) {
            return watch.clone();
        }
        if registry.count >= WATCHES_MAX {
            registry.drop_idle();
        }
        let watch = Watch::new(queue.into(), group.into(), self.timers.clone());
        registry.count += 1;
        registry.queues.entry(queue.into()).or_default().insert(group.into(), watch.clone());
        watch
    }

    pub fn find(&self, queue: &str, group: &str) -> Option<Arc<Watch>> {
        self.lock().queues.get(queue)?.get(group).cloned()
    }

    /// Something was committed to these partitions.
    /// `look_at`: see `ReadyList::mark`.
    pub fn pushed<'a>(
        &self,
        partitions: impl IntoIterator<Item = &'a Arc<Partition>>,
        look_at: Option<Instant>,
    ) {
        let registry = self.lock();
        for partition in partitions {
            for watch in registry.queues.get(&partition.queue).into_iter().flat_map(HashMap::values) {
                watch.mark(partition, look_at);
            }
        }
    }

    /// What the lists say can no longer be trusted: they are dropped, and everybody parked looks again.
    pub fn reset(&self, queue: Option<&str>, group: Option<&str>) {
        let mut dropped = Vec::new();
        let mut registry = self.lock();
        registry.queues.retain(|name, groups| {
            if queue.is_none_or(|queue| queue == name.as_ref()) {
                groups.retain(|name, watch| {
                    let drop = group.is_none_or(|group| group == name.as_ref());
                    if drop {
                        dropped.push(watch.clone());
                    }
                    !drop
                });
            }
            !groups.is_empty()
        });
        registry.count -= dropped.len();
        drop(registry);
        for watch in dropped {
            watch.wake_all();
        }
    }

    /// The partitions of a queue that any list holds.
    pub fn ids(&self, queue: &str) -> Vec<Uuid> {
        let registry = self.lock();
        registry
            .queues
            .get(queue)
            .into_iter()
            .flat_map(HashMap::values)
            .flat_map(|watch| watch.ids())
            .collect()
    }

    pub fn parked(&self) -> usize {
        self.lock().queues.values().flat_map(HashMap::values).map(|watch| watch.parked()).sum()
    }

    /// Of all lists: partitions that may be claimed now, and all that are listed.
    pub fn listed(&self) -> (usize, usize) {
        let registry = self.lock();
        let watches = registry.queues.values().flat_map(HashMap::values);
        watches.fold((0, 0), |(ready, listed), watch| (ready + watch.ready(), listed + watch.listed()))
    }

    /// How many, by queue; none for a queue without.
    pub fn parked_by_queue(&self) -> Vec<(Arc<str>, u64)> {
        let registry = self.lock();
        let queues = registry.queues.iter().map(|(queue, groups)| {
            let parked: usize = groups.values().map(|watch| watch.parked()).sum();
            (queue.clone(), parked as u64)
        });
        queues.filter(|(_, parked)| *parked > 0).collect()
    }

    /// Everybody who waits for this queue looks again.
    pub fn wake(&self, queue: &str) {
        let watches: Vec<Arc<Watch>> =
            self.lock().queues.get(queue).into_iter().flat_map(HashMap::values).cloned().collect();
        watches.iter().for_each(|watch| watch.wake_all());
    }

    /// Whether anybody is parked at all.
    pub fn anybody_parked(&self) -> bool {
        self.lock().queues.values().flat_map(HashMap::values).any(|watch| watch.anybody_parked())
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    fn drop_idle(&mut self) {
        self.queues.retain(|_, groups| {
            groups.retain(|_, watch| watch.anybody_parked() || watch.listed() > 0);
            !groups.is_empty()
        });
        self.count = self.queues.values().map(HashMap::len).sum();
    }
}

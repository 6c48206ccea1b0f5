//! Encryption problems, logged and remembered for the doctor: queues that require encryption while no key is set, logged once
//! each, and messages that cannot be decrypted, logged once per blocked partition. Bounded; it decides nothing.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tracing::{error, warn};
use uuid::Uuid;

use crate::clock;
use crate::error::UnreadableMessage;
use crate::log::Partition;

const QUEUES_MAX: usize = 1_000;
const PARTITIONS_MAX: usize = 1_000;

/// A message that no consumer has met for this long may be fixed.
const FORGET_AFTER: Duration = Duration::from_secs(300);

#[derive(Default)]
pub struct Troubles {
    plain: Mutex<HashSet<Arc<str>>>,
    withheld: Mutex<HashSet<String>>,
    unreadable: Mutex<HashMap<Uuid, (UnreadableMessage, Instant)>>,
    /// Whether there may be any; checked without the lock.
    any: AtomicBool,
}

impl Troubles {
    /// A queue requires encryption, and no key is set.
    pub fn stored_plain(&self, queue: &Arc<str>) {
        let mut plain = self.plain.lock().unwrap_or_else(PoisonError::into_inner);
        if plain.len() < QUEUES_MAX && plain.insert(queue.clone()) {
            warn!(%queue, "queue requires encryption but no key is set: storing messages unencrypted; set QUEEN_ENCRYPTION_KEY");
        }
    }

    /// The same for a queue whose messages stay in the inbox for that reason.
    pub fn withheld(&self, queue: &str) {
        let mut withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        if withheld.len() < QUEUES_MAX && withheld.insert(queue.to_owned()) {
            warn!(
                queue,
                "messages pushed from SQL wait unencrypted in queen.inbox: their queue requires encryption but no key is set; set QUEEN_ENCRYPTION_KEY"
            );
        }
    }

    /// A partition is blocked by this message.
    pub fn unreadable(&self, partition: &Partition, message: &UnreadableMessage) {
        let mut unreadable = self.lock();
        let known = unreadable.get(&partition.id).is_some_and(|(known, _)| known == message);
        if !known {
            error!(queue = %message.queue, partition = %message.partition, transaction = %message.transaction_id,
                   cause = %message.cause, "message cannot be decrypted, its partition is blocked");
        }
        if known || unreadable.len() < PARTITIONS_MAX {
            unreadable.insert(partition.id, (message.clone(), clock::now()));
            self.any.store(true, Relaxed);
        }
    }

    pub fn delivered(&self, partition: Uuid) {
        if self.any.load(Relaxed) {
            let mut unreadable = self.lock();
            unreadable.remove(&partition);
            self.any.store(!unreadable.is_empty(), Relaxed);
        }
    }

    /// Messages met recently.
    pub fn unread(&self) -> Vec<UnreadableMessage> {
        let (mut unreadable, now) = (self.lock(), clock::now());
        unreadable.retain(|_, (_, met)| now - *met < FORGET_AFTER);
        unreadable.values().map(|(message, _)| message.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, (UnreadableMessage, Instant)>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

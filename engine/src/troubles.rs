//! What is wrong with encryption here, told to the log and remembered for the doctor: queues that ask for it in vain, each told
//! once, and messages that nobody can read, told for each partition that waits. Bounded; it decides nothing.

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

/// Nobody has met it for so long: it may be mended.
const FORGET_AFTER: Duration = Duration::from_secs(300);

#[derive(Default)]
pub struct Troubles {
    plain: Mutex<HashSet<Arc<str>>>,
    withheld: Mutex<HashSet<String>>,
    unreadable: Mutex<HashMap<Uuid, (UnreadableMessage, Instant)>>,
    /// Whether there may be some, for those in a hurry.
    any: AtomicBool,
}

impl Troubles {
    /// A queue asks for encryption, and there is no key.
    pub fn stored_plain(&self, queue: &Arc<str>) {
        let mut plain = self.plain.lock().unwrap_or_else(PoisonError::into_inner);
        if plain.len() < QUEUES_MAX && plain.insert(queue.clone()) {
            warn!(%queue, "the queue asks for encryption, but there is no key: its messages are stored as they are; set QUEEN_ENCRYPTION_KEY");
        }
    }

    /// The same of one whose messages in the inbox are not stored for that.
    pub fn withheld(&self, queue: &str) {
        let mut withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        if withheld.len() < QUEUES_MAX && withheld.insert(queue.to_owned()) {
            warn!(
                queue,
                "messages pushed with SQL wait in queen.inbox, where they are readable: their queue asks for encryption, and there is no key; set QUEEN_ENCRYPTION_KEY"
            );
        }
    }

    /// A partition waits at this message.
    pub fn unreadable(&self, partition: &Partition, message: &UnreadableMessage) {
        let mut unreadable = self.lock();
        let known = unreadable.get(&partition.id).is_some_and(|(known, _)| known == message);
        if !known {
            error!(queue = %message.queue, partition = %message.partition, transaction = %message.transaction_id,
                   cause = %message.cause, "a message cannot be read, and its partition waits");
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

    /// Of those met lately.
    pub fn unread(&self) -> Vec<UnreadableMessage> {
        let (mut unreadable, now) = (self.lock(), clock::now());
        unreadable.retain(|_, (_, met)| now - *met < FORGET_AFTER);
        unreadable.values().map(|(message, _)| message.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, (UnreadableMessage, Instant)>> {
        self.unreadable.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

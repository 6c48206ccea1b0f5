//! Wake-ups across brokers. A notification only says that something happened; the log, read in commit order, says what. So a
//! lost or late notification costs time and nothing else.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Release};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio_postgres::AsyncMessage;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::clock;
use crate::db::control;
use crate::db::procedures::{self, Position};
use crate::db::{Checkout, Error};
use crate::log::Partition;
use crate::shared::Shared;

/// A parked pop finds what no notification announced within this time.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const HEARTBEAT: Duration = Duration::from_secs(10);

/// After this long without a heartbeat, a broker counts as gone and is no longer notified.
const PEER_FORGOTTEN: Duration = Duration::from_secs(35);

/// After this long without a successful notification, other brokers may have dropped this one and sent it nothing.
const SILENT_MAX: Duration = Duration::from_secs(30);

/// Minimum interval between notifications: a burst of commits becomes one.
const SEND_EVERY: Duration = Duration::from_millis(2);

const LISTEN_AGAIN: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listening {
    Starting,
    Hearing,
    Deaf,
}

/// If more hints than this are waiting, one that resets everything replaces them.
const OUTBOX_MAX: usize = 1_000;

pub struct Wake {
    pub broker: Uuid,
    hearing: AtomicBool,
    pushed: AtomicBool,
    outbox: Mutex<Vec<Hint>>,
    signal: Notify,
    peers: Mutex<HashMap<Uuid, Instant>>,
    started: AtomicU64,
    seen: tokio::sync::Mutex<Seen>,
}

struct Seen {
    position: Position,
    /// Of the server whose transaction numbers these are; empty before the first look.
    incarnation: String,
    look: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Note {
    from: Uuid,
    /// Sent with the commit that it announces. The sender acts on it too, because it may never learn of that commit otherwise.
    #[serde(default)]
    committed: bool,
    #[serde(flatten)]
    hint: Hint,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "hint", rename_all = "lowercase")]
enum Hint {
    /// A broker has started; others respond with `Here`.
    Hello,
    Here,
    Pushed,
    /// A lease served by another broker was released; `more` if the partition may have more messages.
    Released {
        /// Not sent by brokers of 0.1.0, and not known for an ack without a lease.
        #[serde(default)]
        lease: Option<Uuid>,
        partition: Uuid,
        group: String,
        queue: String,
        name: String,
        more: bool,
    },
    /// Cursors were moved, or a queue was changed or deleted; `None` means any.
    Reset {
        queue: Option<String>,
        group: Option<String>,
    },
    Deleted {
        queue: String,
    },
}

impl Wake {
    pub fn new() -> Self {
        Self {
            broker: Uuid::new_v4(),
            hearing: AtomicBool::new(false),
            pushed: AtomicBool::new(false),
            outbox: Mutex::default(),
            signal: Notify::new(),
            peers: Mutex::default(),
            started: AtomicU64::new(0),
            seen: tokio::sync::Mutex::new(Seen {
                position: Position { xmax: i64::MAX, running: Vec::new() },
                incarnation: String::new(),
                look: 0,
            }),
        }
    }

    /// Announces a push that was committed here. Free while there is no other broker.
    pub fn pushed(&self) {
        if self.has_peers() && !self.pushed.swap(true, AcqRel) {
            self.signal.notify_one();
        }
    }

    pub fn released(
        &self,
        lease: Option<Uuid>,
        partition: Uuid,
        group: &str,
        queue: &str,
        name: &str,
        more: bool,
    ) {
        if self.is_alone() {
            return;
        }
        self.send(Hint::Released {
            lease,
            partition,
            group: group.to_owned(),
            queue: queue.to_owned(),
            name: name.to_owned(),
            more,
        });
    }

    /// The note that a statement sends with its commit when cached knowledge about a queue or group becomes invalid; `None` means
    /// any.
    pub fn reset_note(&self, queue: Option<&str>, group: Option<&str>) -> String {
        self.committed(Hint::Reset { queue: queue.map(str::to_owned), group: group.map(str::to_owned) })
    }

    /// The note that a queue was deleted, with everything cached about it.
    pub fn deleted_note(&self, queue: &str) -> String {
        self.committed(Hint::Deleted { queue: queue.to_owned() })
    }

    fn committed(&self, hint: Hint) -> String {
        serde_json::to_string(&Note { from: self.broker, committed: true, hint }).unwrap_or_default()
    }

    /// Reads what was committed since the last look and marks it as ready. Only a look that starts after this call is sure to see
    /// what the caller waits for; concurrent callers share one.
    pub async fn discover(&self, shared: &Shared) -> Result<(), Error> {
        let before = self.started.load(Acquire);
        let mut seen = self.seen.lock().await;
        if seen.look > before {
            return Ok(());
        }
        let look = self.started.fetch_add(1, AcqRel) + 1;
        let from = &seen.position;
        let call = |db: Checkout| async move {
            let found = procedures::discover(&db, from).await?;
            Ok((found, db.incarnation.name().to_owned()))
        };
        let ((position, written), incarnation) = shared.connections.persist(call).await?;
        let restarted = !seen.incarnation.is_empty() && seen.incarnation != incarnation;
        let mut marked = Vec::new();
        let mut dedup = shared.dedup();
        for row in written {
            if !dedup.wrote(row.id, row.head) {
                let (queue, name) = (row.queue.into(), row.name.into());
                marked.push(Arc::new(Partition { id: row.id, number: row.number, queue, name }));
            }
        }
        drop(dedup);
        shared.watches.pushed(&marked, self.look_at(clock::now()));
        *seen = Seen { position, incarnation, look };
        if restarted {
            // Transaction numbers are reused after a crash, so this look may have missed some. Lists built from here on are
            // complete, and later looks start from the new position.
            forget(shared, None, None);
        }
        Ok(())
    }

    /// When to look again while a lease is believed to be held: soon, if another broker may end it.
    pub fn look_at(&self, now: Instant) -> Option<Instant> {
        self.has_peers().then(|| now + LOOK_EVERY)
    }

    /// Whether this broker receives notifications.
    pub fn is_hearing(&self) -> bool {
        self.hearing.load(Acquire)
    }

    pub fn has_peers(&self) -> bool {
        !self.peers.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// Whether there is no other broker. False while notifications are not received, because then one may exist.
    pub fn is_alone(&self) -> bool {
        self.is_hearing() && !self.has_peers()
    }

    fn send(&self, hint: Hint) {
        let mut outbox = self.outbox.lock().unwrap_or_else(PoisonError::into_inner);
        if outbox.len() >= OUTBOX_MAX {
            outbox.clear();
            outbox.push(Hint::Reset { queue: None, group: None });
        } else {
            outbox.push(hint);
        }
        self.signal.notify_one();
    }

    /// Sends collected hints, outside of push transactions because NOTIFY serializes commits.
    pub async fn run_sender(&self, shared: Arc<Shared>) {
        self.send(Hint::Hello);
        let mut unsaid = false;
        let mut said = clock::now();
        loop {
            tokio::select! {
                () = self.signal.notified() => {}
                () = tokio::time::sleep(HEARTBEAT) => self.send(Hint::Here),
            }
            if std::mem::take(&mut unsaid) {
                self.send(Hint::Reset { queue: None, group: None });
            }
            let notes = self.collect(clock::now());
            if !notes.is_empty() {
                match control::notify(&shared.connections, &notes).await {
                    Ok(()) => {
                        let before = std::mem::replace(&mut said, clock::now());
                        if said - before > SILENT_MAX {
                            forget(&shared, None, None);
                        }
                    }
                    Err(error) => {
                        debug!(%error, "cannot notify other brokers");
                        unsaid = true;
                    }
                }
            }
            tokio::time::sleep(SEND_EVERY).await;
        }
    }

    fn collect(&self, now: Instant) -> Vec<String> {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.retain(|_, heard| now - *heard < PEER_FORGOTTEN);
        drop(peers);
        let mut hints = std::mem::take(&mut *self.outbox.lock().unwrap_or_else(PoisonError::into_inner));
        if self.pushed.swap(false, AcqRel) {
            hints.push(Hint::Pushed);
        }
        let note = |hint| serde_json::to_string(&Note { from: self.broker, committed: false, hint }).ok();
        hints.into_iter().filter_map(note).collect()
    }

    /// Looks once a second while a pop is parked, for commits without a notification and partitions that are still ready.
    pub async fn run_looks(&self, shared: Arc<Shared>) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            shared.watches.sweep(clock::now());
            if !shared.watches.anybody_parked() {
                continue;
            }
            if let Err(error) = self.discover(&shared).await {
                debug!(%error, "cannot read new commits from the log");
            }
            shared.watches.wake_for_ready();
        }
    }

    /// Receives notifications of other brokers, on a connection of its own.
    pub async fn run_listener(&self, shared: Arc<Shared>) {
        let mut state = Listening::Starting;
        loop {
            if let Err(error) = self.listen(&shared, &mut state).await {
                self.hearing.store(false, Release);
                // One warning per outage.
                if state == Listening::Deaf {
                    debug!(%error, "still not receiving notifications of other brokers");
                } else {
                    warn!(%error, "not receiving notifications of other brokers; reconnecting");
                }
                state = Listening::Deaf;
            }
            tokio::time::sleep(LISTEN_AGAIN).await;
        }
    }

    async fn listen(&self, shared: &Arc<Shared>, state: &mut Listening) -> Result<(), Error> {
        let (client, mut driver) = shared.connections.connector().raw().await?;
        let listening = client.batch_execute("listen queen");
        tokio::pin!(listening);
        let mut is_listening = false;
        loop {
            tokio::select! {
                result = &mut listening, if !is_listening => {
                    result.map_err(|error| Error::from_postgres("listen", error))?;
                    is_listening = true;
                    self.hearing.store(true, Release);
                    // Notifications sent while not listening are lost: start over.
                    match std::mem::replace(state, Listening::Hearing) {
                        // At startup only the directory can be stale; ready lists are hints.
                        Listening::Starting => shared.directory.clear(),
                        Listening::Deaf => forget(shared, None, None),
                        Listening::Hearing => {}
                    }
                }
                message = driver.next() => match message {
                    Some(Ok(AsyncMessage::Notification(note))) => self.hear(shared, note.payload()),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Err(Error::from_postgres("listen", error)),
                    None => return Err(Error::Lost("closed".to_owned())),
                },
            }
        }
    }

    fn hear(&self, shared: &Arc<Shared>, payload: &str) {
        let Ok(note) = serde_json::from_str::<Note>(payload) else { return };
        if note.from != self.broker {
            self.peers.lock().unwrap_or_else(PoisonError::into_inner).insert(note.from, clock::now());
        } else if !note.committed {
            return;
        }
        match note.hint {
            Hint::Hello => self.send(Hint::Here),
            Hint::Here => {}
            Hint::Pushed => {
                let shared = shared.clone();
                shared.clone().tasks.spawn_until_stop(async move {
                    if let Err(error) = shared.wake.discover(&shared).await {
                        debug!(%error, "cannot read new commits from the log");
                    }
                });
            }
            Hint::Released { lease, partition, group, queue, name, more } => {
                let key = (partition, group.as_str().into());
                let mut leases = shared.leases();
                if lease.is_none_or(|lease| leases.is_of(&key, lease)) {
                    leases.acked(&key, i64::MAX, true);
                }
                drop(leases);
                if let Some(watch) = shared.watches.find(&queue, &group) {
                    watch.released(partition, &name, lease, more, None);
                }
            }
            Hint::Reset { queue, group } => forget(shared, queue.as_deref(), group.as_deref()),
            Hint::Deleted { queue } => drop_queue(shared, &queue),
        }
    }
}

/// Drops everything cached about a queue in this broker; other brokers have to be notified.
pub fn drop_queue(shared: &Shared, queue: &str) {
    let mut partitions: HashSet<Uuid> = shared.watches.ids(queue).into_iter().collect();
    partitions.extend(shared.directory.ids(queue));
    forget(shared, Some(queue), None);
    let mut dedup = shared.dedup();
    partitions.iter().for_each(|partition| dedup.forget(*partition));
    drop(dedup);
    let mut segments = shared.segments();
    partitions.iter().for_each(|partition| segments.forget(*partition));
    drop(segments);
    shared.leases().forget_partitions(&partitions);
}

/// Drops cached knowledge in this broker; other brokers have to be notified.
pub fn forget(shared: &Shared, queue: Option<&str>, group: Option<&str>) {
    if group.is_none() {
        match queue {
            Some(queue) => shared.directory.forget_queue(queue),
            None => shared.directory.clear(),
        }
    }
    shared.watches.reset(queue, group);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_released_lease_that_a_broker_of_0_1_0_reports_has_no_id() {
        let text = r#"{"from":"00000000-0000-0000-0000-000000000001","hint":"released",
            "partition":"00000000-0000-0000-0000-000000000002","group":"g","queue":"q","name":"p","more":true}"#;
        let note: Note = serde_json::from_str(text).unwrap();
        assert!(matches!(note.hint, Hint::Released { lease: None, more: true, .. }));
    }
}

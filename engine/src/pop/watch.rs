//! One (queue, group) under watch: its ready list, and the pops parked on it. A commit wakes exactly as many pops
//! as it can feed, in order of arrival.
//!
//! There is one watch per (queue, group) as long as anything holds it, so a parked pop cannot miss a push. What the list
//! says belongs to a *generation*: a reset empties the list in place, begins the next generation and wakes all parked
//! pops, and a pop that looked in an earlier one does not park.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::oneshot;
use uuid::Uuid;

use super::ready::{Claim, ReadyList};
use super::timers::Timers;
use super::waiter::{Handover, Waiter};
use crate::clock;
use crate::log::Partition;

pub struct Watch {
    pub queue: Arc<str>,
    pub group: Arc<str>,
    /// Registration and seeding happen once; a pop that arrives meanwhile waits for them.
    seeded: tokio::sync::Mutex<Seeding>,
    state: Mutex<State>,
    /// Messages per partition that the last pop for several messages got.
    yields: AtomicI64,
    /// The timers to arm with the next due time.
    timers: Arc<Timers>,
}

/// Partitions of pushes that a watch notes while nothing uses it. With more, it is cheaper to read the list again.
const NOTED_MAX: usize = 10_000;

#[derive(Default)]
pub struct Seeding {
    generation: u64,
    pub registered: bool,
    /// Where the next page starts; `None`: the whole queue has been read.
    pub next: Option<Uuid>,
    pub started: bool,
    /// Partitions a pop by name has registered the group for.
    pub partitions: std::collections::HashSet<Arc<str>>,
}

struct State {
    generation: u64,
    /// When a pop last began or ended here.
    used_at: Instant,
    ready: ReadyList,
    /// Pushes that came while nothing used the watch, and are not in the list yet.
    noted: Vec<Pushed>,
    noted_partitions: usize,
    parked: VecDeque<Arc<Waiter>>,
    parked_by_name: HashMap<Arc<str>, VecDeque<Arc<Waiter>>>,
    /// Pops by name waiting for this broker's own claim on the partition to end, in order.
    handovers: HashMap<Uuid, VecDeque<oneshot::Sender<Handover>>>,
    left: usize,
    armed: Option<Instant>,
}

/// Partitions that something was committed to, shared by all watches that note them. `look_at`: see `ReadyList::mark`.
#[derive(Clone)]
pub struct Pushed {
    pub partitions: Arc<[Arc<Partition>]>,
    pub look_at: Option<Instant>,
}

/// What a pop is parked for.
#[derive(Debug, Clone, Copy)]
pub enum Interest<'a> {
    Any,
    Partition(&'a str),
}

impl Watch {
    pub fn new(queue: Arc<str>, group: Arc<str>, timers: Arc<Timers>) -> Arc<Self> {
        Arc::new(Self {
            queue,
            group,
            seeded: tokio::sync::Mutex::default(),
            state: Mutex::new(State::new()),
            yields: AtomicI64::new(1),
            timers,
        })
    }

    /// A pop begins: what was pushed in the meantime joins the list. Returns the generation it looks in.
    pub fn begin_look(self: &Arc<Self>) -> u64 {
        let mut state = self.lock();
        state.used_at = clock::now();
        for pushed in state.take_noted() {
            state.mark(&pushed);
        }
        self.arm(&mut state);
        state.generation
    }

    /// Registration and seeding as far as they have come in this generation.
    pub async fn seeding(&self) -> tokio::sync::MutexGuard<'_, Seeding> {
        let mut seeding = self.seeded.lock().await;
        let generation = self.generation();
        if seeding.generation != generation {
            *seeding = Seeding { generation, ..Seeding::default() };
        }
        seeding
    }

    /// What the list says can no longer be trusted: it is emptied, and all parked pops look again.
    pub fn reset(&self) {
        let mut state = self.lock();
        state.generation += 1;
        state.take_noted();
        state.ready.clear();
        state.wake_all();
    }

    /// Something was committed to these partitions.
    pub fn mark_all(self: &Arc<Self>, pushed: &Pushed) {
        let mut state = self.lock();
        state.mark(pushed);
        self.arm(&mut state);
    }

    /// The same for a watch that nothing uses, at the cost of one entry. False: too much has collected, drop the watch.
    pub fn note(&self, pushed: &Pushed) -> bool {
        let mut state = self.lock();
        state.noted.push(pushed.clone());
        state.noted_partitions += pushed.partitions.len();
        state.noted_partitions <= NOTED_MAX
    }

    pub fn generation(&self) -> u64 {
        self.lock().generation
    }

    pub fn used_at(&self) -> Instant {
        self.lock().used_at
    }

    pub fn take(&self, now: Instant, count: usize, batch: i64) -> Vec<Arc<Partition>> {
        let mut state = self.lock();
        let expired = state.ready.expire(now);
        let taken = state.ready.take(now, count, batch);
        // A partition that became due by this look and is not taken is for a parked pop.
        for partition in expired {
            if state.ready.is_ready(partition.id) {
                state.wake_for(&partition.name);
            }
        }
        taken
    }

    /// How many partitions a batch is likely to need. A claim locks all it asks for, needed or not.
    pub fn likely(&self, batch: i64, partitions: usize) -> usize {
        let each = self.yields.load(Relaxed).max(1);
        usize::try_from((batch + each - 1) / each).unwrap_or(1).clamp(1, partitions)
    }

    pub fn yielded(&self, messages: i64, partitions: usize) {
        self.yields.store(messages / partitions.max(1) as i64, Relaxed);
    }

    /// Claims a named partition, or returns how to get it from this broker's other claim on it. A receiver error means
    /// that the list was emptied: start over.
    pub fn begin(&self, partition: &Arc<Partition>) -> Result<(), oneshot::Receiver<Handover>> {
        let mut state = self.lock();
        if state.ready.begin(partition) {
            return Ok(());
        }
        let (sender, receiver) = oneshot::channel();
        state.handovers.entry(partition.id).or_default().push_back(sender);
        Err(receiver)
    }

    pub fn finish(self: &Arc<Self>, partition: &Arc<Partition>, claim: Claim) {
        let mut state = self.lock();
        let ready = state.ready.finish(partition, claim);
        if state.hand_over(self, partition) {
            state.ready.begin(partition);
        } else if ready {
            state.wake_for(&partition.name);
        }
        self.arm(&mut state);
    }

    pub fn mark(self: &Arc<Self>, partition: &Arc<Partition>, look_at: Option<Instant>) {
        let mut state = self.lock();
        if state.ready.mark(partition, look_at) {
            state.wake_for(&partition.name);
        }
        self.arm(&mut state);
    }

    /// Until then, hands the partition out only to pops that ask for it by name.
    pub fn set_aside(self: &Arc<Self>, partition: &Arc<Partition>, until: Instant) {
        let mut state = self.lock();
        state.ready.set_aside(partition, until);
        self.arm(&mut state);
    }

    pub fn take_leased(&self, count: usize) -> Vec<Arc<Partition>> {
        self.lock().ready.take_leased(count)
    }

    /// Whether some partitions were locked when last asked for. They may not be any more.
    pub fn has_busy(&self) -> bool {
        self.lock().ready.has_busy()
    }

    /// Whether the group has read this partition, so that the database has a row for it.
    pub fn has_served(&self, partition: Uuid) -> bool {
        self.lock().ready.has_served(partition)
    }

    pub fn forget_service(&self, partition: Uuid) {
        self.lock().ready.forget_service(partition);
    }

    pub fn ids(&self) -> Vec<Uuid> {
        self.lock().ready.ids().collect()
    }

    pub fn seed(self: &Arc<Self>, partition: Arc<Partition>, served: bool, held_until: Option<Instant>) {
        let mut state = self.lock();
        state.ready.seed(partition, served, held_until);
        self.arm(&mut state);
    }

    /// See `ReadyList::released`.
    pub fn released(
        &self,
        partition: Uuid,
        name: &str,
        lease: Option<Uuid>,
        more: bool,
        known: Option<&Arc<Partition>>,
    ) {
        let mut state = self.lock();
        if state.ready.released(partition, lease, more, known) || (more && !state.parked_by_name.is_empty()) {
            state.wake_for(name);
        }
    }

    /// A due time has come: leases have run out or messages have matured.
    pub fn tick(self: &Arc<Self>, now: Instant) {
        let mut state = self.lock();
        state.armed = None;
        for partition in state.ready.expire(now) {
            state.wake_for(&partition.name);
        }
        self.arm(&mut state);
    }

    /// Parks, unless something is ready already. Checked under the lock that a push takes, so no wake-up is missed.
    /// The same goes for a reset, which begins another generation than the one the pop looked in.
    pub fn park(
        self: &Arc<Self>,
        interest: Interest<'_>,
        partition: Option<Uuid>,
        generation: u64,
        waiter: &Arc<Waiter>,
    ) -> bool {
        let mut state = self.lock();
        let ready = match (interest, partition) {
            (Interest::Any, _) => state.ready.ready() > 0,
            (Interest::Partition(_), Some(id)) => state.ready.is_ready(id),
            (Interest::Partition(name), None) => state.ready.is_ready_by_name(name),
        };
        if ready || state.generation != generation {
            return false;
        }
        state.compact();
        match interest {
            Interest::Any => state.parked.push_back(waiter.clone()),
            Interest::Partition(name) => match state.parked_by_name.get_mut(name) {
                Some(queue) => queue.push_back(waiter.clone()),
                None => drop(state.parked_by_name.insert(name.into(), VecDeque::from([waiter.clone()]))),
            },
        }
        true
    }

    /// A parked pop ends. If it was woken and does not look, the next one is woken in its place.
    pub fn leave(&self, interest: Interest<'_>, woken: bool, looks: bool) {
        let mut state = self.lock();
        state.used_at = clock::now();
        // The watch that woke it does not list it anymore; others it was parked in do.
        state.left += 1;
        match interest {
            _ if !woken || looks => {}
            Interest::Any if state.ready.ready() == 0 => {}
            Interest::Any => drop(state.wake_any()),
            Interest::Partition(name) => state.wake_for(name),
        }
    }

    /// All parked pops look again.
    pub fn wake_all(&self) {
        self.lock().wake_all();
    }

    /// Wakes pops for partitions that are still ready: the pop that was woken for one may have failed, or found enough elsewhere.
    pub fn wake_for_ready(&self) {
        let mut state = self.lock();
        let most = if state.parked_by_name.is_empty() { state.parked.len() } else { usize::MAX };
        if most > 0 {
            let names: Vec<Arc<str>> = state.ready.names().take(most).cloned().collect();
            names.iter().for_each(|name| state.wake_for(name));
        }
    }

    pub fn parked(&self) -> usize {
        let state = self.lock();
        let named = state.parked_by_name.values().flatten();
        state.parked.iter().chain(named).filter(|waiter| waiter.is_waiting()).count()
    }

    pub fn anybody_parked(&self) -> bool {
        let state = self.lock();
        let named = state.parked_by_name.values().flatten();
        state.parked.iter().chain(named).any(|waiter| waiter.is_waiting())
    }

    pub fn listed(&self) -> usize {
        self.lock().ready.len()
    }

    /// Partitions that may be claimed now.
    pub fn ready(&self) -> usize {
        self.lock().ready.ready()
    }

    fn arm(self: &Arc<Self>, state: &mut State) {
        let Some(due) = state.ready.next_due() else { return };
        if state.armed.is_none_or(|armed| due < armed) {
            state.armed = Some(due);
            self.timers.arm(due, self);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new() -> Self {
        Self {
            generation: 0,
            used_at: clock::now(),
            ready: ReadyList::default(),
            noted: Vec::new(),
            noted_partitions: 0,
            parked: VecDeque::new(),
            parked_by_name: HashMap::new(),
            handovers: HashMap::new(),
            left: 0,
            armed: None,
        }
    }

    fn mark(&mut self, pushed: &Pushed) {
        for partition in pushed.partitions.iter() {
            if self.ready.mark(partition, pushed.look_at) {
                self.wake_for(&partition.name);
            }
        }
    }

    fn take_noted(&mut self) -> Vec<Pushed> {
        self.noted_partitions = 0;
        std::mem::take(&mut self.noted)
    }

    fn wake_all(&mut self) {
        let named = std::mem::take(&mut self.parked_by_name);
        for waiter in self.parked.drain(..).chain(named.into_values().flatten()) {
            waiter.wake();
        }
        self.handovers.clear();
    }

    /// A pop by name goes first: nothing else can serve it.
    fn wake_for(&mut self, name: &str) {
        if let Some(queue) = self.parked_by_name.get_mut(name) {
            while let Some(waiter) = queue.pop_front() {
                if waiter.wake() {
                    return;
                }
            }
            self.parked_by_name.remove(name);
        }
        self.wake_any();
    }

    fn wake_any(&mut self) -> bool {
        while let Some(waiter) = self.parked.pop_front() {
            if waiter.wake() {
                return true;
            }
        }
        false
    }

    /// True if a pop gets the partition. The pop may drop it at once, but that takes effect only when the lock is
    /// free.
    fn hand_over(&mut self, watch: &Arc<Watch>, partition: &Arc<Partition>) -> bool {
        let Some(queue) = self.handovers.get_mut(&partition.id) else { return false };
        while let Some(waiting) = queue.pop_front() {
            match waiting.send(Handover::new(watch, partition)) {
                Ok(()) => return true,
                Err(handover) => handover.accept(),
            }
        }
        self.handovers.remove(&partition.id);
        false
    }

    /// Pops that went away are dropped in bulk, once they are the majority.
    fn compact(&mut self) {
        if self.left > 64 && self.left > self.parked.len() / 2 {
            self.parked.retain(|waiter| waiter.is_waiting());
            self.parked_by_name.retain(|_, queue| {
                queue.retain(|waiter| waiter.is_waiting());
                !queue.is_empty()
            });
            self.left = 0;
        }
    }
}

#[cfg(test)]
mod tests;

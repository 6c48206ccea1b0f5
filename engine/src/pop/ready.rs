//! The ready list of one (queue, group): partitions believed to hold unread messages and no live lease, least recently
//! served first. Only a hint: every claim is decided by the database. Pure: the time is passed in.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::cache::Cache;
use crate::log::Partition;

/// Partitions whose last service is remembered while they are not listed.
const SERVED_MAX: usize = 50_000;

/// How soon a cursor that another session has locked is looked at again; doubles each time.
const BUSY_MIN: Duration = Duration::from_millis(1);
const BUSY_MAX: Duration = Duration::from_secs(1);

/// Instead of the number of messages that wait for their batch: the next message cannot be read.
const ASIDE: i64 = -1;

/// Least recently served first, and before them those never served; then in order of arrival.
type Order = (u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready(Order),
    /// A pop of this broker is claiming it. The result may be out of date by the time it arrives: see `News`.
    Claiming(News),
    /// Leased, or not visible yet: worth another look at that time.
    Held(Held),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    until: Instant,
    pushed: bool,
    /// How many messages wait for a batch to fill up; 0: none do; `ASIDE`: set aside, and a push does not help.
    windowed: i64,
    /// The lease, if it was granted here.
    lease: Option<Uuid>,
}

impl Held {
    /// There may be more to read than a lease holds.
    fn until(until: Instant) -> Self {
        Self { until, pushed: true, windowed: 0, lease: None }
    }
}

/// What has happened to a partition since its claim began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct News {
    pushed: bool,
    /// Its lease was ended, or its cursor moved.
    released: bool,
}

/// What a claim found, as far as the list cares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// Leased until then.
    Granted {
        lease: Uuid,
        until: Instant,
    },
    /// Delivered and committed; whether there is more to read.
    Committed {
        more: bool,
    },
    /// Leased by another pop, or not visible yet.
    Later {
        at: Instant,
    },
    /// This many messages wait for the batch to fill up, or until this time.
    Window {
        pending: i64,
        at: Instant,
    },
    Nothing,
    Gone,
    /// Locked by another session.
    Busy {
        now: Instant,
    },
    /// Not claimed, or not needed.
    Unused,
}

/// # Invariants
/// - A partition is in at most one state; `order` and `due` list exactly those in `Ready` and `Held`, and `windows`
///   those of the latter whose batch is filling up.
/// - A partition being claimed is not handed out again before `finish`.
/// - A push that arrives while a partition is claimed or held is not forgotten.
pub struct ReadyList {
    partitions: HashMap<Uuid, (Arc<Partition>, State)>,
    order: BTreeMap<Order, Uuid>,
    due: BTreeSet<(Instant, Uuid)>,
    windows: BTreeSet<(i64, Uuid)>,
    /// How often in a row each was found locked.
    busy: HashMap<Uuid, u32>,
    served: Cache<Uuid, u64>,
    arrivals: u64,
    services: u64,
}

impl Default for ReadyList {
    fn default() -> Self {
        Self {
            partitions: HashMap::new(),
            order: BTreeMap::new(),
            due: BTreeSet::new(),
            windows: BTreeSet::new(),
            busy: HashMap::new(),
            served: Cache::new(SERVED_MAX),
            arrivals: 0,
            services: 0,
        }
    }
}

impl ReadyList {
    /// Something was pushed to it, or a look at the database found something to read. Returns true if that made it
    /// ready. `look_at`: when to look again at the latest if it is believed to be leased, because another broker may
    /// have ended the lease.
    pub fn mark(&mut self, partition: &Arc<Partition>, look_at: Option<Instant>) -> bool {
        match self.partitions.get_mut(&partition.id) {
            None => {
                self.make_ready(partition.clone());
                true
            }
            // One more message may fill the batch.
            Some((_, State::Held(Held { windowed: 1.., .. }))) => {
                self.remove(partition.id);
                self.make_ready(partition.clone());
                true
            }
            Some((
                _,
                State::Claiming(News { pushed, .. }) | State::Held(Held { pushed, windowed: ASIDE, .. }),
            )) => {
                *pushed = true;
                false
            }
            Some((_, State::Held(held))) => {
                let until = look_at.map_or(held.until, |at| at.min(held.until));
                let held = Held { until, pushed: true, ..*held };
                self.remove(partition.id);
                self.hold(partition.clone(), held);
                false
            }
            Some((_, State::Ready(_))) => false,
        }
    }

    /// From the database at the start: served in this order, and perhaps leased until a time.
    pub fn seed(&mut self, partition: Arc<Partition>, served: bool, held_until: Option<Instant>) {
        if self.partitions.contains_key(&partition.id) {
            return;
        }
        if served {
            self.note_service(partition.id);
        }
        match held_until {
            Some(until) => self.hold(partition, Held::until(until)),
            None => self.make_ready(partition),
        }
    }

    /// The next partitions to claim, out of the list until `finish`. A small batch may be full where a larger one
    /// was still waiting, but a batch of one always waits for the window.
    pub fn take(&mut self, now: Instant, count: usize, batch: i64) -> Vec<Arc<Partition>> {
        self.expire(now);
        let mut taken = Vec::new();
        while taken.len() < count {
            let ready = self.order.first_key_value().map(|(_, id)| *id);
            let full = || match batch {
                ..=1 => None,
                _ => self.windows.range((batch, Uuid::nil())..).next().map(|(_, id)| *id),
            };
            let Some(id) = ready.or_else(full) else { break };
            let listed = self.partitions.get(&id).map(|(partition, _)| partition.clone());
            self.remove(id);
            if let Some(partition) = listed {
                self.partitions.insert(id, (partition.clone(), State::Claiming(News::default())));
                taken.push(partition);
            }
        }
        taken
    }

    /// Partitions believed to be leased, out of the list until `finish`: another broker may have ended the lease, and
    /// its hint is still to come. For pops that would otherwise answer "empty".
    pub fn take_leased(&mut self, count: usize) -> Vec<Arc<Partition>> {
        // Some of them wait for their window or are set aside; twice as many are enough to find some that do not.
        let held: Vec<Uuid> = self.due.iter().map(|(_, id)| *id).take(2 * count).collect();
        let mut taken = Vec::new();
        for id in held {
            if taken.len() == count {
                break;
            }
            if let Some((partition, State::Held(Held { windowed: 0, pushed, .. }))) = self.partitions.get(&id)
            {
                let (partition, pushed) = (partition.clone(), *pushed);
                self.remove(id);
                let claiming = State::Claiming(News { pushed, ..News::default() });
                self.partitions.insert(id, (partition.clone(), claiming));
                taken.push(partition);
            }
        }
        taken
    }

    /// Claims one by name. False: another pop of this broker is claiming it right now.
    pub fn begin(&mut self, partition: &Arc<Partition>) -> bool {
        if let Some((_, State::Claiming(_))) = self.partitions.get(&partition.id) {
            return false;
        }
        let held = self.partitions.get(&partition.id);
        let pushed = matches!(held, Some((_, State::Held(Held { pushed: true, .. }))));
        self.remove(partition.id);
        let claiming = State::Claiming(News { pushed, ..News::default() });
        self.partitions.insert(partition.id, (partition.clone(), claiming));
        true
    }

    /// Ends a claim. True if the partition is ready (again).
    pub fn finish(&mut self, partition: &Arc<Partition>, claim: Claim) -> bool {
        let News { pushed, released } = match self.partitions.get(&partition.id) {
            Some((_, State::Claiming(news))) => *news,
            _ => return false,
        };
        self.partitions.remove(&partition.id);
        if !matches!(claim, Claim::Busy { .. }) {
            self.busy.remove(&partition.id);
        }
        if matches!(claim, Claim::Granted { .. } | Claim::Committed { .. }) {
            self.note_service(partition.id);
        }
        let again = match claim {
            Claim::Granted { .. } | Claim::Later { .. } => released,
            Claim::Committed { more } => more || pushed,
            Claim::Window { .. } => pushed || released,
            Claim::Nothing => pushed,
            Claim::Unused => true,
            Claim::Gone | Claim::Busy { .. } => false,
        };
        if again {
            self.make_ready(partition.clone());
            return true;
        }
        match claim {
            Claim::Granted { lease, until } => {
                let held = Held { until, pushed, windowed: 0, lease: Some(lease) };
                self.hold(partition.clone(), held);
            }
            Claim::Later { at } => self.hold(partition.clone(), Held::until(at)),
            Claim::Window { pending, at } => {
                let held = Held { until: at, pushed: false, windowed: pending, lease: None };
                self.hold(partition.clone(), held);
            }
            Claim::Busy { now } => {
                let times = self.busy.entry(partition.id).or_default();
                let pause = BUSY_MIN.saturating_mul(1 << (*times).min(20)).min(BUSY_MAX);
                *times += 1;
                self.hold(partition.clone(), Held::until(now + pause));
            }
            Claim::Committed { .. } | Claim::Nothing | Claim::Unused | Claim::Gone => {}
        }
        false
    }

    /// Nothing of the partition can be delivered before then, whatever is pushed.
    pub fn set_aside(&mut self, partition: &Arc<Partition>, until: Instant) {
        if let Some((_, State::Claiming(_))) = self.partitions.get(&partition.id) {
            return;
        }
        self.remove(partition.id);
        self.hold(partition.clone(), Held { until, pushed: false, windowed: ASIDE, lease: None });
    }

    /// A lease ended before its time. Returns true if that made the partition ready. `lease`: which one, if known.
    /// `known`: the partition, if it was served here; it may have left the list meanwhile, because a late hint
    /// reported that another lease had ended with nothing more to read.
    pub fn released(
        &mut self,
        partition: Uuid,
        lease: Option<Uuid>,
        more: bool,
        known: Option<&Arc<Partition>>,
    ) -> bool {
        match self.partitions.get_mut(&partition) {
            Some((_, State::Claiming(news))) => {
                news.released = true;
                news.pushed |= more;
                false
            }
            Some((listed, State::Held(Held { pushed, windowed: 0, lease: held, .. }))) => {
                // Reports may come late or never. One about another lease than the present one must not remove the
                // partition: what is left in the present lease would be hidden. A claim too many does no harm.
                let present = held.is_none() || lease == *held;
                if !present && lease.is_some() && !more {
                    return false;
                }
                let (listed, ready) = (listed.clone(), *pushed || more || !present);
                self.remove(partition);
                if ready {
                    self.make_ready(listed);
                }
                ready
            }
            None if more => known.is_some_and(|known| {
                self.make_ready(known.clone());
                true
            }),
            // A partition that waits for its batch or is set aside was found after that lease.
            Some((_, State::Held(_) | State::Ready(_))) | None => false,
        }
    }

    /// Moves partitions that are due into the list, and returns those that became ready.
    pub fn expire(&mut self, now: Instant) -> Vec<Arc<Partition>> {
        let mut expired = Vec::new();
        while let Some(&(until, id)) = self.due.first()
            && until <= now
        {
            let listed = self.partitions.get(&id).map(|(partition, _)| partition.clone());
            self.remove(id);
            if let Some(partition) = listed {
                self.make_ready(partition.clone());
                expired.push(partition);
            }
        }
        expired
    }

    pub fn next_due(&self) -> Option<Instant> {
        self.due.first().map(|(until, _)| *until)
    }

    pub fn ready(&self) -> usize {
        self.order.len()
    }

    /// Whether some were locked when last looked at.
    pub fn has_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// The names of the ready partitions, in the order in which they are taken.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let listed = |id: &Uuid| self.partitions.get(id).map(|(partition, _)| &partition.name);
        self.order.values().filter_map(listed)
    }

    pub fn is_ready(&self, partition: Uuid) -> bool {
        matches!(self.partitions.get(&partition), Some((_, State::Ready(_))))
    }

    /// For a pop that does not know the partition by its id. Walks the whole list.
    pub fn is_ready_by_name(&self, name: &str) -> bool {
        self.names().any(|listed| listed.as_ref() == name)
    }

    pub fn has_served(&mut self, partition: Uuid) -> bool {
        self.served.get(&partition).is_some()
    }

    pub fn forget_service(&mut self, partition: Uuid) {
        self.served.remove(&partition);
    }

    pub fn len(&self) -> usize {
        self.partitions.len()
    }

    pub fn ids(&self) -> impl Iterator<Item = Uuid> + '_ {
        self.partitions.keys().copied()
    }

    /// Forgets everything but the claims in flight. Those partitions become ready again whatever their claim finds, because
    /// it may have looked too early.
    pub fn clear(&mut self) {
        self.partitions.retain(|_, (_, state)| match state {
            State::Claiming(news) => {
                *news = News { pushed: true, released: true };
                true
            }
            State::Ready(_) | State::Held(_) => false,
        });
        let partitions = &self.partitions;
        self.busy.retain(|id, _| partitions.contains_key(id));
        self.order.clear();
        self.due.clear();
        self.windows.clear();
        self.served = Cache::new(SERVED_MAX);
    }

    fn make_ready(&mut self, partition: Arc<Partition>) {
        self.arrivals += 1;
        let order = (self.served.get(&partition.id).copied().unwrap_or(0), self.arrivals);
        self.order.insert(order, partition.id);
        self.partitions.insert(partition.id, (partition, State::Ready(order)));
    }

    fn hold(&mut self, partition: Arc<Partition>, held: Held) {
        self.due.insert((held.until, partition.id));
        if held.windowed > 0 {
            self.windows.insert((held.windowed, partition.id));
        }
        self.partitions.insert(partition.id, (partition, State::Held(held)));
    }

    fn note_service(&mut self, partition: Uuid) {
        self.services += 1;
        self.served.insert(partition, self.services, 1);
    }

    fn remove(&mut self, partition: Uuid) {
        match self.partitions.remove(&partition) {
            Some((_, State::Ready(order))) => drop(self.order.remove(&order)),
            Some((_, State::Held(Held { until, windowed, .. }))) => {
                self.due.remove(&(until, partition));
                self.windows.remove(&(windowed, partition));
            }
            Some((_, State::Claiming(_))) | None => {}
        }
    }
}

#[cfg(test)]
mod tests;

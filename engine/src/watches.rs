//! All watches of a broker, by queue and group: where commits, acks and other brokers' hints are turned into
//! ready partitions and woken pops.
//!
//! A watch is removed only while nothing else holds it. Every hold begins under the registry's lock, so there are never
//! two watches for one (queue, group).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::log::Partition;
use crate::pop::timers::Timers;
use crate::pop::watch::{Pushed, Watch};

/// Beyond this, watches without a pop are dropped at once.
const WATCHES_MAX: usize = 20_000;

/// A watch without a pop for this long is dropped. The next pop reads its list from the database, which takes 20 ms
/// for 10,000 partitions: at most 0.4 % of the time of a client that polls slightly too slowly.
const IDLE_MAX: Duration = Duration::from_secs(5);

/// Partitions in all lists together, some 200 bytes each. Beyond this, lists are emptied until half of them are left.
const LISTED_MAX: usize = 1_000_000;

#[derive(Default)]
pub struct Watches {
    queues: Mutex<Registry>,
    pub timers: Arc<Timers>,
}

type Groups = HashMap<Arc<str>, Arc<Watch>>;

#[derive(Default)]
struct Registry {
    queues: HashMap<Arc<str>, Groups>,
    count: usize,
}

impl Watches {
    /// The watch for a pop that begins, and the generation it looks in.
    pub fn look(&self, queue: &str, group: &str) -> (Arc<Watch>, u64) {
        let watch = self.get(queue, group);
        let generation = watch.begin_look();
        (watch, generation)
    }

    fn get(&self, queue: &str, group: &str) -> Arc<Watch> {
        let mut registry = self.lock();
        if let Some(watch) = registry.queues.get(queue).and_then(|groups| groups.get(group)) {
            return watch.clone();
        }
        if registry.count >= WATCHES_MAX {
            registry.retain(is_held);
        }
        let watch = Watch::new(queue.into(), group.into(), self.timers.clone());
        registry.count += 1;
        registry.queues.entry(queue.into()).or_default().insert(group.into(), watch.clone());
        watch
    }

    pub fn find(&self, queue: &str, group: &str) -> Option<Arc<Watch>> {
        self.lock().queues.get(queue)?.get(group).cloned()
    }

    /// Something was committed to these partitions. A watch without a pop only notes them all at once, for its next pop.
    /// `look_at`: see `ReadyList::mark`.
    pub fn pushed<'a>(
        &self,
        partitions: impl IntoIterator<Item = &'a Arc<Partition>>,
        look_at: Option<Instant>,
    ) {
        let mut registry = self.lock();
        let mut by_queue: HashMap<&str, Vec<Arc<Partition>>> = HashMap::new();
        for partition in partitions {
            if registry.queues.contains_key(&partition.queue) {
                by_queue.entry(&partition.queue).or_default().push(partition.clone());
            }
        }
        let mut dropped = 0;
        for (queue, partitions) in by_queue {
            let pushed = Pushed { partitions: partitions.into(), look_at };
            let Some(groups) = registry.queues.get_mut(queue) else { continue };
            groups.retain(|_, watch| {
                if is_held(watch) {
                    watch.mark_all(&pushed);
                    return true;
                }
                let kept = watch.note(&pushed);
                dropped += usize::from(!kept);
                kept
            });
            if groups.is_empty() {
                registry.queues.remove(queue);
            }
        }
        registry.count -= dropped;
    }

    /// What the lists say can no longer be trusted: they are emptied, and all parked pops look again.
    pub fn reset(&self, queue: Option<&str>, group: Option<&str>) {
        let mut held = Vec::new();
        self.lock().retain_of(queue, group, |watch| {
            let keep = is_held(watch);
            if keep {
                held.push(watch.clone());
            }
            keep
        });
        held.iter().for_each(|watch| watch.reset());
    }

    /// Drops watches that have had no pop for a while, and empties lists if they hold too much.
    pub fn sweep(&self, now: Instant) {
        let mut held = Vec::new();
        let mut registry = self.lock();
        registry.retain(|watch| is_held(watch) || now < watch.used_at() + IDLE_MAX);
        let mut listed: usize = registry.watches().map(|watch| watch.listed()).sum();
        if listed > LISTED_MAX {
            held.extend(registry.watches().cloned());
        }
        drop(registry);
        held.sort_by_key(|watch| watch.used_at());
        for watch in held {
            if listed <= LISTED_MAX / 2 {
                break;
            }
            listed -= watch.listed().min(listed);
            watch.reset();
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
        self.lock().watches().map(|watch| watch.parked()).sum()
    }

    /// Over all lists: partitions that may be claimed now, and all that are listed.
    pub fn listed(&self) -> (usize, usize) {
        let registry = self.lock();
        let watches = registry.watches();
        watches.fold((0, 0), |(ready, listed), watch| (ready + watch.ready(), listed + watch.listed()))
    }

    /// Queues and the groups that read them here.
    pub fn pairs(&self) -> Vec<(Arc<str>, Arc<str>)> {
        self.lock().watches().map(|watch| (watch.queue.clone(), watch.group.clone())).collect()
    }

    /// How many pops are parked, by queue; queues without any are left out.
    pub fn parked_by_queue(&self) -> Vec<(Arc<str>, u64)> {
        let registry = self.lock();
        let queues = registry.queues.iter().map(|(queue, groups)| {
            let parked: usize = groups.values().map(|watch| watch.parked()).sum();
            (queue.clone(), parked as u64)
        });
        queues.filter(|(_, parked)| *parked > 0).collect()
    }

    /// All pops parked for this queue look again.
    pub fn wake(&self, queue: &str) {
        let watches: Vec<Arc<Watch>> =
            self.lock().queues.get(queue).into_iter().flat_map(HashMap::values).cloned().collect();
        watches.iter().for_each(|watch| watch.wake_all());
    }

    /// See `Watch::wake_for_ready`.
    pub fn wake_for_ready(&self) {
        let watches: Vec<Arc<Watch>> = self.lock().watches().cloned().collect();
        watches.iter().for_each(|watch| watch.wake_for_ready());
    }

    /// Whether any pop is parked at all.
    pub fn anybody_parked(&self) -> bool {
        self.lock().watches().any(|watch| watch.anybody_parked())
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a pop, a claim or a grant uses it. Exact under the registry's lock, apart from a timer that fires.
fn is_held(watch: &Arc<Watch>) -> bool {
    Arc::strong_count(watch) > 1
}

impl Registry {
    fn watches(&self) -> impl Iterator<Item = &Arc<Watch>> {
        self.queues.values().flat_map(HashMap::values)
    }

    fn retain(&mut self, keep: impl FnMut(&Arc<Watch>) -> bool) {
        self.retain_of(None, None, keep);
    }

    /// Drops the watches of a queue or a group (`None`: of all), except those to keep.
    fn retain_of(
        &mut self,
        queue: Option<&str>,
        group: Option<&str>,
        mut keep: impl FnMut(&Arc<Watch>) -> bool,
    ) {
        self.queues.retain(|name, groups| {
            if queue.is_none_or(|queue| queue == name.as_ref()) {
                groups.retain(|name, watch| group.is_some_and(|group| group != name.as_ref()) || keep(watch));
            }
            !groups.is_empty()
        });
        self.count = self.queues.values().map(HashMap::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::pop::waiter::Waiter;
    use crate::pop::watch::Interest;

    fn partitions(count: u32) -> Vec<Arc<Partition>> {
        let partition = |number: u32| Partition {
            id: Uuid::from_u128(u128::from(number)),
            number: i64::from(number),
            queue: "q".into(),
            name: number.to_string().into(),
        };
        (0..count).map(partition).map(Arc::new).collect()
    }

    #[test]
    fn a_push_reaches_a_pop_whatever_happened_to_its_watch_before_it_parked() {
        let watches = Watches::default();
        let resets: [(Option<&str>, Option<&str>); 4] =
            [(None, None), (Some("q"), None), (None, Some("g")), (Some("q"), Some("g"))];
        for (queue, group) in resets {
            let (watch, generation) = watches.look("q", "g");
            watches.reset(queue, group);
            let waiter: Arc<Waiter> = Arc::default();
            assert!(!watch.park(Interest::Any, None, generation, &waiter), "it looks again");
            let (again, generation) = watches.look("q", "g");
            assert!(Arc::ptr_eq(&watch, &again), "one watch for all");
            watches.sweep(clock::now() + 2 * IDLE_MAX);
            assert!(again.park(Interest::Any, None, generation, &waiter));
            assert_eq!(watches.parked(), 1);
            watches.pushed(&partitions(1), None);
            assert_eq!(watches.parked(), 0, "it is woken");
        }
    }

    #[test]
    fn a_watch_without_a_pop_costs_a_push_one_entry_and_forgets_nothing() {
        let watches = Watches::default();
        drop(watches.look("q", "g"));
        let pushed = partitions(2_000);
        watches.pushed(&pushed, None);
        assert_eq!(watches.listed(), (0, 0));
        let (watch, _) = watches.look("q", "g");
        assert_eq!(watches.listed(), (2_000, 2_000));
        assert_eq!(watch.take(clock::now(), 3_000, 1).len(), 2_000);
    }

    #[test]
    fn a_watch_without_a_pop_is_dropped_after_a_while_or_when_too_much_collects() {
        let watches = Watches::default();
        drop(watches.look("q", "idle"));
        let (held, _) = watches.look("q", "held");
        watches.sweep(clock::now());
        assert!(watches.find("q", "idle").is_some());
        watches.sweep(clock::now() + IDLE_MAX);
        assert!(watches.find("q", "idle").is_none() && watches.find("q", "held").is_some());
        drop(watches.look("q", "busy"));
        (0..200).for_each(|_| watches.pushed(&partitions(100), None));
        assert!(watches.find("q", "busy").is_none());
        assert_eq!(held.listed(), 100);
    }

    #[test]
    fn all_lists_together_are_bounded_whatever_is_pushed() {
        let watches = Watches::default();
        let pushed = partitions(200_000);
        let held: Vec<_> = (0..7).map(|n| watches.look("q", &n.to_string()).0).collect();
        watches.pushed(&pushed, None);
        assert_eq!(watches.listed().1, 7 * 200_000);
        let (last, generation) = (&held[6], held[6].begin_look());
        watches.sweep(clock::now());
        assert!(watches.listed().1 <= LISTED_MAX / 2);
        assert_eq!(
            (last.listed(), last.generation()),
            (200_000, generation),
            "the latest to be used is kept"
        );
    }
}

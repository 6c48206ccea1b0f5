//! One (queue, group) under watch: its ready list, and the pops parked on it. A commit wakes exactly as many pops
//! as it can feed, in order of arrival.
//!
//! There is one watch per (queue, group) as long as anything holds it, so a parked pop cannot miss a push. What the list
//! says belongs to a *generation*: a reset empties the list in place, begins the next generation and wakes all parked
//! pops, and a pop that looked in an earlier one does not park.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU8, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, oneshot};
use uuid::Uuid;

use super::ready::{Claim, ReadyList};
use super::timers::Timers;
use crate::clock;
use crate::log::Partition;

pub struct Watch {
    pub queue: Arc<str>,
    pub group: Arc<str>,
    /// Registration and seeding happen once; a pop that arrives meanwhile waits for them.
    seeded: tokio::sync::Mutex<Seeding>,
    state: Mutex<State>,
    /// Messages that a partition gave to the last pop which asked for several.
    yields: AtomicI64,
    /// Where a timer is told about the next due time.
    timers: Arc<Timers>,
}

/// Pushes a watch notes while nothing uses it. With more partitions than this it is cheaper to read the list anew.
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
    /// Pushed to while nothing used the watch, and not in the list yet.
    noted: Vec<Pushed>,
    noted_partitions: usize,
    parked: VecDeque<Arc<Waiter>>,
    parked_by_name: HashMap<Arc<str>, VecDeque<Arc<Waiter>>>,
    /// Pops by name waiting for this broker's own claim on the partition to end.
    turns: HashMap<Uuid, VecDeque<oneshot::Sender<Handover>>>,
    gone: usize,
    armed: Option<Instant>,
}

/// Partitions that something was committed to, shared by all watches that note them. `look_at`: see `ReadyList::mark`.
#[derive(Clone)]
pub struct Pushed {
    pub partitions: Arc<[Arc<Partition>]>,
    pub look_at: Option<Instant>,
}

const WAITING: u8 = 0;
const WOKEN: u8 = 1;
const GONE: u8 = 2;

/// A parked pop. It may wait in several watches at once.
#[derive(Default)]
pub struct Waiter {
    state: AtomicU8,
    notify: Notify,
}

impl Waiter {
    /// False if it was woken before or has gone away.
    fn wake(&self) -> bool {
        let woken = self.state.compare_exchange(WAITING, WOKEN, AcqRel, Acquire).is_ok();
        if woken {
            self.notify.notify_one();
        }
        woken
    }

    pub async fn woken(&self) {
        self.notify.notified().await;
    }

    fn is_waiting(&self) -> bool {
        self.state.load(Acquire) == WAITING
    }
}

/// A partition that is handed from the claim that has ended to the pop that has waited longest for it: nobody gets ahead of
/// that one. If it has gone away meanwhile, the next one gets it.
pub struct Handover(Option<(Arc<Watch>, Arc<Partition>)>);

impl Handover {
    /// It is being claimed from now on, until `Watch::finish`.
    pub fn accept(mut self) {
        self.0 = None;
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if let Some((watch, partition)) = self.0.take() {
            watch.finish(&partition, Claim::Unused);
        }
    }
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
        // What became due by this look and is not taken feeds somebody who is parked.
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

    /// Claims a named partition, or says how to get it from this broker's other claim on it. An error there means that the list
    /// was emptied: begin again.
    pub fn begin(&self, partition: &Arc<Partition>) -> Result<(), oneshot::Receiver<Handover>> {
        let mut state = self.lock();
        if state.ready.begin(partition) {
            return Ok(());
        }
        let (sender, receiver) = oneshot::channel();
        state.turns.entry(partition.id).or_default().push_back(sender);
        Err(receiver)
    }

    pub fn finish(self: &Arc<Self>, partition: &Arc<Partition>, claim: Claim) {
        let mut state = self.lock();
        let ready = state.ready.finish(partition, claim);
        if state.next_turn(self, partition) {
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

    /// Not handed out before then, but to those who ask for it by name.
    pub fn set_aside(self: &Arc<Self>, partition: &Arc<Partition>, until: Instant) {
        let mut state = self.lock();
        state.ready.set_aside(partition, until);
        self.arm(&mut state);
    }

    pub fn take_leased(&self, count: usize) -> Vec<Arc<Partition>> {
        self.lock().ready.take_leased(count)
    }

    /// Some partitions were locked when they were last asked for, and may not be any more.
    pub fn has_busy(&self) -> bool {
        self.lock().ready.has_busy()
    }

    /// The group has read this partition, so the database has a row for it.
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

    pub fn released(&self, partition: Uuid, name: &str, more: bool) {
        let mut state = self.lock();
        if state.ready.released(partition, more) || (more && !state.parked_by_name.is_empty()) {
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

    /// A parked pop ends. If it was woken but leaves without looking, the next one is woken in its place.
    pub fn leave(&self, interest: Interest<'_>, waiter: &Waiter, looked: bool) {
        let before = waiter.state.swap(GONE, AcqRel);
        let mut state = self.lock();
        state.used_at = clock::now();
        if before == WAITING {
            state.gone += 1;
        } else if before == WOKEN && !looked {
            match interest {
                Interest::Any if state.ready.ready() > 0 => drop(state.wake_any()),
                Interest::Any => {}
                Interest::Partition(name) => state.wake_for(name),
            }
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
            turns: HashMap::new(),
            gone: 0,
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
        self.turns.clear();
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

    /// True if a pop gets the partition. It may go away at once, but can say so only when the lock is free.
    fn next_turn(&mut self, watch: &Arc<Watch>, partition: &Arc<Partition>) -> bool {
        let Some(queue) = self.turns.get_mut(&partition.id) else { return false };
        while let Some(turn) = queue.pop_front() {
            match turn.send(Handover(Some((watch.clone(), partition.clone())))) {
                Ok(()) => return true,
                Err(handover) => handover.accept(),
            }
        }
        self.turns.remove(&partition.id);
        false
    }

    /// Pops that went away are dropped in bulk, once they are the majority.
    fn compact(&mut self) {
        if self.gone > 64 && self.gone > self.parked.len() / 2 {
            self.parked.retain(|waiter| waiter.is_waiting());
            self.parked_by_name.retain(|_, queue| {
                queue.retain(|waiter| waiter.is_waiting());
                !queue.is_empty()
            });
            self.gone = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn watch() -> Arc<Watch> {
        Watch::new("q".into(), "g".into(), Arc::default())
    }

    fn partition(number: u8) -> Arc<Partition> {
        let id = Uuid::from_u128(u128::from(number));
        Arc::new(Partition {
            id,
            number: i64::from(number),
            queue: "q".into(),
            name: number.to_string().into(),
        })
    }

    fn park(watch: &Arc<Watch>, interest: Interest<'_>) -> Arc<Waiter> {
        let waiter = Arc::default();
        assert!(watch.park(interest, None, 0, &waiter));
        waiter
    }

    fn woken(waiter: &Waiter) -> bool {
        waiter.state.load(Acquire) == WOKEN
    }

    #[test]
    fn a_partition_goes_to_the_pop_that_has_waited_longest_for_it_and_past_those_that_went_away() {
        let (watch, wanted) = (watch(), partition(1));
        assert!(watch.begin(&wanted).is_ok());
        let [gone, early, late] = [(); 3].map(|()| watch.begin(&wanted).unwrap_err());
        drop(gone);
        watch.finish(&wanted, Claim::Nothing);
        let mut last = watch.begin(&wanted).expect_err("nobody gets ahead of those that wait");
        let mut late = late;
        assert!(late.try_recv().is_err());
        drop(early);
        late.try_recv().expect("the one before went away with the partition in its hands").accept();
        assert!(last.try_recv().is_err(), "it is being claimed");
        watch.finish(&wanted, Claim::Committed { more: true });
        last.try_recv().unwrap().accept();
        let parked = park(&watch, Interest::Partition("1"));
        watch.finish(&wanted, Claim::Committed { more: true });
        assert!(woken(&parked), "nobody waits for it any more");
        assert!(watch.begin(&wanted).is_ok());
    }

    #[test]
    fn what_a_woken_pop_has_left_behind_wakes_the_next_one() {
        let watch = watch();
        let (first, second) = (park(&watch, Interest::Any), park(&watch, Interest::Any));
        let (third, fourth) =
            (park(&watch, Interest::Partition("2")), park(&watch, Interest::Partition("3")));
        watch.wake_for_ready();
        watch.mark(&partition(1), None);
        watch.mark(&partition(2), None);
        assert_eq!([&first, &second, &third, &fourth].map(|pop| woken(pop)), [true, false, true, false]);
        watch.leave(Interest::Any, &first, true);
        watch.leave(Interest::Partition("2"), &third, true);
        watch.wake_for_ready();
        assert!(woken(&second) && !woken(&fourth));
    }

    #[test]
    fn one_partition_wakes_one_pop_in_order_of_arrival() {
        let watch = watch();
        let (first, second) = (park(&watch, Interest::Any), park(&watch, Interest::Any));
        watch.mark(&partition(1), None);
        assert!(woken(&first) && !woken(&second));
        watch.mark(&partition(1), None);
        assert!(!woken(&second), "the same partition feeds nobody else");
        watch.mark(&partition(2), None);
        assert!(woken(&second));
    }

    #[test]
    fn a_pop_by_name_is_woken_before_any_other() {
        let watch = watch();
        let (any, named) = (park(&watch, Interest::Any), park(&watch, Interest::Partition("7")));
        watch.mark(&partition(7), None);
        assert!(woken(&named) && !woken(&any));
        watch.mark(&partition(8), None);
        assert!(woken(&any));
    }

    #[test]
    fn a_wake_up_is_not_lost_with_the_pop_that_left() {
        let watch = watch();
        let (first, second) = (park(&watch, Interest::Any), park(&watch, Interest::Any));
        watch.mark(&partition(1), None);
        watch.leave(Interest::Any, &first, false);
        assert!(woken(&second));
    }

    #[test]
    fn nobody_parks_beside_something_ready() {
        let watch = watch();
        watch.mark(&partition(1), None);
        assert!(!watch.park(Interest::Any, None, 0, &Arc::default()));
        assert!(!watch.park(Interest::Partition("1"), Some(partition(1).id), 0, &Arc::default()));
        assert!(!watch.park(Interest::Partition("1"), None, 0, &Arc::default()), "it exists by now");
        assert!(watch.park(Interest::Partition("2"), Some(partition(2).id), 0, &Arc::default()));
    }

    #[test]
    fn a_reset_wakes_parked_pops_and_lets_none_park_that_looked_before_it() {
        let watch = watch();
        let looked_in = watch.begin_look();
        let (any, named) = (park(&watch, Interest::Any), park(&watch, Interest::Partition("1")));
        watch.reset();
        assert!(woken(&any) && woken(&named));
        for interest in [Interest::Any, Interest::Partition("1")] {
            assert!(!watch.park(interest, None, looked_in, &Arc::default()));
            assert!(watch.park(interest, None, watch.begin_look(), &Arc::default()));
        }
    }

    #[tokio::test]
    async fn a_reset_while_the_list_is_read_makes_the_next_pop_read_it_again() {
        let watch = watch();
        let mut seeding = watch.seeding().await;
        watch.reset();
        (seeding.registered, seeding.started) = (true, true);
        drop(seeding);
        let again = watch.seeding().await;
        assert!(!again.registered && !again.started);
    }

    #[test]
    fn pops_that_left_do_not_pile_up() {
        let watch = watch();
        for _ in 0..10_000 {
            let waiter = park(&watch, Interest::Any);
            watch.leave(Interest::Any, &waiter, false);
        }
        assert!(watch.lock().parked.len() < 200);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_runs_out_wakes_the_next_pop() {
        let timers: Arc<Timers> = Arc::default();
        let watch = Watch::new("q".into(), "g".into(), timers.clone());
        let p = partition(1);
        assert!(watch.begin(&p).is_ok());
        watch.finish(&p, Claim::Granted { until: clock::now() + Duration::from_millis(20) });
        let waiter = park(&watch, Interest::Any);
        tokio::select! {
            () = timers.run() => {}
            () = waiter.woken() => {}
        }
        assert!(woken(&waiter));
    }

    #[test]
    fn a_batch_asks_for_as_many_partitions_as_the_last_one_needed() {
        let watch = watch();
        assert_eq!(watch.likely(100, 10), 10, "nothing is known yet");
        watch.yielded(100, 1);
        assert_eq!((watch.likely(100, 10), watch.likely(101, 10)), (1, 2));
        watch.yielded(7, 7);
        assert_eq!(watch.likely(100, 10), 10);
    }
}

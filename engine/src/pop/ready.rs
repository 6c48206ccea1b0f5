//! The ready list of one (queue, group): partitions believed to hold unread messages and no live lease, least
//! recently served first. Only a hint: every claim is decided by the database. Pure: time comes in as an argument.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use uuid::Uuid;

use crate::cache::Cache;
use crate::log::Partition;

/// Partitions whose last service is remembered while they are not listed.
const SERVED_MAX: usize = 50_000;

/// How soon a cursor that another session has locked is looked at again: twice as late each time.
const BUSY_MIN: Duration = Duration::from_millis(1);
const BUSY_MAX: Duration = Duration::from_secs(1);

/// In place of the number of messages that wait for their batch: what is next cannot be read.
const ASIDE: i64 = -1;

/// Never served sorts before any service; then in order of arrival.
type Turn = (u64, u64);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Ready(Turn),
    /// Some pop of this broker is asking the database for it. What it will say may be out of date by then: see `News`.
    Claiming(News),
    /// Leased, or not visible yet: worth another look at that time. `windowed` messages wait for a batch to fill up;
    /// 0: that is not the reason; `ASIDE`: set aside, and a push does not help.
    Held {
        until: Instant,
        pushed: bool,
        windowed: i64,
    },
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
    /// A lease until then.
    Granted {
        until: Instant,
    },
    /// Delivered and done; more to read or not.
    Committed {
        more: bool,
    },
    /// Somebody else's lease, or not visible yet.
    Later {
        at: Instant,
    },
    /// So many messages wait for the batch to fill up, or for this time.
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
    /// Not asked, or not needed.
    Unused,
}

/// # Invariants
/// - A partition is in at most one state; `turns` and `due` list exactly those in `Ready` and `Held`, and `windows`
///   those of the latter whose batch is filling up.
/// - A partition being claimed is not handed out again before `finish`.
/// - A push that arrives while a partition is claimed or held is not forgotten.
pub struct ReadyList {
    partitions: HashMap<Uuid, (Arc<Partition>, State)>,
    turns: BTreeMap<Turn, Uuid>,
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
            turns: BTreeMap::new(),
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
    /// Somebody pushed to it, or a look at the database found something to read. True if it became ready by this.
    /// `look_at`: when to look again at the latest where a lease is believed to be, for it may have been ended by
    /// another broker.
    pub fn mark(&mut self, partition: &Arc<Partition>, look_at: Option<Instant>) -> bool {
        match self.partitions.get_mut(&partition.id) {
            None => {
                self.make_ready(partition.clone());
                true
            }
            // One more message may fill the batch.
            Some((_, State::Held { windowed: 1.., .. })) => {
                self.remove(partition.id);
                self.make_ready(partition.clone());
                true
            }
            Some((_, State::Claiming(News { pushed, .. }) | State::Held { pushed, windowed: ASIDE, .. })) => {
                *pushed = true;
                false
            }
            Some((_, State::Held { until, .. })) => {
                let until = look_at.map_or(*until, |at| at.min(*until));
                self.remove(partition.id);
                self.hold(partition.clone(), until, true, 0);
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
            // There may be more than its lease holds.
            Some(until) => self.hold(partition, until, true, 0),
            None => self.make_ready(partition),
        }
    }

    /// The next partitions to claim, out of the list until `finish`. A small batch may be full where a larger one
    /// was still waiting, but a batch of one always waits for the window.
    pub fn take(&mut self, now: Instant, count: usize, batch: i64) -> Vec<Arc<Partition>> {
        self.expire(now);
        let mut taken = Vec::new();
        while taken.len() < count {
            let ready = self.turns.first_key_value().map(|(_, id)| *id);
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

    /// Partitions believed leased, out of the list until `finish`: another broker may have ended the lease without a
    /// word so far. Taken by who would otherwise answer "empty".
    pub fn take_leased(&mut self, count: usize) -> Vec<Arc<Partition>> {
        // Some of them wait for their window or are set aside; twice as many are enough to find some that do not.
        let held: Vec<Uuid> = self.due.iter().map(|(_, id)| *id).take(2 * count).collect();
        let mut taken = Vec::new();
        for id in held {
            if taken.len() == count {
                break;
            }
            if let Some((partition, State::Held { windowed: 0, pushed, .. })) = self.partitions.get(&id) {
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
        let pushed =
            matches!(self.partitions.get(&partition.id), Some((_, State::Held { pushed: true, .. })));
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
            Claim::Granted { until } => self.hold(partition.clone(), until, pushed, 0),
            // There may be more than its lease holds.
            Claim::Later { at } => self.hold(partition.clone(), at, true, 0),
            Claim::Window { pending, at } => self.hold(partition.clone(), at, false, pending),
            Claim::Busy { now } => {
                let times = self.busy.entry(partition.id).or_default();
                let pause = BUSY_MIN.saturating_mul(1 << (*times).min(20)).min(BUSY_MAX);
                *times += 1;
                self.hold(partition.clone(), now + pause, true, 0);
            }
            Claim::Committed { .. } | Claim::Nothing | Claim::Unused | Claim::Gone => {}
        }
        false
    }

    /// Nothing of it can be delivered before then, whatever is pushed.
    pub fn set_aside(&mut self, partition: &Arc<Partition>, until: Instant) {
        if let Some((_, State::Claiming(_))) = self.partitions.get(&partition.id) {
            return;
        }
        self.remove(partition.id);
        self.hold(partition.clone(), until, false, ASIDE);
    }

    /// A lease ended before its time. True if the partition is ready by this.
    pub fn released(&mut self, partition: Uuid, more: bool) -> bool {
        match self.partitions.get_mut(&partition) {
            Some((_, State::Claiming(news))) => {
                news.released = true;
                news.pushed |= more;
                false
            }
            Some((listed, State::Held { pushed, windowed: 0, .. })) => {
                let (listed, ready) = (listed.clone(), *pushed || more);
                self.remove(partition);
                if ready {
                    self.make_ready(listed);
                }
                ready
            }
            // What waits for its batch or is set aside was found after that lease.
            Some((_, State::Held { .. } | State::Ready(_))) | None => false,
        }
    }

    /// Moves what is due into the list; says which became ready.
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
        self.turns.len()
    }

    /// Some were locked when they were last looked at.
    pub fn has_busy(&self) -> bool {
        !self.busy.is_empty()
    }

    /// Of the partitions that are ready, in turn.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        let listed = |id: &Uuid| self.partitions.get(id).map(|(partition, _)| &partition.name);
        self.turns.values().filter_map(listed)
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
            State::Ready(_) | State::Held { .. } => false,
        });
        let partitions = &self.partitions;
        self.busy.retain(|id, _| partitions.contains_key(id));
        self.turns.clear();
        self.due.clear();
        self.windows.clear();
        self.served = Cache::new(SERVED_MAX);
    }

    fn make_ready(&mut self, partition: Arc<Partition>) {
        self.arrivals += 1;
        let turn = (self.served.get(&partition.id).copied().unwrap_or(0), self.arrivals);
        self.turns.insert(turn, partition.id);
        self.partitions.insert(partition.id, (partition, State::Ready(turn)));
    }

    fn hold(&mut self, partition: Arc<Partition>, until: Instant, pushed: bool, windowed: i64) {
        self.due.insert((until, partition.id));
        if windowed > 0 {
            self.windows.insert((windowed, partition.id));
        }
        self.partitions.insert(partition.id, (partition, State::Held { until, pushed, windowed }));
    }

    fn note_service(&mut self, partition: Uuid) {
        self.services += 1;
        self.served.insert(partition, self.services, 1);
    }

    fn remove(&mut self, partition: Uuid) {
        match self.partitions.remove(&partition) {
            Some((_, State::Ready(turn))) => drop(self.turns.remove(&turn)),
            Some((_, State::Held { until, windowed, .. })) => {
                self.due.remove(&(until, partition));
                self.windows.remove(&(windowed, partition));
            }
            Some((_, State::Claiming(_))) | None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use proptest::prelude::*;

    fn partition(number: u8) -> Arc<Partition> {
        Arc::new(Partition {
            id: Uuid::from_u128(u128::from(number)),
            number: i64::from(number),
            queue: "q".into(),
            name: number.to_string().into(),
        })
    }

    fn names(taken: &[Arc<Partition>]) -> Vec<i64> {
        taken.iter().map(|partition| partition.number).collect()
    }

    #[test]
    fn never_served_goes_first_and_then_the_longest_unserved() {
        let now = clock::now();
        let mut list = ReadyList::default();
        for number in [1, 2] {
            list.mark(&partition(number), None);
        }
        for taken in list.take(now, 2, 1) {
            list.finish(&taken, Claim::Committed { more: true });
        }
        list.mark(&partition(3), None);
        assert_eq!(names(&list.take(now, 3, 1)), [3, 1, 2]);
    }

    #[test]
    fn a_partition_being_claimed_is_not_handed_out_twice() {
        let mut list = ReadyList::default();
        let p = partition(1);
        list.mark(&p, None);
        assert_eq!(list.take(clock::now(), 5, 1).len(), 1);
        assert!(!list.mark(&p, None));
        assert!(list.take(clock::now(), 5, 1).is_empty());
        assert!(!list.begin(&p));
        assert!(list.finish(&p, Claim::Nothing), "a push came while it was claimed");
        assert_eq!(list.ready(), 1);
    }

    #[test]
    fn a_lease_comes_back_when_it_ends_by_ack_or_by_time() {
        let now = clock::now();
        let mut list = ReadyList::default();
        for number in [1, 2, 3] {
            list.mark(&partition(number), None);
        }
        for taken in list.take(now, 3, 1) {
            list.finish(&taken, Claim::Granted { until: now + Duration::from_secs(5) });
        }
        assert!(list.take(now, 3, 1).is_empty());
        assert!(list.released(partition(1).id, true));
        assert!(!list.released(partition(2).id, false));
        assert_eq!(names(&list.take(now, 3, 1)), [1]);
        assert_eq!(names(&list.take(now + Duration::from_secs(6), 3, 1)), [3]);
    }

    #[test]
    fn a_window_holds_back_only_batches_it_cannot_fill() {
        let now = clock::now();
        let mut list = ReadyList::default();
        let p = partition(1);
        let window = Claim::Window { pending: 5, at: now + Duration::from_secs(60) };
        list.mark(&p, None);
        list.take(now, 1, 6);
        list.finish(&p, window);
        assert!(list.take(now, 1, 6).is_empty());
        assert!(list.take(now, 1, 1).is_empty(), "a batch of one is never full");
        assert_eq!(names(&list.take(now, 1, 5)), [1]);
        list.finish(&p, window);
        assert!(list.mark(&p, None), "one more message may fill it");
    }

    #[test]
    fn what_is_set_aside_is_left_alone_until_its_time() {
        let now = clock::now();
        let until = now + Duration::from_secs(10);
        let mut list = ReadyList::default();
        let (aside, leased) = (partition(1), partition(2));
        list.mark(&aside, None);
        list.set_aside(&aside, until);
        list.mark(&leased, None);
        list.take(now, 1, 1);
        list.finish(&leased, Claim::Granted { until: until + Duration::from_secs(1) });
        assert!(!list.mark(&aside, Some(now)), "a push does not help");
        assert_eq!(list.next_due(), Some(until));
        assert_eq!(names(&list.take_leased(2)), [2]);
        assert!(list.take(now, 2, 1).is_empty());
        assert_eq!(names(&list.take(until, 2, 1)), [1]);
    }

    #[test]
    fn a_claim_that_began_before_the_list_was_cleared_is_looked_at_again() {
        let now = clock::now();
        let mut list = ReadyList::default();
        let (claimed, waiting) = (partition(1), partition(2));
        list.mark(&claimed, None);
        list.take(now, 1, 1);
        list.mark(&waiting, None);
        list.clear();
        assert_eq!((list.len(), list.ready()), (1, 0));
        assert!(!list.begin(&claimed), "it is still claimed");
        assert!(list.finish(&claimed, Claim::Nothing));
        assert_eq!(names(&list.take(now, 2, 1)), [1]);
    }

    #[test]
    fn a_locked_partition_is_looked_at_ever_less_often_and_keeps_nobody_from_the_others() {
        let (mut list, mut now) = (ReadyList::default(), clock::now());
        let (locked, free) = (partition(1), partition(2));
        list.mark(&locked, None);
        let mut looks = 0;
        let end = now + Duration::from_secs(4);
        while now < end {
            for taken in list.take(now, 9, 1) {
                assert_eq!(taken.id, locked.id);
                assert!(!list.finish(&taken, Claim::Busy { now }));
                looks += 1;
            }
            now += Duration::from_millis(1);
        }
        assert!((10..=15).contains(&looks), "{looks} looks");
        assert!(list.has_busy());
        list.mark(&free, None);
        assert_eq!(list.take(now, 9, 1)[0].id, free.id);
        assert!(list.released(locked.id, false), "an ack of ours means that it is free");
        let taken = list.take(now, 1, 1).remove(0);
        list.finish(&taken, Claim::Nothing);
        assert!(!list.has_busy());
    }

    /// Partitions as the database has them.
    struct Shadow {
        now: Instant,
        rows: [Row; 3],
    }

    #[derive(Clone, Copy, Default)]
    struct Row {
        cursor: u32,
        head: u32,
        lease: Option<Lease>,
    }

    #[derive(Clone, Copy)]
    struct Lease {
        until: Instant,
        end: u32,
        /// The partition's, when it was granted.
        head: u32,
    }

    impl Shadow {
        fn claim(&mut self, partition: &Partition, auto: bool) -> Claim {
            let row = &mut self.rows[partition.number as usize];
            match row.lease {
                Some(lease) if lease.until > self.now => Claim::Later { at: lease.until },
                _ if row.cursor == row.head => Claim::Nothing,
                _ if auto => {
                    (row.cursor, row.lease) = (row.cursor + 1, None);
                    Claim::Committed { more: row.cursor < row.head }
                }
                _ => {
                    let until = self.now + Duration::from_secs(3);
                    row.lease = Some(Lease { until, end: row.cursor + 1, head: row.head });
                    Claim::Granted { until }
                }
            }
        }

        fn seed(&self, list: &mut ReadyList) {
            for (number, row) in self.rows.iter().enumerate().filter(|(_, row)| row.cursor < row.head) {
                let held = row.lease.map(|lease| lease.until).filter(|until| *until > self.now);
                list.seed(partition(number as u8), true, held);
            }
        }
    }

    proptest! {
        #[test]
        fn a_partition_with_messages_and_no_lease_is_always_ready(
            steps in prop::collection::vec((0u8..11, 0u8..3, any::<bool>()), 0..200)
        ) {
            let mut list = ReadyList::default();
            let mut shadow = Shadow { now: clock::now(), rows: [Row::default(); 3] };
            let mut claiming: Vec<(Arc<Partition>, Option<Claim>)> = Vec::new();
            let mut releases: Vec<(Uuid, bool)> = Vec::new();
            let mut seeded = true;
            for (action, number, flag) in steps {
                let p = partition(number);
                let Shadow { now, rows } = &mut shadow;
                let row = &mut rows[number as usize];
                match action {
                    0 => { row.head += 1; list.mark(&p, None); }
                    1 if seeded => claiming.extend(list.take(*now, 1, 1).into_iter().map(|p| (p, None))),
                    2 => if list.begin(&p) { claiming.push((p, None)); },
                    // The claim's statement, and some time later its answer.
                    3 => if let Some((p, claim @ None)) = claiming.iter_mut().find(|(_, claim)| claim.is_none()) {
                        *claim = Some(shadow.claim(p, flag));
                    },
                    4 => if let Some(at) = claiming.iter().position(|(_, claim)| claim.is_some()) {
                        let (p, claim) = claiming.remove(at);
                        list.finish(&p, claim.unwrap());
                    },
                    // An ack or a nack that ends the lease, and what is told of it.
                    5 => if let Some(lease) = row.lease.take_if(|lease| lease.until > *now) {
                        if flag { row.cursor = lease.end; }
                        releases.push((p.id, row.cursor < lease.head));
                    },
                    6 => if !releases.is_empty() {
                        let (id, more) = releases.remove(0);
                        list.released(id, more);
                    },
                    7 => if let Some(lease) = &mut row.lease { lease.until = *now + Duration::from_secs(3); },
                    // Another broker's claim.
                    8 => { shadow.claim(&p, flag); }
                    9 => {
                        if flag { (row.cursor, row.lease) = (0, None); }
                        list.clear();
                        seeded = false;
                    }
                    _ => *now += Duration::from_secs(1),
                }
                if action == 10 && !seeded {
                    shadow.seed(&mut list);
                    seeded = true;
                }
                prop_assert_eq!(list.turns.len() + list.due.len() + claiming.len(), list.len());
            }
            for (p, claim) in claiming {
                list.finish(&p, claim.unwrap_or(Claim::Unused));
            }
            for (id, more) in releases {
                list.released(id, more);
            }
            if !seeded {
                shadow.seed(&mut list);
            }
            let taken: Vec<i64> = names(&list.take(shadow.now, 10, 1));
            for (n, row) in shadow.rows.iter().enumerate() {
                let leased = row.lease.is_some_and(|lease| lease.until > shadow.now);
                prop_assert!(row.cursor == row.head || leased || taken.contains(&(n as i64)), "{n} is lost");
            }
        }
    }
}

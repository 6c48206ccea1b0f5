//! No partition with unread messages and no lease is lost from the list, whatever happens in whatever order.

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
fn a_late_hint_about_an_earlier_lease_loses_no_partition() {
    let now = clock::now();
    let (earlier, lease) = (Some(Uuid::from_u128(1)), Uuid::from_u128(2));
    let granted = || {
        let (mut list, p) = (ReadyList::default(), partition(1));
        list.mark(&p, None);
        list.take(now, 1, 1);
        list.finish(&p, Claim::Granted { lease, until: now + Duration::from_secs(5) });
        (list, p)
    };
    let (mut list, p) = granted();
    assert!(!list.released(p.id, earlier, false, None));
    assert_eq!(names(&list.take(now + Duration::from_secs(6), 1, 1)), [1], "it runs out");
    // Brokers of 0.1.0, and acks without a lease, do not say which lease has ended.
    for (reported, more) in [(None, false), (None, true), (earlier, true)] {
        let (mut list, p) = granted();
        assert!(list.released(p.id, reported, more, None), "it may be the present one, or a later one");
        assert_eq!(names(&list.take(now, 1, 1)), [1]);
    }
    let (mut list, p) = granted();
    assert!(!list.released(p.id, Some(lease), false, None));
    assert!(list.released(p.id, Some(lease), true, Some(&p)), "it had left the list");
}

#[test]
fn a_lease_comes_back_when_it_ends_by_ack_or_by_time() {
    let now = clock::now();
    let mut list = ReadyList::default();
    for number in [1, 2, 3] {
        list.mark(&partition(number), None);
    }
    for taken in list.take(now, 3, 1) {
        list.finish(&taken, Claim::Granted { lease: taken.id, until: now + Duration::from_secs(5) });
    }
    assert!(list.take(now, 3, 1).is_empty());
    assert!(list.released(partition(1).id, Some(partition(1).id), true, None));
    assert!(!list.released(partition(2).id, Some(partition(2).id), false, None));
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
    list.finish(&leased, Claim::Granted { lease: Uuid::nil(), until: until + Duration::from_secs(1) });
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
    assert!(list.released(locked.id, None, false, None), "an ack of ours means that it is free");
    let taken = list.take(now, 1, 1).remove(0);
    list.finish(&taken, Claim::Nothing);
    assert!(!list.has_busy());
}

/// Partitions as the database has them.
struct Shadow {
    now: Instant,
    rows: [Row; 3],
    leases: u128,
}

#[derive(Clone, Copy, Default)]
struct Row {
    cursor: u32,
    head: u32,
    lease: Option<Lease>,
}

#[derive(Clone, Copy)]
struct Lease {
    id: Uuid,
    until: Instant,
    end: u32,
    /// The head of the partition when the lease was granted.
    head: u32,
    /// Granted through another broker.
    foreign: bool,
}

impl Shadow {
    fn claim(&mut self, partition: &Partition, auto: bool, foreign: bool) -> Claim {
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
                self.leases += 1;
                let id = Uuid::from_u128(self.leases);
                row.lease = Some(Lease { id, until, end: row.cursor + 1, head: row.head, foreign });
                Claim::Granted { lease: id, until }
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
        let mut shadow = Shadow { now: clock::now(), rows: [Row::default(); 3], leases: 0 };
        let mut claiming: Vec<(Arc<Partition>, Option<Claim>)> = Vec::new();
        let mut releases: Vec<(Arc<Partition>, Option<Uuid>, bool, bool)> = Vec::new();
        let mut seeded = true;
        for (action, number, flag) in steps {
            let p = partition(number);
            let Shadow { now, rows, .. } = &mut shadow;
            let row = &mut rows[number as usize];
            match action {
                0 => { row.head += 1; list.mark(&p, None); }
                1 if seeded => claiming.extend(list.take(*now, 1, 1).into_iter().map(|p| (p, None))),
                2 => if list.begin(&p) { claiming.push((p, None)); },
                // The claim's statement, and its result some time later.
                3 => if let Some((p, claim @ None)) = claiming.iter_mut().find(|(_, claim)| claim.is_none()) {
                    *claim = Some(shadow.claim(p, flag, false));
                },
                4 => if let Some(at) = claiming.iter().position(|(_, claim)| claim.is_some()) {
                    let (p, claim) = claiming.remove(at);
                    list.finish(&p, claim.unwrap());
                },
                // An ack or a nack that ends the lease, and the report of it.
                5 => if let Some(lease) = row.lease.take_if(|lease| lease.until > *now) {
                    if flag { row.cursor = lease.end; }
                    let named = (lease.id.as_u128() % 2 == 0).then_some(lease.id);
                    releases.push((p, named, row.cursor < lease.head, lease.foreign));
                },
                6 => if !releases.is_empty() {
                    let (p, lease, more, foreign) = releases.remove(0);
                    list.released(p.id, lease, more, (!foreign).then_some(&p));
                },
                7 => if let Some(lease) = &mut row.lease { lease.until = *now + Duration::from_secs(3); },
                // Another broker's claim.
                8 => { shadow.claim(&p, flag, true); }
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
            prop_assert_eq!(list.order.len() + list.due.len() + claiming.len(), list.len());
        }
        for (p, claim) in claiming {
            list.finish(&p, claim.unwrap_or(Claim::Unused));
        }
        for (p, lease, more, foreign) in releases {
            list.released(p.id, lease, more, (!foreign).then_some(&p));
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

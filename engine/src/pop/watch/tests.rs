//! Which pops each event wakes, and which one gets a partition that several pops name.

use super::*;
use std::time::Duration;

fn watch() -> Arc<Watch> {
    Watch::new("q".into(), "g".into(), Arc::default())
}

fn partition(number: u8) -> Arc<Partition> {
    let id = Uuid::from_u128(u128::from(number));
    Arc::new(Partition { id, number: i64::from(number), queue: "q".into(), name: number.to_string().into() })
}

fn park(watch: &Arc<Watch>, interest: Interest<'_>) -> Arc<Waiter> {
    let waiter = Arc::default();
    assert!(watch.park(interest, None, 0, &waiter));
    waiter
}

fn woken(waiter: &Waiter) -> bool {
    waiter.is_woken()
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
    let (third, fourth) = (park(&watch, Interest::Partition("2")), park(&watch, Interest::Partition("3")));
    watch.wake_for_ready();
    watch.mark(&partition(1), None);
    watch.mark(&partition(2), None);
    assert_eq!([&first, &second, &third, &fourth].map(|pop| woken(pop)), [true, false, true, false]);
    watch.leave(Interest::Any, first.leave(), true);
    watch.leave(Interest::Partition("2"), third.leave(), true);
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
    watch.leave(Interest::Any, first.leave(), false);
    assert!(woken(&second));
}

#[test]
fn a_pop_that_leaves_several_watches_passes_on_the_wake_up_of_any_and_is_forgotten_by_all() {
    let watches = [watch(), watch()];
    let places =
        |waiter: &Arc<Waiter>| watches.each_ref().map(|each| each.park(Interest::Any, None, 0, waiter));
    let leave = |waiter: &Waiter| {
        let woken = waiter.leave();
        watches.iter().for_each(|watch| watch.leave(Interest::Any, woken, false));
    };
    let first: Arc<Waiter> = Arc::default();
    assert_eq!(places(&first), [true, true]);
    let second = park(&watches[1], Interest::Any);
    watches[1].mark(&partition(1), None);
    assert!(woken(&first) && !woken(&second));
    leave(&first);
    assert!(woken(&second));
    let taken = watches[1].take(clock::now(), 1, 1).remove(0);
    watches[1].finish(&taken, Claim::Nothing);
    for _ in 0..10_000 {
        let waiter: Arc<Waiter> = Arc::default();
        assert_eq!(places(&waiter), [true, true]);
        leave(&waiter);
    }
    assert!(watches.iter().all(|watch| watch.lock().parked.len() < 200));
}

#[test]
fn a_pop_that_one_watch_wakes_is_forgotten_by_the_others() {
    let (busy, quiet) = (watch(), watch());
    for _ in 0..10_000 {
        let waiter: Arc<Waiter> = Arc::default();
        assert!(busy.park(Interest::Any, None, 0, &waiter) && quiet.park(Interest::Any, None, 0, &waiter));
        busy.mark(&partition(1), None);
        let woken = waiter.leave();
        assert!(woken);
        [&busy, &quiet].into_iter().for_each(|watch| watch.leave(Interest::Any, woken, true));
        let taken = busy.take(clock::now(), 1, 1).remove(0);
        busy.finish(&taken, Claim::Nothing);
    }
    assert!(quiet.lock().parked.len() < 200);
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
        watch.leave(Interest::Any, waiter.leave(), false);
    }
    assert!(watch.lock().parked.len() < 200);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_runs_out_wakes_the_next_pop() {
    let timers: Arc<Timers> = Arc::default();
    let watch = Watch::new("q".into(), "g".into(), timers.clone());
    let p = partition(1);
    assert!(watch.begin(&p).is_ok());
    watch.finish(&p, Claim::Granted { lease: p.id, until: clock::now() + Duration::from_millis(20) });
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

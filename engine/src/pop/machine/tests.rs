//! Each transition of the machine, and what holds for every pop, whatever happens.

use super::*;
use crate::clock;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn machine(source: Source, wait: Option<Duration>, now: Instant) -> Machine {
    let partitions = if source == Source::Partition { 1 } else { 10 };
    Machine::new(Want { source, batch: 100, partitions, deadline: wait.map(|wait| now + wait) })
}

fn feed(machine: &mut Machine, events: &[Event], now: Instant) {
    events.iter().for_each(|event| _ = machine.next(*event, now));
}

/// The states of a pop, all at one moment.
fn states(source: Source, wait: Option<Duration>, events: &[Event]) -> Vec<State> {
    let now = clock::now();
    let mut machine = machine(source, wait, now);
    events.iter().map(|event| machine.next(*event, now)).collect()
}

fn last(source: Source, wait: Option<Duration>, events: &[Event]) -> State {
    *states(source, wait, events).last().unwrap()
}

const NONE: Leased = Leased { granted: 0, messages: 0, busy: false, deleted: false };
const CLAIMED: Event = Event::Leased(Leased { granted: 1, messages: 100, ..NONE });
const TAKEN: Event = Event::Leased(NONE);
const BUSY: Event = Event::Leased(Leased { busy: true, ..NONE });
const DELETED: Event = Event::Leased(Leased { deleted: true, ..NONE });
const UNCHANGED: Event = Event::Checked { reset: false, draining: false };
const RESET: Event = Event::Checked { reset: true, draining: false };
const DRAINING: Event = Event::Checked { reset: false, draining: true };

/// From the start to the first partitions.
const TOOK: [Event; 3] = [Event::Start, Event::Opened, Event::Resolved(1)];

fn took(events: &[Event]) -> Vec<Event> {
    TOOK.iter().chain(events).copied().collect()
}

#[test]
fn a_partition_is_leased_fetched_and_answered() {
    use State::{Completed, Fetching, Leasing, Opening, Resolving};
    for source in [Source::Partition, Source::Queue, Source::Labels] {
        let states = states(source, None, &took(&[CLAIMED, Event::Fetched(3)]));
        assert_eq!(states, [Opening, Resolving, Leasing, Fetching, Completed]);
    }
}

#[test]
fn a_taken_lease_on_a_named_partition_is_empty_at_once() {
    assert_eq!(last(Source::Partition, None, &took(&[TAKEN, UNCHANGED])), State::Empty);
}

#[test]
fn a_pop_for_a_partition_that_does_not_exist_is_empty_or_waits_for_it() {
    let events = [Event::Start, Event::Opened, Event::Resolved(0), UNCHANGED];
    assert_eq!(last(Source::Partition, None, &events), State::Empty);
    assert!(matches!(last(Source::Partition, Some(SECOND), &events), State::Parked { .. }));
}

#[test]
fn a_pop_that_does_not_wait_outlasts_a_moment_s_lock_with_ever_longer_pauses() {
    let mut now = clock::now();
    let begun = now;
    let mut machine = machine(Source::Partition, None, now);
    feed(&mut machine, &TOOK, now);
    let mut pauses = Vec::new();
    while let State::Busy(pause) = machine.next(BUSY, now) {
        pauses.push(pause);
        now += pause;
        assert_eq!(machine.next(Event::Rested, now), State::Resolving);
        machine.next(Event::Resolved(1), now);
    }
    assert_eq!(machine.state(), State::Checking);
    assert!(pauses.is_sorted() && pauses[0] == BUSY_PAUSE_MIN && pauses.len() < 30, "{pauses:?}");
    assert!((BUSY_PATIENCE..BUSY_PATIENCE + BUSY_PAUSE_MAX).contains(&(now - begun)));
}

#[test]
fn a_pop_that_waits_parks_beside_a_locked_partition() {
    assert!(matches!(last(Source::Partition, Some(SECOND), &took(&[BUSY, UNCHANGED])), State::Parked { .. }));
}

#[test]
fn a_wildcard_that_loses_the_race_resolves_again_until_nothing_is_ready() {
    let states =
        states(Source::Queue, Some(SECOND), &took(&[TAKEN, Event::Resolved(0), Event::Seeded(false)]));
    assert_eq!(states[3..], [State::Resolving, State::Seeding, State::Checking]);
}

#[test]
fn a_pop_that_does_not_wait_asks_the_database_before_it_answers_empty() {
    let nothing = [Event::Resolved(0), Event::Seeded(false)];
    let mut events = vec![Event::Start, Event::Opened, Event::Resolved(0), Event::Seeded(true)];
    events.extend(nothing);
    events.push(Event::Discovered);
    events.extend(nothing);
    events.extend([Event::Resolved(1), TAKEN]);
    events.extend(nothing);
    events.push(UNCHANGED);
    use State::{Checking, Discovering, Doubting, Empty, Leasing, Opening, Resolving, Seeding};
    let expected = [
        Opening,
        Resolving,
        Seeding,
        Resolving,
        Seeding,
        Discovering,
        Resolving,
        Seeding,
        Doubting,
        Leasing,
        Resolving,
        Seeding,
        Checking,
        Empty,
    ];
    assert_eq!(states(Source::Queue, None, &events), expected);
}

#[test]
fn a_batch_that_is_not_full_is_filled_up_from_partitions_that_were_not_asked_yet() {
    let leased = |granted, messages| Event::Leased(Leased { granted, messages, ..NONE });
    let after = |source, asked, leased| {
        last(source, None, &[Event::Start, Event::Opened, Event::Resolved(asked), leased])
    };
    assert_eq!(after(Source::Queue, 3, leased(3, 99)), State::Filling);
    assert_eq!(after(Source::Queue, 3, leased(1, 1)), State::Filling);
    assert_eq!(after(Source::Queue, 3, leased(3, 100)), State::Fetching);
    assert_eq!(after(Source::Queue, 10, leased(3, 99)), State::Fetching, "all it may have were asked");
    assert_eq!(after(Source::Queue, 64, leased(3, 99)), State::Fetching);
    assert_eq!(after(Source::Partition, 1, leased(1, 1)), State::Fetching);
    let filled = took(&[leased(1, 1), Event::Filled, Event::Fetched(1)]);
    assert_eq!(last(Source::Queue, None, &filled), State::Completed);
}

#[test]
fn a_claim_that_reads_nothing_is_empty() {
    assert_eq!(last(Source::Partition, None, &took(&[CLAIMED, Event::Fetched(0), UNCHANGED])), State::Empty);
}

#[test]
fn a_deleted_partition_is_looked_up_once_more() {
    let again = took(&[DELETED]);
    assert_eq!(last(Source::Partition, None, &again), State::Opening);
    let events: Vec<Event> = again.iter().chain(&took(&[DELETED])[1..]).copied().collect();
    assert_eq!(last(Source::Partition, None, &events), State::Checking);
}

#[test]
fn a_list_that_was_emptied_meanwhile_is_looked_at_again_but_not_for_ever() {
    let now = clock::now();
    let mut machine = machine(Source::Partition, None, now);
    machine.next(Event::Start, now);
    for reset in 0..=RESETS_MAX {
        assert_eq!(machine.state(), State::Opening, "{reset}");
        feed(&mut machine, &[Event::Opened, Event::Resolved(0), RESET], now);
    }
    assert_eq!(machine.state(), State::Empty);
}

#[test]
fn a_pop_that_waits_looks_once_more_when_its_time_is_up() {
    let now = clock::now();
    let mut machine = machine(Source::Queue, Some(SECOND), now);
    let look = [Event::Opened, Event::Resolved(0), Event::Seeded(false), UNCHANGED];
    machine.next(Event::Start, now);
    feed(&mut machine, &look, now);
    assert_eq!(machine.state(), State::Parked { until: now + SECOND });
    assert_eq!(machine.next(Event::Woken, now + SECOND), State::Opening);
    feed(&mut machine, &look, now + SECOND);
    assert_eq!(machine.state(), State::Empty);
}

#[test]
fn a_pop_by_label_looks_for_new_queues_every_second() {
    let now = clock::now();
    let until = |wait| {
        let mut machine = machine(Source::Labels, Some(wait), now);
        let look = [Event::Start, Event::Opened, Event::Resolved(0), Event::Seeded(false), UNCHANGED];
        feed(&mut machine, &look, now);
        machine.state()
    };
    assert_eq!(until(30 * SECOND), State::Parked { until: now + LABELS_LOOK });
    assert_eq!(until(SECOND / 2), State::Parked { until: now + SECOND / 2 });
}

#[test]
fn no_pop_parks_or_begins_while_it_may_not() {
    let wait = Some(SECOND);
    assert_eq!(last(Source::Queue, wait, &[Event::Start, Event::Maintenance]), State::Empty);
    assert_eq!(last(Source::Partition, wait, &took(&[TAKEN, DRAINING])), State::Empty);
    assert_eq!(last(Source::Partition, wait, &took(&[TAKEN, UNCHANGED, Event::Ended])), State::Empty);
}

#[test]
fn a_full_lane_is_waited_for_by_a_pop_that_waits() {
    let full = Event::Failed(Failure::Full);
    let events = took(&[full, Event::Rested]);
    let states = states(Source::Queue, Some(SECOND), &events);
    assert_eq!(states[3..], [State::Full(FULL_PAUSE), State::Opening]);
    assert_eq!(last(Source::Queue, Some(SECOND), &took(&[full, Event::Ended])), State::Empty);
    assert_eq!(last(Source::Queue, Some(Duration::ZERO), &took(&[full])), State::Failed);
    assert_eq!(last(Source::Queue, None, &took(&[full])), State::Failed);
    assert_eq!(last(Source::Partition, Some(SECOND), &[Event::Start, full]), State::Failed);
}

#[test]
fn an_unreadable_message_keeps_a_wildcard_from_no_other_partition_and_fails_a_named_one() {
    let now = clock::now();
    let unreadable = took(&[CLAIMED, Event::Failed(Failure::Unreadable)]);
    assert_eq!(last(Source::Partition, None, &unreadable), State::Failed);
    let mut machine = machine(Source::Queue, None, now);
    machine.next(Event::Start, now);
    for _ in 1..UNREADABLE_MAX {
        feed(&mut machine, &unreadable[1..], now);
        assert_eq!(machine.state(), State::Opening);
    }
    feed(&mut machine, &unreadable[1..], now);
    assert_eq!(machine.state(), State::Checking);
}

#[test]
fn an_error_ends_in_failed_from_every_state_at_work() {
    let path = took(&[CLAIMED]);
    for steps in 1..=path.len() {
        let events: Vec<Event> =
            path[..steps].iter().copied().chain([Event::Failed(Failure::Other)]).collect();
        assert_eq!(last(Source::Queue, Some(SECOND), &events), State::Failed);
    }
}

#[test]
fn endless_rivals_do_not_hold_a_pop_for_ever() {
    let now = clock::now();
    for source in [Source::Partition, Source::Queue] {
        let mut machine = machine(source, None, now);
        feed(&mut machine, &[Event::Start, Event::Opened], now);
        let mut claims = 0;
        while machine.state() != State::Checking {
            match machine.state() {
                State::Busy(_) => machine.next(Event::Rested, now),
                State::Resolving => machine.next(Event::Resolved(1), now),
                _ => {
                    claims += 1;
                    machine.next(BUSY, now)
                }
            };
        }
        assert_eq!(claims, CLAIMS_MAX);
    }
}

#[test]
#[should_panic(expected = "a pop in Completed cannot meet Start")]
fn an_impossible_pair_names_both() {
    states(Source::Partition, None, &took(&[CLAIMED, Event::Fetched(1), Event::Start]));
}

/// An event that may follow a state; `pick` decides which.
fn answer(state: State, want: &Want, pick: u8) -> Event {
    let some = usize::from(pick >> 4);
    match state {
        State::Pending => Event::Start,
        State::Opening if pick == 0 => Event::Maintenance,
        State::Opening => Event::Opened,
        State::Resolving if want.source == Source::Partition => Event::Resolved(some.min(1)),
        State::Resolving => Event::Resolved(some.min(want.partitions)),
        State::Doubting => Event::Resolved(some),
        State::Seeding => Event::Seeded(pick == 1),
        State::Discovering => Event::Discovered,
        State::Leasing => {
            let granted = if pick > 200 { some % (want.partitions + 1) } else { 0 };
            let messages = granted as i64 * i64::from(pick % 50);
            Event::Leased(Leased { granted, messages, busy: pick & 1 == 1, deleted: pick & 6 == 6 })
        }
        State::Filling => Event::Filled,
        State::Fetching if pick < 100 => Event::Failed(Failure::Unreadable),
        State::Fetching => Event::Fetched(usize::from(pick >= 250)),
        State::Checking => Event::Checked { reset: pick & 3 == 3, draining: pick == 4 },
        State::Busy(_) | State::Full(_) => Event::Rested,
        State::Parked { .. } if pick == 0 => Event::Ended,
        State::Parked { .. } => Event::Woken,
        State::Completed | State::Empty | State::Failed => panic!("{state:?} is an end"),
    }
}

proptest! {
    #[test]
    fn every_pop_comes_to_an_end_in_time_and_parks_only_if_it_waits_and_has_checked(
        source in prop_oneof![Just(Source::Partition), Just(Source::Queue), Just(Source::Labels)],
        wait in prop::option::of(0u64..300),
        picks in prop::collection::vec((any::<u8>(), 0u64..3, any::<bool>()), 1..300),
    ) {
        let mut now = clock::now();
        let mut machine = machine(source, wait.map(Duration::from_millis), now);
        let want = *machine.want();
        let (mut before, mut event) = (State::Pending, Event::Start);
        // Looks that began when the time was already up.
        let (mut late, mut paused) = (0, Duration::ZERO);
        let mut pages = 20;
        for step in 0.. {
            prop_assert!(step < 200_000, "it goes on for ever");
            let state = machine.next(event, now);
            match state {
                State::Parked { until } => {
                    let deadline = want.deadline.expect("it waits");
                    prop_assert!(until > now && until <= deadline);
                    prop_assert!(source != Source::Labels || until <= now + LABELS_LOOK);
                    let parks = matches!(event, Event::Checked { draining: false, .. });
                    prop_assert!(parks, "{event:?}");
                }
                State::Full(_) => prop_assert!(want.deadline > Some(now)),
                State::Busy(pause) => {
                    prop_assert!(want.deadline.is_none());
                    paused += pause;
                }
                State::Discovering | State::Doubting => prop_assert!(want.deadline.is_none()),
                State::Leasing => prop_assert!(matches!(event, Event::Resolved(1..))),
                State::Opening if want.deadline.is_none_or(|deadline| deadline <= now) => late += 1,
                State::Completed => prop_assert!(matches!(event, Event::Fetched(1..))),
                State::Empty => {
                    let ends = [Event::Maintenance, Event::Ended];
                    prop_assert!(before == State::Checking || ends.contains(&event), "{before:?} {event:?}");
                }
                _ => {}
            }
            // The last look after it was parked, and looks for reasons that are counted.
            prop_assert!(late <= 2 + RESETS_MAX + UNREADABLE_MAX);
            prop_assert!(paused <= (1 + late) * (BUSY_PATIENCE + BUSY_PAUSE_MAX));
            if matches!(state, State::Completed | State::Empty | State::Failed) {
                break;
            }
            let (pick, millis, full) = picks[step % picks.len()];
            event = match state {
                State::Resolving | State::Leasing | State::Fetching if full && pick & 7 == 7 => {
                    Event::Failed(Failure::Full)
                }
                State::Seeding if pages == 0 => Event::Seeded(false),
                _ => answer(state, &want, pick),
            };
            pages -= i32::from(event == Event::Seeded(true));
            now += match state {
                State::Parked { until } if full => until - now,
                State::Parked { .. } => Duration::from_millis(millis.max(1)),
                State::Busy(pause) | State::Full(pause) => pause,
                _ => Duration::from_millis(millis),
            };
            before = state;
        }
    }
}

//! The states of a pop. Pure: it says what to do next, and somebody else does it.

/// ```text
/// PENDING ─┬─ wildcard ──▶ RESOLVING ──▶ LEASING ──▶ FETCHING ──▶ COMPLETED
///          └─ named ─────────────────────▲   │            │
///                          ▲             │   │            ▼
///                          └── lost the race ┴──────────▶ EMPTY        any state ──▶ FAILED
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Pending,
    Resolving,
    Leasing,
    Fetching,
    Completed,
    Empty,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Start,
    /// How many partitions look ready.
    Resolved(usize),
    /// How many of them were claimed, and whether one was busy only for the moment.
    Leased {
        granted: usize,
        busy: bool,
    },
    /// How many messages were read.
    Fetched(usize),
    Error,
}

/// What the driver does next. At an end there is nothing left to do: an undelivered claim gives itself back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Resolve,
    Lease,
    Fetch,
}

/// Claims that may come to nothing before a pop gives up. Each failed candidate leaves the ready list, so only a
/// storm of rivals gets here; a parked pop is woken again, and one that does not wait has been patient enough.
const CLAIMS_MAX: u32 = 200;

#[derive(Debug)]
pub struct Machine {
    state: State,
    wildcard: bool,
    claims: u32,
}

impl Machine {
    pub fn new(wildcard: bool) -> Self {
        Self { state: State::Pending, wildcard, claims: 0 }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// `None` at an end.
    pub fn next(&mut self, event: Event) -> Option<Call> {
        if let Event::Leased { .. } = event {
            self.claims += 1;
        }
        let gives_up = self.claims >= CLAIMS_MAX;
        let (state, call) = match (self.state, event) {
            (State::Pending, Event::Start) if self.wildcard => (State::Resolving, Some(Call::Resolve)),
            (State::Pending, Event::Start) => (State::Leasing, Some(Call::Lease)),
            (State::Resolving, Event::Resolved(0)) => (State::Empty, None),
            (State::Resolving, Event::Resolved(_)) => (State::Leasing, Some(Call::Lease)),
            (State::Leasing, Event::Leased { granted: 1.., .. }) => (State::Fetching, Some(Call::Fetch)),
            (State::Leasing, Event::Leased { .. }) if gives_up => (State::Empty, None),
            (State::Leasing, Event::Leased { .. }) if self.wildcard => {
                (State::Resolving, Some(Call::Resolve))
            }
            (State::Leasing, Event::Leased { busy: true, .. }) => (State::Leasing, Some(Call::Lease)),
            (State::Leasing, Event::Leased { busy: false, .. }) => (State::Empty, None),
            (State::Fetching, Event::Fetched(0)) => (State::Empty, None),
            (State::Fetching, Event::Fetched(_)) => (State::Completed, None),
            (State::Pending | State::Resolving | State::Leasing | State::Fetching, Event::Error) => {
                (State::Failed, None)
            }
            (state, event) => panic!("a pop in {state:?} cannot meet {event:?}"),
        };
        self.state = state;
        call
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn walk(wildcard: bool, events: &[Event]) -> (State, Vec<Call>) {
        let mut machine = Machine::new(wildcard);
        let calls = events.iter().filter_map(|event| machine.next(*event)).collect();
        (machine.state(), calls)
    }

    const CLAIMED: Event = Event::Leased { granted: 1, busy: false };
    const TAKEN: Event = Event::Leased { granted: 0, busy: false };
    const BUSY: Event = Event::Leased { granted: 0, busy: true };

    #[test]
    fn a_named_partition_is_leased_fetched_and_answered() {
        let (state, calls) = walk(false, &[Event::Start, CLAIMED, Event::Fetched(3)]);
        assert_eq!((state, calls), (State::Completed, vec![Call::Lease, Call::Fetch]));
    }

    #[test]
    fn a_wildcard_resolves_first() {
        let (state, calls) = walk(true, &[Event::Start, Event::Resolved(2), CLAIMED, Event::Fetched(3)]);
        assert_eq!(state, State::Completed);
        assert_eq!(calls, [Call::Resolve, Call::Lease, Call::Fetch]);
    }

    #[test]
    fn a_taken_lease_on_a_named_partition_is_empty_at_once() {
        assert_eq!(walk(false, &[Event::Start, TAKEN]), (State::Empty, vec![Call::Lease]));
    }

    #[test]
    fn a_row_that_is_busy_for_the_moment_is_asked_again() {
        let (state, calls) = walk(false, &[Event::Start, BUSY, CLAIMED]);
        assert_eq!((state, calls), (State::Fetching, vec![Call::Lease, Call::Lease, Call::Fetch]));
    }

    #[test]
    fn a_wildcard_that_loses_the_race_resolves_again_until_nothing_is_ready() {
        let (state, calls) = walk(true, &[Event::Start, Event::Resolved(1), TAKEN, Event::Resolved(0)]);
        assert_eq!((state, calls), (State::Empty, vec![Call::Resolve, Call::Lease, Call::Resolve]));
    }

    #[test]
    fn a_claim_that_reads_nothing_is_empty() {
        let (state, calls) = walk(false, &[Event::Start, CLAIMED, Event::Fetched(0)]);
        assert_eq!((state, calls), (State::Empty, vec![Call::Lease, Call::Fetch]));
    }

    #[test]
    fn an_error_ends_in_failed_from_every_state_that_is_not_an_end() {
        for path in [
            &[][..],
            &[Event::Start],
            &[Event::Start, Event::Resolved(1)],
            &[Event::Start, Event::Resolved(1), CLAIMED],
        ] {
            let events: Vec<Event> = path.iter().copied().chain([Event::Error]).collect();
            assert_eq!(walk(true, &events).0, State::Failed);
        }
    }

    #[test]
    fn endless_rivals_do_not_hold_a_pop_for_ever() {
        let mut machine = Machine::new(false);
        machine.next(Event::Start);
        while machine.state() == State::Leasing {
            machine.next(BUSY);
        }
        assert_eq!(machine.state(), State::Empty);
    }

    #[test]
    #[should_panic(expected = "a pop in Completed cannot meet Start")]
    fn an_impossible_pair_names_both() {
        walk(false, &[Event::Start, CLAIMED, Event::Fetched(1), Event::Start]);
    }
}

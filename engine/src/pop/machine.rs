//! The states of a pop. Pure: the machine decides what comes next, `message/pop.rs` does it. Time is an argument.

use std::time::{Duration, Instant};

/// Claims that may come to nothing before a pop gives up. Each failed candidate leaves the ready list, so only a storm
/// of rivals leads here; a parked pop is woken again, and one that does not wait has tried for long enough.
const CLAIMS_MAX: u32 = 200;

/// How often a pop starts over because its lists were emptied while it read them.
const RESETS_MAX: u32 = 5;

/// Partitions with an unreadable message that one pop sets aside before it gives up.
const UNREADABLE_MAX: u32 = 16;

/// How long a pop that does not wait tries partitions that are locked, before it answers "empty".
const BUSY_PATIENCE: Duration = Duration::from_millis(200);
const BUSY_PAUSE_MIN: Duration = Duration::from_millis(1);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(16);

/// How long a pop that waits leaves a full lane alone.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// How often a parked pop by label looks for queues that appeared since.
const LABELS_LOOK: Duration = Duration::from_secs(1);

/// What a pop does at the moment.
///
/// ```text
/// PENDING ──▶ OPENING ──▶ RESOLVING ──▶ LEASING ──▶ (FILLING) ──▶ FETCHING ──▶ COMPLETED
///                ▲          │   ▲          │                         │
///                │          │   └──────────┘ lost the race           │ nothing
///                │          ▼                                        │
///                │   SEEDING, DISCOVERING, DOUBTING: is the list complete?
///                │          │                                        │
///                │          ▼                                        │
///                ├────── CHECKING ◀──────────────────────────────────┘
///                │          │
///                └─ PARKED ◀┴▶ EMPTY                               any of them ──▶ FAILED
/// ```
/// BUSY is a pause before RESOLVING, and FULL one before OPENING.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Pending,
    /// Looks up what it draws from: the watches of its queues, and its partition if it names one.
    Opening,
    /// Takes partitions that look ready, or waits until it may claim the one it names.
    Resolving,
    /// Reads the next page of partitions into lists that are not complete yet.
    Seeding,
    /// Reads what was committed, in case the hint is still to come.
    Discovering,
    /// Takes partitions believed to be leased: another broker may have ended a lease, and its hint is still to come.
    Doubting,
    /// Claims what it took.
    Leasing,
    /// Claims more, because what it claimed is less than a batch.
    Filling,
    /// Reads what it claimed and writes the response.
    Fetching,
    /// Found nothing, and checks that its lists were not emptied meanwhile.
    Checking,
    /// Waits for a locked partition.
    Busy(Duration),
    /// Waits for room in a lane.
    Full(Duration),
    /// Waits in memory for a partition that is ready.
    Parked {
        until: Instant,
    },
    Completed,
    Empty,
    Failed,
}

/// The outcome of what a pop did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Start,
    Opened,
    /// Pops are switched off.
    Maintenance,
    /// How many partitions it took.
    Resolved(usize),
    /// Whether there was another page.
    Seeded(bool),
    Discovered,
    Leased(Leased),
    Filled,
    /// How many messages the response has.
    Fetched(usize),
    Checked {
        /// A list was emptied since the pop looked it up.
        reset: bool,
        /// The broker is about to stop.
        draining: bool,
    },
    /// The pause is over.
    Rested,
    /// Woken, or something is ready already, or the time is up.
    Woken,
    /// The wait was ended from outside.
    Ended,
    Failed(Failure),
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leased {
    /// Partitions.
    pub granted: usize,
    /// In all of them.
    pub messages: i64,
    /// One was locked for the moment.
    pub busy: bool,
    /// One was deleted.
    pub deleted: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// A lane has no room.
    Full,
    /// A partition begins with a message that cannot be read; it is set aside.
    Unreadable,
    Other,
}

/// Where a pop looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    Partition,
    Queue,
    /// All queues with a label, some of which may not exist yet.
    Labels,
}

/// What a pop asks for.
#[derive(Debug, Clone, Copy)]
pub struct Want {
    pub source: Source,
    /// The most messages.
    pub batch: i64,
    /// The most partitions.
    pub partitions: usize,
    /// `None`: the pop does not wait.
    pub deadline: Option<Instant>,
}

/// What a pop that does not wait still has to rule out before it answers "empty".
#[derive(Debug, Clone, Copy, Default)]
enum Doubt {
    #[default]
    Commits,
    Leases,
    Nothing,
}

/// What the pop has met since it last opened its watches.
#[derive(Debug, Default)]
struct Look {
    claims: u32,
    asked: usize,
    doubt: Doubt,
    /// When it first met a locked partition.
    busy_since: Option<Instant>,
    deleted: bool,
}

#[derive(Debug)]
pub struct Machine {
    state: State,
    want: Want,
    look: Look,
    reopened: bool,
    resets: u32,
    unreadable: u32,
}

impl Machine {
    pub fn new(want: Want) -> Self {
        let look = Look::default();
        Self { state: State::Pending, want, look, reopened: false, resets: 0, unreadable: 0 }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn want(&self) -> &Want {
        &self.want
    }

    pub fn next(&mut self, event: Event, now: Instant) -> State {
        let (named, waits) = (self.want.source == Source::Partition, self.want.deadline.is_some());
        self.state = match (self.state, event) {
            (State::Pending, Event::Start) => State::Opening,
            (State::Opening, Event::Maintenance) => State::Empty,
            (State::Opening, Event::Opened) => {
                self.look = Look::default();
                State::Resolving
            }
            (State::Resolving | State::Doubting, Event::Resolved(asked @ 1..)) => {
                self.look.asked = asked;
                State::Leasing
            }
            (State::Resolving, Event::Resolved(0)) if named => self.nothing(),
            (State::Resolving, Event::Resolved(0)) => State::Seeding,
            (State::Seeding, Event::Seeded(true)) => State::Resolving,
            // A pop that waits is woken when a hint comes; one that does not must be sure before it says "empty".
            (State::Seeding, Event::Seeded(false)) if waits => self.nothing(),
            (State::Seeding, Event::Seeded(false)) => match self.look.doubt {
                Doubt::Commits => {
                    self.look.doubt = Doubt::Leases;
                    State::Discovering
                }
                Doubt::Leases => {
                    self.look.doubt = Doubt::Nothing;
                    State::Doubting
                }
                Doubt::Nothing => self.again_if_busy(now),
            },
            (State::Discovering, Event::Discovered) => State::Resolving,
            (State::Doubting, Event::Resolved(0)) => self.again_if_busy(now),
            (State::Leasing, Event::Leased(leased)) => self.leased(leased, now),
            (State::Filling, Event::Filled) => State::Fetching,
            (State::Fetching, Event::Fetched(1..)) => State::Completed,
            (State::Fetching, Event::Fetched(0)) => self.nothing(),
            (State::Checking, Event::Checked { reset: true, .. }) if self.resets < RESETS_MAX => {
                self.resets += 1;
                State::Opening
            }
            (State::Checking, Event::Checked { draining, .. }) => match self.want.deadline {
                Some(deadline) if deadline > now && !draining => self.park(deadline, now),
                _ => State::Empty,
            },
            (State::Busy(_), Event::Rested) => State::Resolving,
            (State::Full(_), Event::Rested) => State::Opening,
            (State::Parked { .. }, Event::Woken) => State::Opening,
            (State::Busy(_) | State::Full(_) | State::Parked { .. }, Event::Ended) => State::Empty,
            (state, Event::Failed(failure)) if state.is_at_work() => self.failed(failure, now),
            (state, event) => panic!("a pop in {state:?} cannot meet {event:?}"),
        };
        self.state
    }

    fn leased(&mut self, leased: Leased, now: Instant) -> State {
        self.look.claims += 1;
        self.look.deleted |= leased.deleted;
        if leased.granted > 0 {
            // It asked for as few partitions as were likely to fill the batch.
            let may_take_more = leased.messages < self.want.batch && self.look.asked < self.want.partitions;
            return if may_take_more { State::Filling } else { State::Fetching };
        }
        if leased.busy {
            self.look.busy_since.get_or_insert(now);
        }
        match self.want.source {
            _ if self.look.claims >= CLAIMS_MAX => self.nothing(),
            Source::Queue | Source::Labels => State::Resolving,
            Source::Partition if leased.busy => self.again_if_busy(now),
            Source::Partition => self.nothing(),
        }
    }

    /// A pop that does not wait outlasts a moment's lock. One that waits parks, and is woken when it is time.
    fn again_if_busy(&mut self, now: Instant) -> State {
        let Some(since) = self.look.busy_since.filter(|_| self.want.deadline.is_none()) else {
            return self.nothing();
        };
        let waited = now - since;
        match waited < BUSY_PATIENCE {
            true => State::Busy(waited.clamp(BUSY_PAUSE_MIN, BUSY_PAUSE_MAX)),
            false => self.nothing(),
        }
    }

    fn nothing(&mut self) -> State {
        // The partition behind the name was deleted; there may be a new one by now.
        if self.look.deleted && !std::mem::replace(&mut self.reopened, true) {
            return State::Opening;
        }
        State::Checking
    }

    fn park(&self, deadline: Instant, now: Instant) -> State {
        let until = match self.want.source {
            Source::Labels => deadline.min(now + LABELS_LOOK),
            Source::Partition | Source::Queue => deadline,
        };
        State::Parked { until }
    }

    fn failed(&mut self, failure: Failure, now: Instant) -> State {
        match failure {
            // There may be room again before its time is up.
            Failure::Full if self.state != State::Opening && self.want.deadline > Some(now) => {
                State::Full(FULL_PAUSE)
            }
            // The partition must not keep this pop from other partitions.
            Failure::Unreadable if self.want.source != Source::Partition => {
                self.unreadable += 1;
                if self.unreadable < UNREADABLE_MAX { State::Opening } else { self.nothing() }
            }
            Failure::Full | Failure::Unreadable | Failure::Other => State::Failed,
        }
    }
}

impl State {
    /// Whether it reads or claims, and may fail.
    pub fn is_at_work(self) -> bool {
        match self {
            Self::Opening
            | Self::Resolving
            | Self::Seeding
            | Self::Discovering
            | Self::Doubting
            | Self::Leasing
            | Self::Filling
            | Self::Fetching
            | Self::Checking => true,
            Self::Pending
            | Self::Busy(_)
            | Self::Full(_)
            | Self::Parked { .. }
            | Self::Completed
            | Self::Empty
            | Self::Failed => false,
        }
    }
}

#[cfg(test)]
mod tests;

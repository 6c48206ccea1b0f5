//! The parts of a pop together: in any order of events and hang-ups, no pop stays parked beside a partition that it could
//! claim.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tokio::sync::oneshot::Receiver;
use tokio::sync::oneshot::error::TryRecvError;
use uuid::Uuid;

use super::machine::{Event, Leased, Machine, Source, State, Want};
use super::ready::Claim;
use super::waiter::{Handover, Waiter};
use super::watch::{Interest, Watch};
use crate::clock;
use crate::log::Partition;

const NAMES: [&str; 3] = ["0", "1", "2"];

fn partition(number: usize) -> Arc<Partition> {
    let (id, name) = (Uuid::from_u128(number as u128 + 1), NAMES[number].into());
    Arc::new(Partition { id, number: number as i64, queue: "q".into(), name })
}

/// A partition as the database has it, with the consumer that holds its lease.
#[derive(Clone, Copy, Default)]
struct Row {
    head: i64,
    cursor: i64,
    leased: bool,
}

impl Row {
    fn is_claimable(self) -> bool {
        !self.leased && self.cursor < self.head
    }
}

/// A pop between two steps.
struct Pop {
    machine: Machine,
    name: Option<usize>,
    generation: u64,
    candidates: Vec<Arc<Partition>>,
    /// Results of the database that the ready list does not know yet.
    claims: Vec<(Arc<Partition>, Claim)>,
    granted: Vec<Arc<Partition>>,
    handover: Option<Receiver<Handover>>,
    waiter: Option<Arc<Waiter>>,
}

struct World {
    watch: Arc<Watch>,
    rows: [Row; 3],
    pops: Vec<Pop>,
    now: Instant,
    /// The generation in which the list was read from the database.
    seeded: Option<u64>,
}

impl World {
    fn new() -> Self {
        let watch = Watch::new("q".into(), "g".into(), Arc::default());
        Self { watch, rows: Default::default(), pops: Vec::new(), now: clock::now(), seeded: None }
    }

    fn begin(&mut self, name: Option<usize>) {
        let source = if name.is_some() { Source::Partition } else { Source::Queue };
        let deadline = Some(self.now + Duration::from_secs(3_600));
        let machine = Machine::new(Want { source, batch: 1, partitions: 1, deadline });
        self.pops.push(Pop {
            machine,
            name,
            generation: 0,
            candidates: Vec::new(),
            claims: Vec::new(),
            granted: Vec::new(),
            handover: None,
            waiter: None,
        });
    }

    /// One step of a pop. False: it waits.
    fn step(&mut self, index: usize) -> bool {
        let (watch, now) = (self.watch.clone(), self.now);
        let pop = &mut self.pops[index];
        let event = match pop.machine.state() {
            State::Pending => Event::Start,
            State::Opening => {
                pop.generation = watch.begin_look();
                if self.seeded != Some(watch.generation()) {
                    self.seeded = Some(watch.generation());
                    for (number, row) in self.rows.iter().enumerate().filter(|(_, row)| row.cursor < row.head)
                    {
                        let held = row.leased.then(|| now + Duration::from_secs(60));
                        watch.seed(partition(number), true, held);
                    }
                }
                Event::Opened
            }
            State::Resolving => {
                match pop.name.map(partition) {
                    None => pop.candidates = watch.take(now, 1, 1),
                    Some(wanted) => {
                        if let Some(handover) = &mut pop.handover {
                            match handover.try_recv() {
                                Ok(handover) => {
                                    handover.accept();
                                    pop.candidates.push(wanted.clone());
                                }
                                Err(TryRecvError::Empty) => return false,
                                Err(TryRecvError::Closed) => {}
                            }
                            pop.handover = None;
                        }
                        if pop.candidates.is_empty() {
                            match watch.begin(&wanted) {
                                Ok(()) => pop.candidates.push(wanted),
                                Err(handover) => {
                                    pop.handover = Some(handover);
                                    return false;
                                }
                            }
                        }
                    }
                }
                Event::Resolved(pop.candidates.len())
            }
            State::Seeding => Event::Seeded(false),
            State::Leasing => {
                if let Some(candidate) = pop.candidates.pop() {
                    let row = &mut self.rows[candidate.number as usize];
                    let until = now + Duration::from_secs(60);
                    let claim = match row.leased {
                        true => Claim::Later { at: until },
                        false if row.cursor == row.head => Claim::Nothing,
                        false => {
                            row.leased = true;
                            Claim::Granted { lease: candidate.id, until }
                        }
                    };
                    pop.claims.push((candidate, claim));
                    return true;
                }
                for (claimed, claim) in std::mem::take(&mut pop.claims) {
                    watch.finish(&claimed, claim);
                    if let Claim::Granted { .. } = claim {
                        pop.granted.push(claimed);
                    }
                }
                let granted = pop.granted.len();
                Event::Leased(Leased { granted, messages: granted as i64, ..Leased::default() })
            }
            State::Fetching => Event::Fetched(1),
            State::Checking => {
                Event::Checked { reset: watch.generation() != pop.generation, draining: false }
            }
            State::Parked { .. } => {
                let (interest, id) = (interest(pop.name), pop.name.map(|name| partition(name).id));
                match &pop.waiter {
                    Some(waiter) if waiter.is_waiting() => return false,
                    Some(waiter) => watch.leave(interest, waiter.leave(), true),
                    None => {
                        let waiter: Arc<Waiter> = Arc::default();
                        if watch.park(interest, id, pop.generation, &waiter) {
                            pop.waiter = Some(waiter);
                            return false;
                        }
                        watch.leave(interest, waiter.leave(), true);
                    }
                }
                pop.waiter = None;
                Event::Woken
            }
            state => panic!("{state:?}"),
        };
        let state = pop.machine.next(event, now);
        if matches!(state, State::Completed | State::Empty) {
            self.pops.remove(index);
        }
        true
    }

    /// The client of a pop hangs up.
    fn hang_up(&mut self, index: usize) {
        let mut pop = self.pops.remove(index);
        drop(pop.handover.take());
        if let Some(waiter) = &pop.waiter {
            self.watch.leave(interest(pop.name), waiter.leave(), false);
        }
        for candidate in &pop.candidates {
            self.watch.finish(candidate, Claim::Unused);
        }
        // What is in flight lands, and is given back.
        for (claimed, claim) in pop.claims {
            self.watch.finish(&claimed, claim);
            if let Claim::Granted { .. } = claim {
                pop.granted.push(claimed);
            }
        }
        for granted in pop.granted {
            self.rows[granted.number as usize].leased = false;
            self.watch.released(granted.id, &granted.name, Some(granted.id), true, Some(&granted));
            self.watch.mark(&granted, None);
        }
    }

    fn push(&mut self, number: usize) {
        self.rows[number].head += 1;
        self.watch.mark(&partition(number), None);
    }

    /// An ack by a consumer that has its messages.
    fn ack(&mut self, number: usize) {
        let claimed = self.pops.iter().flat_map(|pop| pop.claims.iter().map(|(claimed, _)| claimed));
        let granted = self.pops.iter().flat_map(|pop| &pop.granted);
        let on_its_way = claimed.chain(granted).any(|partition| partition.number as usize == number);
        let row = &mut self.rows[number];
        if row.leased && !on_its_way {
            (row.leased, row.cursor) = (false, row.cursor + 1);
            let known = partition(number);
            let more = row.cursor < row.head;
            self.watch.released(known.id, &known.name, Some(known.id), more, Some(&known));
        }
    }

    /// Runs until every pop has its message or waits.
    fn rest(&mut self) {
        let mut steps = 0;
        while (0..self.pops.len()).any(|index| self.step(index)) {
            steps += 1;
            assert!(steps < 100_000, "they never come to rest");
        }
    }
}

fn interest(name: Option<usize>) -> Interest<'static> {
    name.map_or(Interest::Any, |name| Interest::Partition(NAMES[name]))
}

proptest! {
    #[test]
    fn no_pop_stays_parked_beside_a_partition_that_it_could_claim(
        acts in prop::collection::vec((0u8..12, 0usize..3, any::<prop::sample::Index>()), 1..120)
    ) {
        let mut world = World::new();
        for (act, number, which) in acts {
            let pop = (!world.pops.is_empty()).then(|| which.index(world.pops.len().max(1)));
            match (act, pop) {
                (0, _) => world.begin(None),
                (1, _) => world.begin(Some(number)),
                (2 | 3, _) => world.push(number),
                (4, _) => world.ack(number),
                (5, _) => world.watch.reset(),
                (6, Some(pop)) => world.hang_up(pop),
                (7.., Some(pop)) => _ = world.step(pop),
                (6.., None) => {}
            }
        }
        world.rest();
        for (number, _) in world.rows.iter().enumerate().filter(|(_, row)| row.is_claimable()) {
            let wants = |pop: &Pop| pop.name.is_none_or(|name| name == number);
            prop_assert!(!world.pops.iter().any(wants), "a pop waits beside partition {number}");
        }
    }
}

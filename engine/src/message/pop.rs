//! Pop: does what the state machine of `pop/machine.rs` decides, from the request to the response.
//!
//! The files of `message/pop/` are its steps, in order: `places` (which queues), `candidates` (which partitions), `lease`,
//! `deliver`; and `park`, if there is nothing.

mod candidates;
mod deliver;
mod lease;
mod park;
mod places;

use std::time::Duration;

use queen_protocol::{PopFilter, PopRequest};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::deliver::TracedDelivery;
use self::places::Place;
use super::claim::{Candidate, Grants};
use crate::Engine;
use crate::clock;
use crate::db::Error as DbError;
use crate::error::Error;
use crate::life;
use crate::pop::answer::Answer;
use crate::pop::machine::{Event, Failure, Machine, Source, State, Want};

impl Engine {
    /// `None`: there is nothing to deliver.
    ///
    /// # Cancel safety
    /// If dropped while parked or queued, the pop takes no lease. If dropped later, the lease it took is given back.
    pub async fn pop(&self, request: PopRequest) -> Result<Option<Answer>, Error> {
        self.pop_until(request, None).await
    }

    /// Like [`Engine::pop`], but stops waiting when `ended` is canceled. Messages claimed by then are still returned.
    pub async fn pop_until(
        &self,
        request: PopRequest,
        ended: Option<&CancellationToken>,
    ) -> Result<Option<Answer>, Error> {
        self.check_open()?;
        let answer = match ended.is_some_and(CancellationToken::is_cancelled) {
            true => None,
            false => Pop::new(self, &request, ended).run().await?,
        };
        if let PopFilter::Queue { queue } | PopFilter::Partition { queue, .. } = &request.filter {
            self.shared.tally.record(queue, |minute| {
                minute.pop_requests += 1;
                minute.pop_empty += u64::from(answer.is_none());
            });
        }
        Ok(answer)
    }
}

/// One request in progress. Small, because many of them are parked.
struct Pop<'a> {
    engine: &'a Engine,
    request: &'a PopRequest,
    ended: Option<&'a CancellationToken>,
    machine: Machine,
    places: Vec<Place>,
}

/// What a pop holds while it is at work. When dropped, candidates go back to their ready lists, and leases to the
/// database.
#[derive(Default)]
struct Held {
    candidates: Vec<Candidate>,
    lease: Uuid,
    grants: Option<Grants>,
    answer: Option<Answer>,
    traced: Vec<TracedDelivery>,
}

impl<'a> Pop<'a> {
    fn new(engine: &'a Engine, request: &'a PopRequest, ended: Option<&'a CancellationToken>) -> Self {
        let (source, partitions) = match request.filter {
            PopFilter::Partition { .. } => (Source::Partition, 1),
            PopFilter::Queue { .. } => (Source::Queue, request.partitions.max(1) as usize),
            PopFilter::Labels { .. } => (Source::Labels, request.partitions.max(1) as usize),
        };
        let deadline = request.wait.map(|wait| clock::now() + wait);
        let want = Want { source, batch: i64::from(request.batch.max(1)), partitions, deadline };
        Self { engine, request, ended, machine: Machine::new(want), places: Vec::new() }
    }

    async fn run(mut self) -> Result<Option<Answer>, Error> {
        self.machine.next(Event::Start, clock::now());
        loop {
            let event = match self.machine.state() {
                State::Empty | State::Completed | State::Failed => return Ok(None),
                State::Parked { until } => self.park(until).await,
                State::Busy(pause) | State::Full(pause) => self.rest(pause).await,
                // Boxed: a parked pop holds none of what it needs at work.
                _ => match Box::pin(self.work()).await? {
                    Some(answer) => return Ok(Some(answer)),
                    None => continue,
                },
            };
            self.machine.next(event, clock::now());
        }
    }

    /// Works until the response is written, or there is nothing to do but wait.
    async fn work(&mut self) -> Result<Option<Answer>, Error> {
        let mut held = Held::default();
        while self.machine.state().is_at_work() {
            match self.step(&mut held).await {
                Ok(event) => _ = self.machine.next(event, clock::now()),
                Err(error) => {
                    if self.machine.next(Event::Failed(failure(&error)), clock::now()) == State::Failed {
                        return Err(error);
                    }
                }
            }
        }
        match self.machine.state() {
            State::Completed => Ok(held.delivered(self.engine)),
            _ => Ok(None),
        }
    }

    async fn step(&mut self, held: &mut Held) -> Result<Event, Error> {
        match self.machine.state() {
            State::Opening => {
                *held = Held::default();
                if self.engine.shared.load.pop_maintenance() {
                    return Ok(Event::Maintenance);
                }
                self.places = self.open().await?;
                Ok(Event::Opened)
            }
            State::Resolving => {
                held.candidates = self.ready().await;
                Ok(Event::Resolved(held.candidates.len()))
            }
            State::Seeding => Ok(Event::Seeded(self.seed().await?)),
            State::Discovering => {
                let shared = &self.engine.shared;
                shared.wake.discover(shared).await?;
                Ok(Event::Discovered)
            }
            State::Doubting => {
                held.candidates = self.believed_leased();
                Ok(Event::Resolved(held.candidates.len()))
            }
            State::Leasing => Ok(Event::Leased(self.lease(held).await?)),
            State::Filling => {
                self.fill(held).await?;
                Ok(Event::Filled)
            }
            State::Fetching => Ok(Event::Fetched(self.deliver(held).await?)),
            State::Checking => {
                let draining =
                    self.machine.want().deadline.is_some() && self.engine.shared.tasks.is_draining();
                Ok(Event::Checked { reset: self.places.iter().any(Place::was_reset), draining })
            }
            state => panic!("a pop in {state:?} has nothing to do"),
        }
    }

    async fn rest(&self, pause: Duration) -> Event {
        tokio::select! {
            () = tokio::time::sleep(pause) => Event::Rested,
            () = cancelled(self.ended) => Event::Ended,
        }
    }
}

impl Held {
    fn delivered(mut self, engine: &Engine) -> Option<Answer> {
        let grants = self.grants.as_mut()?;
        grants.delivered();
        let auto = grants.lease.is_none();
        for (partition, traced) in &self.traced {
            engine.shared.life.note(life::delivered(clock::now(), partition.id, &grants.group, traced, auto));
        }
        self.answer
    }
}

fn failure(error: &Error) -> Failure {
    match error {
        Error::Database(DbError::Full) => Failure::Full,
        Error::Unreadable(_) => Failure::Unreadable,
        _ => Failure::Other,
    }
}

async fn cancelled(token: Option<&CancellationToken>) {
    match token {
        Some(token) => token.cancelled().await,
        None => std::future::pending().await,
    }
}

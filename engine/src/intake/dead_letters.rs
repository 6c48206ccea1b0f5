//! The source of redriven dead letters: their messages are pushed again under new transaction ids, by the hundred and
//! no faster than requested. A redrive belongs to one broker at a time, until that broker has been silent for a while.
//! The marks are the letters, which are deleted, and the redrive's position.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use queen_protocol::{PushResult, PushStatus, Trace};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::{Fault, Source, Undone, parcels};
use crate::Engine;
use crate::clock;
use crate::crypt::Keys;
use crate::db::Connection;
use crate::db::redrive::{self, Letter, Stepped};
use crate::error::{Error, UnreadableMessage};
use crate::log::frames::{Frame, read_string};
use crate::log::ids::replay_id;
use crate::message::append::Behind;
use crate::message::parcel::{Message, Outcome, Parcel, Secrecy};
use crate::message::push;

/// How often a broker looks for redrives; its own requests wake it as well.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Longer than any step and the pause after it.
const HOLD: Duration = Duration::from_secs(15);

/// Redrives that a broker works on at once.
const ACTIVE_MAX: usize = 16;

/// What one transaction takes.
const STEP_LETTERS: i32 = 500;
const STEP_BYTES: i64 = 4 << 20;

pub fn start(engine: &Engine) {
    let mut source = DeadLetters::new(engine);
    let engine = engine.clone();
    engine.shared.tasks.clone().spawn(async move { super::run(&engine.shared, &mut source).await });
}

/// Pushes the message of these letters again, without a redrive.
pub async fn replay(engine: &Engine, letters: Vec<Letter>) -> Result<Option<PushResult>, Undone> {
    let mut batch = Letters { messages: vec![(Place::default(), letters)], ..Letters::default() };
    // Boxed: the future is large, and replays by hand are rare.
    Box::pin(super::enter(&engine.shared, &mut DeadLetters::new(engine), &mut batch)).await?;
    Ok(batch.results.pop())
}

/// A partition and an offset.
type Place = (Uuid, i64);

struct DeadLetters {
    engine: Engine,
    worker: Uuid,
    active: Vec<Active>,
    looked: Instant,
    /// Whether a new pass begins.
    fresh: bool,
}

struct Active {
    id: Uuid,
    due: Instant,
    /// When its last page was read, how many messages it may push a second, and how many it has pushed since.
    began: Instant,
    per_second: u32,
    pushed: u32,
}

#[derive(Default)]
struct Letters {
    /// With the places of their messages, in order. Letters of one message are together: it is pushed once.
    messages: Vec<(Place, Vec<Letter>)>,
    /// `None`: one message, replayed by hand.
    step: Option<Step>,
    /// The letters that are deleted.
    ids: Vec<Uuid>,
    parcels: Vec<Parcel>,
    /// The positions of each parcel's messages.
    members: Vec<Vec<usize>>,
    results: Vec<PushResult>,
}

/// What a batch does to its redrive.
struct Step {
    id: Uuid,
    from: Place,
    to: Place,
    failed: i64,
    error: Option<String>,
    finished: bool,
}

impl DeadLetters {
    fn new(engine: &Engine) -> Self {
        let looked = clock::now();
        let (engine, worker) = (engine.clone(), Uuid::now_v7());
        Self { engine, worker, active: Vec::new(), looked, fresh: true }
    }

    async fn claim(&mut self) {
        let free = ACTIVE_MAX - self.active.len();
        if free == 0 {
            return;
        }
        let connections = &self.engine.shared.connections;
        match redrive::claim_redrives(connections, self.worker, HOLD, free as i32).await {
            Ok(claimed) => {
                let now = clock::now();
                self.active.retain(|active| !claimed.contains(&active.id));
                let active = |id| Active { id, due: now, began: now, per_second: 1, pushed: 0 };
                self.active.extend(claimed.into_iter().map(active));
            }
            Err(error) => debug!(%error, "redrives will be looked for again"),
        }
    }

    /// Updates a redrive without pushing anything: letters stay where they are, or it is finished, or only kept
    /// claimed.
    async fn step(&mut self, step: Step) -> Result<(), Undone> {
        let shared = self.engine.shared.clone();
        super::enter(&shared, self, &mut Letters { step: Some(step), ..Letters::default() }).await
    }
}

impl Active {
    /// Each message takes its share of a second, counted from when the page was read.
    fn pace(&mut self, pushed: usize) {
        self.pushed += pushed as u32;
        self.due = self.began + Duration::from_secs(1) * self.pushed / self.per_second;
    }
}

impl Step {
    fn at(id: Uuid, from: Place) -> Self {
        Self { id, from, to: from, failed: 0, error: None, finished: false }
    }
}

impl Source for DeadLetters {
    const NAME: &'static str = "dead letters";
    const BEHIND: Behind = Behind::Report;
    type Batch = Letters;

    async fn take(&mut self) -> Result<Option<Letters>, Undone> {
        let fresh = std::mem::take(&mut self.fresh);
        // Even if some redrive is always due.
        if clock::now() - self.looked >= LOOK_EVERY || fresh && self.active.is_empty() {
            self.looked = clock::now();
            self.claim().await;
        }
        let now = clock::now();
        loop {
            // The one that has waited longest.
            let due = self.active.iter_mut().filter(|active| active.due <= now);
            let Some(active) = due.min_by_key(|active| active.due) else { return Ok(None) };
            // Until `pace` sets it, once something has been pushed.
            (active.due, active.began, active.pushed) = (now + LOOK_EVERY, now, 0);
            let id = active.id;
            let connections = &self.engine.shared.connections;
            let found =
                redrive::redrive_letters(connections, id, self.worker, STEP_LETTERS, STEP_BYTES).await?;
            let Some(found) = found else {
                self.active.retain(|active| active.id != id);
                continue;
            };
            active.per_second = found.per_second.max(1) as u32;
            let mut messages: Vec<(Place, Vec<Letter>)> = Vec::new();
            for (place, letter) in found.letters {
                match messages.last_mut() {
                    Some((last, letters)) if *last == place => letters.push(letter),
                    _ => messages.push((place, vec![letter])),
                }
            }
            // A second's worth at most, so that the pause behind it is short.
            messages.truncate(active.per_second as usize);
            let mut step = Step::at(id, found.stands);
            let Some(((partition, offset), _)) = messages.last() else {
                step.finished = true;
                self.step(step).await?;
                info!(redrive = %id, "a redrive is done");
                self.active.retain(|active| active.id != id);
                continue;
            };
            step.to = (*partition, offset + 1);
            return Ok(Some(Letters { messages, step: Some(step), ..Letters::default() }));
        }
    }

    async fn prepare(&self, batch: &mut Letters) -> Result<(), Undone> {
        let mut snapshots: Vec<Snapshot<'_>> = Vec::with_capacity(batch.messages.len());
        batch.ids.clear();
        for (_, letters) in &batch.messages {
            // A letter that cannot be parsed stays where it is. One encrypted with an unknown key fails the batch.
            let keys = &self.engine.shared.config.keys;
            if let Some(snapshot) = letters.first().and_then(|first| Snapshot::of(first, keys)) {
                snapshots.push(snapshot?);
                batch.ids.extend(letters.iter().map(|letter| letter.id));
            }
        }
        let messages: Vec<Message<'_>> = snapshots.iter().map(Snapshot::message).collect();
        if self.engine.spool_holds(&messages) {
            return Err(Undone::Behind);
        }
        (batch.members, batch.parcels) = parcels(&self.engine, &messages).await?;
        let results = messages.iter().enumerate();
        let results = results.map(|(index, message)| push::result(index, message, PushStatus::Queued));
        batch.results = results.collect();
        Ok(())
    }

    fn parcels(batch: &Letters) -> &[Parcel] {
        &batch.parcels
    }

    /// The redrive is locked first, then heads, then dead letters.
    async fn hold(&self, db: &Connection, batch: &mut Letters) -> Result<(), Undone> {
        match &batch.step {
            Some(step) if !redrive::hold_redrive(db, step.id, self.worker, step.from).await? => {
                Err(Undone::Changed)
            }
            _ => Ok(()),
        }
    }

    async fn done(&self, db: &Connection, batch: &mut Letters, outcomes: Vec<Outcome>) -> Result<(), Undone> {
        let Letters { messages, step, ids, parcels, members, results } = batch;
        for ((parcel, members), outcome) in parcels.iter().zip(members).zip(outcomes) {
            let Outcome::Stored(placed) = outcome else { return Err(Undone::Changed) };
            for (index, placed) in members.iter().zip(placed) {
                results[*index].message_id = placed.id;
                results[*index].partition_id = parcel.partition.id;
            }
        }
        if !ids.is_empty() && redrive::drop_letters(db, ids).await? != ids.len() as i64 {
            return Err(Undone::Changed);
        }
        let Some(step) = step else { return Ok(()) };
        let stepped = Stepped {
            stands: step.to,
            done: count(messages),
            failed: step.failed,
            error: step.error.as_deref(),
            finished: step.finished,
        };
        Ok(redrive::step_redrive(db, step.id, &stepped, HOLD).await?)
    }

    fn landed(&mut self, batch: &Letters) {
        let Some(step) = batch.step.as_ref().filter(|_| !batch.messages.is_empty()) else { return };
        let active = self.active.iter_mut().find(|active| active.id == step.id);
        active.into_iter().for_each(|active| active.pace(batch.results.len()));
    }

    fn split(&self, batch: Letters, fault: Fault) -> Result<Vec<Letters>, Letters> {
        let Some(step) = batch.step.as_ref().filter(|_| fault == Fault::Own && batch.messages.len() > 1)
        else {
            return Err(batch);
        };
        let (id, mut from) = (step.id, step.from);
        let alone = |message: (Place, Vec<Letter>)| {
            let (partition, offset) = message.0;
            let to = (partition, offset + 1);
            let step = Step { to, ..Step::at(id, std::mem::replace(&mut from, to)) };
            Letters { messages: vec![message], step: Some(step), ..Letters::default() }
        };
        Ok(batch.messages.into_iter().map(alone).collect())
    }

    async fn refuse(&mut self, item: Letters, error: &Error) -> Result<(), Undone> {
        let Some(step) = item.step else { return Ok(()) };
        let id = step.id;
        warn!(redrive = %id, %error, "a dead letter cannot be replayed and stays");
        self.step(Step { failed: count(&item.messages), error: Some(error.public_text()), ..step }).await?;
        self.active.iter_mut().filter(|active| active.id == id).for_each(|active| active.pace(0));
        Ok(())
    }

    /// Keeps the redrive, so that no other broker takes it over meanwhile. Later letters wait as well: the position
    /// cannot pass this batch.
    async fn later(&mut self, batch: Letters, why: Undone) -> Result<(), Undone> {
        if let Some(step) = batch.step {
            self.step(Step::at(step.id, step.from)).await?;
        }
        Err(why)
    }

    async fn wait(&mut self, ended: Result<(), Undone>) {
        self.fresh = true;
        if let Err(Undone::Changed) = ended {
            // Letters were deleted by hand, or the redrive was canceled or taken over.
            let last = self.active.iter_mut().max_by_key(|active| active.began);
            last.into_iter().for_each(|active| active.due = active.began);
        }
        let look = clock::now() + LOOK_EVERY;
        let due = self
            .active
            .iter()
            .map(|active| active.due)
            .min()
            .filter(|_| !self.engine.shared.load.maintenance());
        tokio::select! {
            () = tokio::time::sleep_until(due.map_or(look, |due| due.min(look)).into()) => {}
            () = self.engine.shared.redrives.notified() => {}
        }
    }

    fn lock_wait(&self, batch: &Letters) -> Option<Duration> {
        batch.step.as_ref().map(|_| super::LOCK_WAIT)
    }
}

fn count(messages: &[(Place, Vec<Letter>)]) -> i64 {
    messages.iter().map(|(_, letters)| letters.len() as i64).sum()
}

/// What a dead letter contains about its message.
struct Snapshot<'a> {
    queue: &'a str,
    partition: &'a str,
    transaction_id: String,
    trace_id: Option<Uuid>,
    trace: Option<(String, Option<String>)>,
    producer_sub: Option<String>,
    encrypted: bool,
    payload: Cow<'a, str>,
}

impl<'a> Snapshot<'a> {
    fn of(letter: &'a Letter, keys: &Keys) -> Option<Result<Self, Error>> {
        let frame = Frame::parse(&letter.frame)?;
        let payload = match frame.open(keys) {
            Ok(payload) => payload,
            Err(cause) => {
                return Some(Err(Error::Unreadable(Box::new(UnreadableMessage {
                    queue: letter.queue.clone(),
                    partition: letter.partition.clone(),
                    transaction_id: read_string(frame.transaction_id),
                    cause,
                }))));
            }
        };
        Some(Ok(Self {
            queue: &letter.queue,
            partition: &letter.partition,
            transaction_id: replay_id(&read_string(frame.transaction_id)),
            trace_id: frame.trace_id.and_then(|id| Uuid::try_parse(&read_string(id)).ok()),
            trace: frame.trace_parent.map(|parent| (read_string(parent), frame.trace_state.map(read_string))),
            producer_sub: frame.producer_sub.map(read_string),
            encrypted: frame.key_id.is_some(),
            payload,
        }))
    }

    fn message(&self) -> Message<'_> {
        Message {
            trace_id: self.trace_id,
            trace: self.trace.as_ref().and_then(|(parent, state)| Trace::parse(parent, state.as_deref())),
            producer_sub: self.producer_sub.as_deref(),
            // While a required key is missing, the dead letter stays.
            secrecy: if self.encrypted { Secrecy::Kept } else { Secrecy::Waiting },
            ..Message::accepted(self.queue, self.partition, &self.transaction_id, &self.payload)
        }
    }
}

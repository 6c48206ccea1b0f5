//! Redrives: replays dead letters by the hundred, step by step and no faster than asked for. Every broker runs this; a
//! redrive is one broker's at a time, until it has not been heard of for a while. A step replays its letters and writes
//! down how far it is in one transaction, so whoever takes over goes on exactly there.

use std::time::{Duration, Instant};

use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::Engine;
use crate::admin::redrive::{Step, Tried};
use crate::clock;
use crate::db::redrive::{self, Letter, RedriveStep, Stepped};
use crate::db::transaction;
use crate::error::Error;

/// How often a broker asks whether there is something to do; it is also told by its own requests.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Longer than any step takes, and than the pause behind it.
const HOLD: Duration = Duration::from_secs(15);

/// Redrives a broker works on at once, in turns.
const ACTIVE_MAX: usize = 16;

/// What one transaction replays.
const STEP_LETTERS: i32 = 500;
const STEP_BYTES: i64 = 4 << 20;

struct Active {
    id: Uuid,
    due: Instant,
    /// Letters of the next step; 1 after one has failed, to find out which it was.
    letters: i32,
}

struct Worker {
    engine: Engine,
    id: Uuid,
    active: Vec<Active>,
}

/// What a step has come to.
enum Turn {
    /// Not before this much time has passed.
    Pause(Duration),
    /// The same again, one letter at a time.
    Alone,
    /// Nothing is left to do here.
    Over,
}

pub fn start(engine: &Engine) {
    let tasks = engine.shared.tasks.clone();
    let mut worker = Worker { engine: engine.clone(), id: Uuid::now_v7(), active: Vec::new() };
    // Not dropped in the middle of a transaction: its connection goes back to the others.
    engine.shared.tasks.spawn(async move {
        let mut looked = clock::now();
        while !tasks.is_stopping() {
            tokio::select! {
                () = tasks.stopping() => return,
                () = worker.wait() => {}
            }
            if worker.active.is_empty() || clock::now() - looked >= LOOK_EVERY {
                looked = clock::now();
                worker.claim().await;
            }
            worker.work().await;
        }
    });
}

impl Worker {
    async fn wait(&self) {
        let look = clock::now() + LOOK_EVERY;
        let next = self.active.iter().map(|active| active.due).min().map_or(look, |due| due.min(look));
        tokio::select! {
            () = tokio::time::sleep_until(next.into()) => {}
            () = self.engine.shared.redrives.notified() => {}
        }
    }

    async fn claim(&mut self) {
        let free = ACTIVE_MAX - self.active.len();
        if free == 0 {
            return;
        }
        let connections = &self.engine.shared.connections;
        match redrive::claim_redrives(connections, self.id, HOLD, free as i32).await {
            Ok(claimed) => {
                let due = clock::now();
                self.active.retain(|active| !claimed.contains(&active.id));
                self.active.extend(claimed.into_iter().map(|id| Active { id, due, letters: STEP_LETTERS }));
            }
            Err(error) => debug!(%error, "redrives will be looked for again"),
        }
    }

    /// One step of each that is due.
    async fn work(&mut self) {
        let mut index = 0;
        while index < self.active.len() && !self.engine.shared.tasks.is_stopping() {
            let now = clock::now();
            let active = &self.active[index];
            if active.due > now {
                index += 1;
                continue;
            }
            let turn = self.step(active.id, active.letters).await.unwrap_or_else(|error| {
                debug!(%error, redrive = %active.id, "a redrive will be tried again");
                Turn::Pause(LOOK_EVERY)
            });
            let active = &mut self.active[index];
            match turn {
                Turn::Pause(pause) => {
                    active.due = now + pause;
                    active.letters = STEP_LETTERS;
                }
                Turn::Alone => active.letters = 1,
                Turn::Over => {
                    self.active.swap_remove(index);
                    continue;
                }
            }
            index += 1;
        }
    }

    async fn step(&self, id: Uuid, letters_max: i32) -> Result<Turn, Error> {
        let shared = &self.engine.shared;
        // Somebody works on the database: pushes wait, so do these.
        if shared.load.maintenance() {
            return Ok(Turn::Pause(LOOK_EVERY));
        }
        let read =
            redrive::redrive_letters(&shared.connections, id, self.id, letters_max, STEP_BYTES).await?;
        let Some(mut found) = read else { return Ok(Turn::Over) };
        // A second's worth at most, so that the pause behind it is short.
        keep_messages(&mut found);
        let Some(((partition, offset), _)) = found.letters.last() else {
            self.settle(id, &found, 0, None, true).await?;
            info!(redrive = %id, "a redrive is done");
            return Ok(Turn::Over);
        };
        let done = found.letters.len() as i64;
        let stepped =
            Stepped { stands: (*partition, offset + 1), done, failed: 0, error: None, finished: false };
        let step = Step { id, worker: self.id, stands: found.stands, stepped, hold: HOLD };
        let letters: Vec<Vec<Letter>> = found
            .letters
            .chunk_by(|(a, _), (b, _)| a == b)
            .map(|same| same.iter().map(|(_, letter)| letter.clone()).collect())
            .collect();
        let letters: Vec<&[Letter]> = letters.iter().map(Vec::as_slice).collect();
        match self.engine.replay(&letters, Some(&step)).await {
            Ok(Tried::Done(pushed)) => {
                let pause = Duration::from_secs(1) * pushed.len() as u32 / found.per_second.max(1) as u32;
                Ok(Turn::Pause(pause))
            }
            Ok(Tried::Behind) => {
                self.settle(id, &found, 0, None, false).await?;
                Ok(Turn::Pause(LOOK_EVERY))
            }
            // Looked at again at once: letters were deleted by hand, or it was cancelled or taken over.
            Ok(Tried::Changed | Tried::Gone) => Ok(Turn::Pause(Duration::ZERO)),
            Err(error) if is_final(&error) && letters.len() > 1 => {
                debug!(%error, redrive = %id, "the letters of a step are tried one by one");
                Ok(Turn::Alone)
            }
            Err(error) if is_final(&error) => {
                warn!(redrive = %id, %error, "a dead letter cannot be replayed and stays");
                self.settle(id, &found, done, Some(&error.public_text()), false).await?;
                Ok(Turn::Alone)
            }
            Err(error) => Err(error),
        }
    }

    /// Writes down a step that replays nothing: these letters stay where they are, or it is over, or it goes on later.
    async fn settle(
        &self,
        id: Uuid,
        found: &RedriveStep,
        failed: i64,
        error: Option<&str>,
        finished: bool,
    ) -> Result<(), Error> {
        let shared = &self.engine.shared;
        let stands = match (failed, found.letters.last()) {
            (1.., Some(((partition, offset), _))) => (*partition, offset + 1),
            _ => found.stands,
        };
        let stepped = Stepped { stands, done: 0, failed, error, finished };
        let db = shared.connections.acquire().await?;
        let number = transaction::begin(&db).await?;
        let settled = async {
            match redrive::hold_redrive(&db, id, self.id, found.stands).await? {
                true => redrive::step_redrive(&db, id, &stepped, HOLD).await,
                false => Ok(()),
            }
        };
        if let Err(error) = settled.await {
            transaction::rollback(&db).await;
            return Err(error.into());
        }
        Ok(transaction::commit(&db, shared.connections.connector(), &number, shared.config.retry_for).await?)
    }
}

/// Trying again would not help: a letter that the log refuses, or that cannot be decrypted.
fn is_final(error: &Error) -> bool {
    match error {
        Error::Database(error) => error.is_data(),
        Error::Unreadable(_) | Error::NoKey | Error::KeyRequired(_) => true,
        _ => false,
    }
}

/// The letters of as many messages as may be replayed in a second.
fn keep_messages(found: &mut RedriveStep) {
    let messages = found.letters.chunk_by(|(a, _), (b, _)| a == b);
    let kept = messages.take(found.per_second.max(1) as usize).map(<[_]>::len).sum();
    found.letters.truncate(kept);
}

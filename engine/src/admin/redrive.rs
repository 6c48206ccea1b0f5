//! Redriving dead letters: one by hand, or many as a job, which `intake/dead_letters.rs` carries out.

use queen_protocol::PushResult;
use uuid::Uuid;

use crate::Engine;
use crate::clock;
use crate::db::Error as DbError;
use crate::db::redrive::{self, NotAdded, Redrive, RedriveAsk};
use crate::error::Error;
use crate::intake::{self, Undone};

/// How often a replay looks its letters and partitions up again after they changed under it.
const ROUNDS_MAX: usize = 5;

#[derive(Debug)]
pub struct Replayed {
    pub queue: String,
    pub partition: String,
    pub push: PushResult,
}

impl Engine {
    /// Pushes the message of a dead letter again. `None`: there is no such dead letter.
    pub async fn replay_message(
        &self,
        partition: Uuid,
        transaction: &str,
    ) -> Result<Option<Replayed>, Error> {
        let (engine, transaction) = (self.clone(), transaction.to_owned());
        self.to_its_end(async move { engine.replay_in_rounds(partition, &transaction).await }).await
    }

    async fn replay_in_rounds(&self, partition: Uuid, transaction: &str) -> Result<Option<Replayed>, Error> {
        let started = clock::now();
        let mut rounds = 0;
        while rounds < ROUNDS_MAX {
            let letters = redrive::letters_of(&self.shared.connections, partition, transaction).await?;
            let Some(first) = letters.first() else { return Ok(None) };
            let (queue, partition) = (first.queue.clone(), first.partition.clone());
            match intake::replay(self, letters).await {
                Ok(push) => return Ok(push.map(|push| Replayed { queue, partition, push })),
                Err(Undone::Behind) => self.wait_behind(started).await?,
                Err(Undone::Changed) => rounds += 1,
                Err(Undone::Failed(error)) => return Err(error),
            }
        }
        Err(DbError::Changed("the dead letter kept changing while it was replayed").into())
    }

    /// How many dead letters match; `None`: no such queue.
    pub async fn count_redrive(&self, ask: &RedriveAsk) -> Result<Option<i64>, Error> {
        self.check_open()?;
        Ok(redrive::count_redrive(&self.shared.reads, ask).await?.map(|counted| counted.total))
    }

    /// Starts to replay all that match, as a job that one of the brokers runs. `None`: no such queue.
    pub async fn start_redrive(&self, ask: &RedriveAsk) -> Result<Option<Redrive>, Error> {
        self.check_open()?;
        // Counting may take long, which the connections of the message plane do not allow.
        let Some(counted) = redrive::count_redrive(&self.shared.reads, ask).await? else { return Ok(None) };
        let (engine, ask, id) = (self.clone(), ask.clone(), Uuid::now_v7());
        let added = self.to_its_end(async move {
            let shared = &engine.shared;
            match redrive::add_redrive(&shared.connections, id, &ask, counted).await? {
                Ok(()) => shared.redrives.notify_one(),
                Err(NotAdded::NoQueue) => return Ok(false),
                Err(NotAdded::QueueLimit) => return Err(Error::QueueLimit(shared.config.queues_max)),
                Err(NotAdded::NoTarget) => return Err(Error::NoQueue(ask.target_queue.unwrap_or_default())),
            }
            Ok(true)
        });
        match added.await? {
            true => self.redrive(id).await,
            false => Ok(None),
        }
    }

    pub async fn redrive(&self, id: Uuid) -> Result<Option<Redrive>, Error> {
        Ok(redrive::redrives(&self.shared.reads, Some(id), 1, 0).await?.pop())
    }

    /// The newest first.
    pub async fn redrives(&self, limit: i64, offset: i64) -> Result<Vec<Redrive>, Error> {
        Ok(redrive::redrives(&self.shared.reads, None, limit, offset).await?)
    }

    /// Ends a redrive after the step under way; a finished one stays as it is. `None`: there is no such redrive.
    pub async fn cancel_redrive(&self, id: Uuid) -> Result<Option<Redrive>, Error> {
        let engine = self.clone();
        self.to_its_end(async move { Ok(redrive::cancel_redrive(&engine.shared.connections, id).await?) })
            .await?;
        self.redrive(id).await
    }
}

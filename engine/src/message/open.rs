//! Open: turns names into partitions, which the first push creates. Looked up together, remembered in the directory.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use crate::db::procedures::{self, Answer, Found, Locked, Refusal};
use crate::db::{Connection, Error as DbError, Priority};
use crate::directory::Known;
use crate::log::{Partition, ids};
use crate::shared::Shared;
use crate::sidecar::{Operation, landed};
use crate::{Engine, Error};

/// A partition that is needed; namespace and task matter only if its queue is new.
#[derive(Debug, Clone)]
pub struct Open {
    pub queue: Arc<str>,
    pub partition: Arc<str>,
    pub namespace: Option<Arc<str>>,
    pub task: Option<Arc<str>>,
    /// `None`: create it regardless of limits, because its messages were accepted before.
    pub create: Option<bool>,
}

/// What was found or created.
#[derive(Debug, Clone)]
pub enum Opened {
    Known(Known),
    /// It does not exist and was not to be created, or it was deleted at the moment it was created.
    Absent,
    /// A limit forbids creating it.
    Refused(Refusal),
}

impl Opened {
    pub fn known(self) -> Option<Known> {
        match self {
            Self::Known(known) => Some(known),
            Self::Absent | Self::Refused(_) => None,
        }
    }
}

impl Engine {
    /// In the order asked.
    pub(super) async fn open(&self, wanted: Vec<Open>) -> Result<Vec<Opened>, Error> {
        let names = wanted.iter().map(|open| (open.queue.as_ref(), open.partition.as_ref()));
        let found = self.shared.directory.find(names);
        let mut found: Vec<Opened> =
            found.into_iter().map(|known| known.map_or(Opened::Absent, Opened::Known)).collect();
        let mut waiting = Vec::new();
        for (index, open) in wanted.into_iter().enumerate() {
            if matches!(found[index], Opened::Absent) {
                waiting.push((index, self.lanes.open.enqueue(open)?));
            }
        }
        for (index, answer) in waiting {
            found[index] = landed(answer).await?.ok_or(DbError::Busy)?;
        }
        Ok(found)
    }
}

impl Operation for Open {
    const NAME: &'static str = "open";
    const PRIORITY: Priority = Priority::Push;
    const MERGED_MAX: usize = usize::MAX;
    /// Two flights creating one partition would wait for each other.
    type Key = (Arc<str>, Arc<str>);
    /// `None`: another session has locked a row that this needs.
    type Output = Option<Opened>;
    type Context = Shared;

    fn key(&self) -> Self::Key {
        (self.queue.clone(), self.partition.clone())
    }

    fn items(&self) -> usize {
        1
    }

    fn bytes(&self) -> usize {
        0
    }

    fn left(opened: &Option<Opened>) -> Option<DbError> {
        opened.is_none().then_some(DbError::Busy)
    }

    async fn call(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
    ) -> Result<Vec<Option<Opened>>, DbError> {
        open(shared, db, batch, Locked::Skip).await
    }

    async fn call_waiting(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Option<Opened>>, DbError> {
        open(shared, db, batch, Locked::WaitFor(patience)).await
    }
}

async fn open(
    shared: &Shared,
    db: &Connection,
    batch: &[Open],
    locked: Locked,
) -> Result<Vec<Option<Opened>>, DbError> {
    let changes = shared.directory.changes();
    let mut ask = procedures::Open::default();
    for open in batch {
        open.ask(ids::partition_id(), &mut ask);
    }
    let mut opened = vec![Some(Opened::Absent); batch.len()];
    for procedures::Opened { position, answer } in procedures::open(db, &ask, locked).await? {
        opened[position] = match answer {
            Answer::Refused(refusal) => Some(Opened::Refused(refusal)),
            Answer::Locked => None,
            Answer::Found(row) => {
                let made = ask.ids[position] == row.id;
                let known = batch[position].known(&row);
                learn(shared, known.clone(), made, changes);
                Some(Opened::Known(known))
            }
        };
    }
    Ok(opened)
}

impl Open {
    /// Adds it to the call; `id`: for the partition, should it be new.
    pub(super) fn ask<'a>(&'a self, id: Uuid, ask: &mut procedures::Open<'a>) {
        ask.queues.push(&self.queue);
        ask.partitions.push(&self.partition);
        ask.ids.push(id);
        ask.namespaces.push(self.namespace.as_deref());
        ask.tasks.push(self.task.as_deref());
        ask.create.push(self.create);
    }

    pub(super) fn known(&self, row: &Found) -> Known {
        let (queue, name) = (self.queue.clone(), self.partition.clone());
        let partition = Partition { id: row.id, number: row.number, queue, name };
        Known {
            partition: Arc::new(partition),
            dedup_seconds: row.dedup_seconds,
            encrypted: row.encrypted,
            head: row.head,
        }
    }
}

/// After the commit. `made`: we created it; `changes`: of the directory, from before the lookup.
pub(super) fn learn(shared: &Shared, known: Known, made: bool, changes: u64) {
    let queue = &known.partition.queue;
    if made {
        shared.tally.record(queue, |minute| minute.partitions_created += 1);
    }
    if known.encrypted && !shared.config.keys.can_seal() && !shared.config.encryption_required {
        shared.troubles.stored_plain(queue);
    }
    shared.directory.learn(known, changes);
}

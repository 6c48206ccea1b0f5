//! Renew: a lease id names its partitions, so any broker can extend it.

use std::sync::Arc;
use std::time::Duration;

use queen_protocol::{LeaseId, Renewed, format_micros};
use uuid::Uuid;

use crate::Engine;
use crate::db::procedures::{self, Locked};
use crate::db::{Connection, Error as DbError, Priority};
use crate::error::Error;
use crate::shared::Shared;
use crate::sidecar::Operation;

impl Engine {
    /// Extends every live partition lease of this id; never shortens one.
    pub async fn renew(&self, lease_id: &str, seconds: i32) -> Result<Renewed, Error> {
        self.check_open()?;
        let known = LeaseId::parse(lease_id).filter(|lease| !lease.partitions.is_empty());
        let Some(lease) = known else { return Ok(Renewed::new(lease_id.to_owned(), 0, None)) };
        let renew = self.lanes.renew.submit(Renew { lease, seconds }).await?;
        let (renewed, until) = renew.ok_or(DbError::Busy)?;
        Ok(Renewed::new(lease_id.to_owned(), renewed, until.map(format_micros)))
    }
}

pub struct Renew {
    lease: LeaseId,
    seconds: i32,
}

impl Operation for Renew {
    const NAME: &'static str = "renew";
    const PRIORITY: Priority = Priority::Consume;
    const MERGED_MAX: usize = 1;
    type Key = Uuid;
    /// How many partition leases were renewed, and the earliest new end. `None`: one of them is locked.
    type Output = Option<(usize, Option<i64>)>;
    type Context = Shared;

    fn key(&self) -> Uuid {
        self.lease.id
    }

    fn items(&self) -> usize {
        self.lease.partitions.len()
    }

    fn bytes(&self) -> usize {
        0
    }

    fn left(output: &Self::Output) -> Option<DbError> {
        output.is_none().then_some(DbError::Busy)
    }

    async fn call(_: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Self::Output>, DbError> {
        extend(db, batch, Locked::Skip).await
    }

    async fn call_waiting(
        _: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Self::Output>, DbError> {
        extend(db, batch, Locked::WaitFor(patience)).await
    }
}

async fn extend(
    db: &Connection,
    batch: &[Renew],
    locked: Locked,
) -> Result<Vec<Option<(usize, Option<i64>)>>, DbError> {
    let (mut leases, mut numbers, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
    for renew in batch {
        for number in &renew.lease.partitions {
            leases.push(renew.lease.id);
            numbers.push(*number);
            seconds.push(renew.seconds);
        }
    }
    let extended = procedures::renew(db, &leases, &numbers, &seconds, locked).await?;
    let one = |renew: &Renew| {
        let own = extended.iter().filter(|(lease, _)| *lease == renew.lease.id);
        let ends: Option<Vec<i64>> = own.map(|(_, until)| *until).collect();
        ends.map(|ends| (ends.len(), ends.into_iter().min()))
    };
    Ok(batch.iter().map(one).collect())
}

//! Renew: a lease id names its partitions, so any broker can extend it.

use std::sync::Arc;

use queen_protocol::{LeaseId, Renewed, format_micros};
use uuid::Uuid;

use crate::Engine;
use crate::db::procedures;
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
        let (renewed, until) = self.lanes.renew.submit(Renew { lease, seconds }).await?;
        Ok(Renewed::new(lease_id.to_owned(), renewed, until.map(format_micros)))
    }
}

pub struct Renew {
    lease: LeaseId,
    seconds: i32,
}

impl Operation for Renew {
    const NAME: &'static str = "renew";
    const PRIORITY: Priority = Priority::Turn;
    const MERGED_MAX: usize = 1;
    type Key = Uuid;
    /// How many partition leases, and the earliest new end.
    type Output = (usize, Option<i64>);
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

    async fn call(_: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Self::Output>, DbError> {
        let (mut leases, mut numbers, mut seconds) = (Vec::new(), Vec::new(), Vec::new());
        for renew in batch {
            for number in &renew.lease.partitions {
                leases.push(renew.lease.id);
                numbers.push(*number);
                seconds.push(renew.seconds);
            }
        }
        let extended = procedures::renew(db, &leases, &numbers, &seconds).await?;
        let one = |renew: &Self| {
            let own = extended.iter().filter(|(lease, _)| *lease == renew.lease.id).map(|(_, until)| *until);
            (own.clone().count(), own.min())
        };
        Ok(batch.iter().map(one).collect())
    }
}

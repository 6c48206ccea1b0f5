//! The lane of consumers. Acks and claims share its flights, because a consumer that acknowledges is about to claim,
//! and one flight fewer is one commit fewer.

use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::ack_outcome::AckOutcome;
use super::claim::{Claimed, Claiming, PopClaim};
use super::locate::Ack;
use super::settle::Settling;
use crate::db::procedures::{self, Locked};
use crate::db::{Connection, Error, Priority};
use crate::shared::Shared;
use crate::sidecar::Operation;

/// The kinds of entries, by their places in `KINDS`.
const ACK: usize = 0;
const CLAIM: usize = 1;

/// An entry of the lane.
pub enum Consume {
    Ack(Ack),
    Claim(PopClaim),
}

pub enum Consumed {
    Ack(AckOutcome),
    /// Nothing was done about it, although other entries of its flight were done: it flies again.
    Left(Error),
    /// Not applied, because deferred acks are ahead of it.
    Behind(Box<Ack>),
    Claim(Claimed),
}

impl Consumed {
    pub fn into_ack(self) -> Result<AckOutcome, Error> {
        match self {
            Self::Ack(outcome) => Ok(outcome),
            Self::Left(error) => Err(error),
            Self::Claim(_) | Self::Behind(_) => Err(Error::Stopping),
        }
    }

    pub fn into_claim(self) -> Result<Claimed, Error> {
        match self {
            Self::Claim(claimed) => Ok(claimed),
            Self::Left(error) => Err(error),
            Self::Ack(_) | Self::Behind(_) => Err(Error::Stopping),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// Acks of one cursor keep their order.
    Cursor(Uuid, Arc<str>),
    /// Ready lists ensure that no partition is claimed twice at once, so claims do not exclude each other.
    Claim(u64),
}

impl Operation for Consume {
    const NAME: &'static str = "consume";
    const KINDS: &'static [&'static str] = &["ack", "pop"];
    const PRIORITY: Priority = Priority::Consume;
    const MERGED_MAX: usize = usize::MAX;
    /// Out of five hundred concurrent pops, the first are answered while the database still works on the last.
    const ITEMS_MAX: usize = 128;
    type Key = Key;
    type Output = Consumed;
    type Context = Shared;

    fn kind(&self) -> usize {
        match self {
            Self::Ack(_) => ACK,
            Self::Claim(_) => CLAIM,
        }
    }

    fn key(&self) -> Key {
        match self {
            Self::Ack(ack) => Key::Cursor(ack.partition, ack.group.clone()),
            Self::Claim(claim) => Key::Claim(claim.number),
        }
    }

    fn items(&self) -> usize {
        match self {
            Self::Ack(_) => 1,
            Self::Claim(claim) => claim.candidates.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Ack(ack) => ack.items.len() * 16,
            Self::Claim(_) => 0,
        }
    }

    fn left(consumed: &Consumed) -> Option<Error> {
        match consumed {
            Consumed::Left(error) => Some(error.clone()),
            _ => None,
        }
    }

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Consumed>, Error> {
        fly(shared, db, batch, Locked::Skip).await
    }

    async fn call_waiting(
        shared: &Arc<Shared>,
        db: &Connection,
        batch: &[Self],
        patience: Duration,
    ) -> Result<Vec<Consumed>, Error> {
        fly(shared, db, batch, Locked::WaitFor(patience)).await
    }
}

/// Each statement is committed by itself. After the first commit the flight is not repeated: what could not be done is
/// left.
async fn fly(
    shared: &Arc<Shared>,
    db: &Connection,
    batch: &[Consume],
    locked: Locked,
) -> Result<Vec<Consumed>, Error> {
    let (mut acks, mut claims) = (Vec::new(), Vec::new());
    for entry in batch {
        match entry {
            Consume::Ack(ack) => acks.push(ack),
            Consume::Claim(claim) => claims.push(claim),
        }
    }
    let (mut settling, claiming) = (Settling::new(shared, acks), Claiming::new(shared, claims));
    let claims = !claiming.ask.partitions.is_empty();
    let mut leased = None;
    let mut failure = None;
    while let Some(round) = settling.round() {
        // A flight that may wait has a single cursor, and asks for it alone.
        let plain = round.plain && locked == Locked::Skip;
        let answered = if plain && claims {
            procedures::complete_and_lease(db, &round.completions(), &claiming.ask).await.map(
                |(completed, granted)| {
                    settling.completed(&round, &completed);
                    leased = Some(granted);
                },
            )
        } else if plain {
            procedures::complete(db, &round.completions())
                .await
                .map(|completed| settling.completed(&round, &completed))
        } else {
            procedures::settle_unlocked(db, &round.ask(), locked)
                .await
                .map(|(answers, busy)| settling.acked(&round, &answers, &busy))
        };
        if let Err(error) = answered {
            if settling.is_untouched() && leased.is_none() {
                return Err(error);
            }
            failure = Some(error);
            break;
        }
    }
    let leased = match leased {
        Some(leased) => Ok(leased),
        None if !claims => Ok(Vec::new()),
        None => match &failure {
            Some(error) if error.ends_connection() => Err(error.clone()),
            _ => procedures::lease(db, &claiming.ask).await,
        },
    };
    let claimed = match leased {
        Ok(leased) => Ok(claiming.landed(shared, leased)),
        Err(error) if settling.is_untouched() => return Err(error),
        Err(error) => Err(error),
    };
    let moved = || Error::Changed("the cursor kept moving while messages were acknowledged");
    let mut acked = settling.outcomes().into_iter();
    let mut claimed = claimed.map(Vec::into_iter);
    let consumed = batch.iter().map(|entry| match entry {
        Consume::Ack(ack) => acked.next().map(|outcome| match outcome {
            Some(outcome) if outcome.behind => Consumed::Behind(Box::new(ack.clone())),
            Some(outcome) => Consumed::Ack(outcome),
            None if settling.is_busy(ack) => Consumed::Left(Error::Busy),
            None => Consumed::Left(failure.clone().unwrap_or_else(moved)),
        }),
        Consume::Claim(_) => match &mut claimed {
            Ok(claimed) => claimed.next().map(Consumed::Claim),
            Err(error) => Some(Consumed::Left(error.clone())),
        },
    });
    Ok(consumed.flatten().collect())
}

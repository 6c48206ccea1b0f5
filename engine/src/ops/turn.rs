//! Turn: what consumers ask for. Acks and claims share their flights, because who acknowledges is about to claim, and a
//! flight less is a commit less.

use std::sync::Arc;

use uuid::Uuid;

use super::ack::{Ack, AckOutcome};
use super::claim::{Claimed, Claiming, Grants, PopClaim};
use super::settle::Settling;
use crate::db::procedures;
use crate::db::{Connection, Error, Priority};
use crate::shared::Shared;
use crate::sidecar::Operation;

/// The kinds of entries, for who counts them.
pub const ACK: usize = 0;
pub const CLAIM: usize = 1;

/// An entry of the lane.
pub enum Turn {
    Ack(Ack),
    Claim(PopClaim),
}

pub enum Done {
    Ack(AckOutcome),
    /// Not settled, and the flight could not be repeated, because its claims were granted: to be sent again.
    Open(Box<Ack>, Error),
    /// Not settled, because deferred acks are ahead of it.
    Behind(Box<Ack>),
    Claim(Claimed),
}

impl Done {
    pub fn into_ack(self) -> Result<AckOutcome, Error> {
        match self {
            Self::Ack(outcome) => Ok(outcome),
            Self::Open(_, error) => Err(error),
            Self::Claim(_) | Self::Behind(_) => Err(Error::Stopping),
        }
    }

    pub fn into_claim(self) -> Result<Claimed, Error> {
        match self {
            Self::Claim(claimed) => Ok(claimed),
            Self::Ack(_) | Self::Open(..) | Self::Behind(_) => Err(Error::Stopping),
        }
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// Acks of one cursor keep their order.
    Cursor(Uuid, Arc<str>),
    /// Ready lists see to it that no partition is claimed twice at once, so no two claims exclude each other.
    Claim(u64),
}

impl Operation for Turn {
    const NAME: &'static str = "turn";
    const KINDS: usize = 2;
    const PRIORITY: Priority = Priority::Turn;
    const MERGED_MAX: usize = usize::MAX;
    /// Of five hundred pops at once, the first are answered while the database still works on the last.
    const ITEMS_MAX: usize = 128;
    type Key = Key;
    type Output = Done;
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

    async fn call(shared: &Arc<Shared>, db: &Connection, batch: &[Self]) -> Result<Vec<Done>, Error> {
        let (mut acks, mut claims) = (Vec::new(), Vec::new());
        for turn in batch {
            match turn {
                Self::Ack(ack) => acks.push(ack),
                Self::Claim(claim) => claims.push(claim),
            }
        }
        let (mut settling, claiming) = (Settling::new(shared, acks), Claiming::new(shared, claims));
        let claims = !claiming.ask.partitions.is_empty();
        let mut leased = None;
        if let Some(round) = settling.round() {
            if round.plain && claims {
                let (completed, granted) = procedures::turn(db, &round.completions(), &claiming.ask).await?;
                settling.completed(&round, &completed);
                leased = Some(granted);
            } else if round.plain {
                settling.completed(&round, &procedures::complete(db, &round.completions()).await?);
            } else {
                settling.acked(&round, &procedures::ack(db, &round.ask()).await?);
            }
        }
        let mut failure = None;
        while let Some(round) = settling.round() {
            match procedures::ack(db, &round.ask()).await {
                Ok(answers) => settling.acked(&round, &answers),
                // With claims granted already, the flight must not be repeated.
                Err(error) if leased.is_some() => {
                    failure = Some(error);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let leased = match leased {
            Some(leased) => leased,
            None if claims => procedures::lease(db, &claiming.ask).await?,
            None => Vec::new(),
        };
        let mut claimed = claiming.landed(shared, leased).into_iter();
        let mut acked = settling.outcomes().into_iter();
        let failure = failure.unwrap_or_else(|| Error::Lost("a cursor kept moving under an ack".to_owned()));
        let done = batch.iter().map(|turn| match turn {
            Self::Ack(ack) => acked.next().map(|outcome| match outcome {
                Some(outcome) if outcome.behind => Done::Behind(Box::new(ack.clone())),
                Some(outcome) => Done::Ack(outcome),
                None => Done::Open(Box::new(ack.clone()), failure.clone()),
            }),
            Self::Claim(_) => claimed.next().map(Done::Claim),
        });
        Ok(done.flatten().collect())
    }

    fn orphaned(shared: &Arc<Shared>, output: Done) {
        if let Done::Claim(claimed) = output {
            drop(Grants::new(shared, claimed));
        }
    }
}

//! Claims candidates through the lane that pops share with acks (`message/consume.rs`).

use std::sync::atomic::Ordering::Relaxed;

use uuid::Uuid;

use super::{Held, Pop};
use crate::clock;
use crate::error::Error;
use crate::message::claim::{Candidate, Claimed, PopClaim};
use crate::message::consume::Consume;
use crate::pop::machine::Leased;

impl Pop<'_> {
    pub(super) async fn lease(&self, held: &mut Held) -> Result<Leased, Error> {
        held.lease = Uuid::now_v7();
        let want = self.machine.want();
        let candidates = std::mem::take(&mut held.candidates);
        let Claimed { grants, busy, deleted } =
            self.claim(held.lease, candidates, want.batch, want.partitions).await?;
        let (granted, messages) = (grants.claims.len(), grants.messages());
        if want.partitions > 1 && granted > 0 {
            self.places.iter().for_each(|place| place.watch.yielded(messages, granted));
        }
        held.grants = Some(grants);
        Ok(Leased { granted, messages, busy, deleted })
    }

    /// If the claimed partitions hold less than a batch, fills it up from others.
    pub(super) async fn fill(&self, held: &mut Held) -> Result<(), Error> {
        let Some(grants) = &mut held.grants else { return Ok(()) };
        let want = self.machine.want();
        let (batch, partitions) = (want.batch - grants.messages(), want.partitions - grants.claims.len());
        let (now, mut candidates) = (clock::now(), Vec::new());
        for place in &self.places {
            let taken = place.watch.take(now, partitions - candidates.len(), batch);
            candidates.extend(taken.into_iter().map(|p| Candidate::new(place.watch.clone(), p)));
        }
        // A watch that was reset meanwhile hands out partitions that this pop holds, which would be granted once more.
        candidates.retain(|candidate| !candidate.is_held(grants));
        if !candidates.is_empty() {
            let mut claimed = self.claim(held.lease, candidates, batch, partitions).await?;
            grants.claims.append(&mut claimed.grants.claims);
        }
        Ok(())
    }

    /// What is not granted goes back to its ready list.
    async fn claim(
        &self,
        lease: Uuid,
        candidates: Vec<Candidate>,
        batch: i64,
        partitions: usize,
    ) -> Result<Claimed, Error> {
        let claim = PopClaim {
            number: self.engine.claims.fetch_add(1, Relaxed),
            candidates,
            group: self.request.group.as_str().into(),
            lease,
            seconds: self.request.lease_seconds,
            batch: batch as i32,
            partitions_max: partitions as i32,
            auto: self.request.auto_ack,
        };
        Ok(self.engine.lanes.consume.submit(Consume::Claim(claim)).await?.into_claim()?)
    }
}

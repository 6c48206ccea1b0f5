//! Which partitions a pop asks the database for: those that look ready, or the one it names.

use super::Pop;
use super::places::Place;
use crate::clock;
use crate::message::claim::Candidate;
use crate::pop::machine::Source;

/// Partitions believed to be leased that a pop asks for before it answers "empty".
const LEASED_LOOK_MAX: usize = 64;

impl Pop<'_> {
    /// As many as a batch is likely to need.
    pub(super) async fn ready(&self) -> Vec<Candidate> {
        let want = self.machine.want();
        if want.source == Source::Partition {
            return named(&self.places).await.into_iter().collect();
        }
        let (now, mut candidates) = (clock::now(), Vec::new());
        for place in &self.places {
            let likely = place.watch.likely(want.batch, want.partitions - candidates.len());
            let taken = place.watch.take(now, likely, want.batch);
            candidates.extend(taken.into_iter().map(|p| Candidate::new(place.watch.clone(), p)));
            if candidates.len() == want.partitions {
                break;
            }
        }
        candidates
    }

    /// Partitions that other brokers may have released, or other sessions unlocked.
    pub(super) fn believed_leased(&self) -> Vec<Candidate> {
        let mut candidates = Vec::new();
        let has_peers = self.engine.shared.wake.has_peers();
        if has_peers || self.places.iter().any(|place| place.watch.has_busy()) {
            for place in &self.places {
                let leased = place.watch.take_leased(LEASED_LOOK_MAX - candidates.len());
                candidates.extend(leased.into_iter().map(|p| Candidate::new(place.watch.clone(), p)));
            }
        }
        candidates
    }
}

/// The named partition, once no other pop of this broker is claiming it. `None`: it does not exist.
async fn named(places: &[Place]) -> Option<Candidate> {
    let place = places.first()?;
    let partition = place.partition.clone()?;
    loop {
        match place.watch.begin(&partition) {
            Ok(()) => return Some(Candidate::new(place.watch.clone(), partition)),
            Err(handover) => {
                if let Ok(handover) = handover.await {
                    handover.accept();
                    return Some(Candidate::new(place.watch.clone(), partition));
                }
            }
        }
    }
}

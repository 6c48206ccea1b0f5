//! A parked pop: it waits in memory and holds no connection.

use std::sync::Arc;
use std::time::Instant;

use super::places::Place;
use super::{Pop, cancelled};
use crate::pop::machine::Event;
use crate::pop::waiter::Waiter;

impl Pop<'_> {
    /// Waits until something may be ready or the time is up. A pop that was woken and does not look, because it was ended or
    /// its client hung up, wakes the next one in its place.
    pub(super) async fn park(&self, until: Instant) -> Event {
        let waiter: Arc<Waiter> = Arc::default();
        let parked = Parked { places: &self.places, waiter: &waiter, looks: false };
        for place in &self.places {
            let id = place.partition.as_ref().map(|partition| partition.id);
            if !place.watch.park(place.interest(), id, place.generation, &waiter) {
                return parked.look();
            }
        }
        tokio::select! {
            () = waiter.woken() => parked.look(),
            () = tokio::time::sleep_until(until.into()) => parked.look(),
            () = self.engine.shared.tasks.draining() => parked.look(),
            () = cancelled(self.ended) => Event::Ended,
        }
    }
}

/// Leaves the watches however the parked pop ends.
struct Parked<'a> {
    places: &'a [Place],
    waiter: &'a Arc<Waiter>,
    looks: bool,
}

impl Parked<'_> {
    fn look(mut self) -> Event {
        self.looks = true;
        Event::Woken
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        let woken = self.waiter.leave();
        for place in self.places {
            place.watch.leave(place.interest(), woken, self.looks);
        }
    }
}

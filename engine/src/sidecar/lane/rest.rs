//! Entries that were left out of their flight because a row they need is locked: when they fly again, and how.
//!
//! Brokers hold locks for milliseconds, so the first pauses are short. A row that another session has locked for long
//! must not cost much, however many entries wait for it: the pauses double, and end at the same moments for all.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Entry, Inner, Operation, State};
use crate::clock;

const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(128);

/// How often an entry is left out, a quarter of a second in all, before it waits for its row in PostgreSQL's own
/// queue: waiting sessions pass a lock on to each other, so an entry that only looks may never find it free.
const TRIES: u32 = 8;

/// How long it waits there. Then it only looks for a while, and another entry may wait in its place.
pub const WAIT: Duration = Duration::from_secs(1);

impl<O: Operation> Inner<O> {
    /// Puts entries that were left out of a flight back to the front of their queues, until their pause is over.
    /// Returns their keys.
    pub(super) fn rest(self: &Arc<Self>, state: &mut State<O>, left: Vec<Entry<O>>) -> Vec<O::Key> {
        let now = clock::now();
        let mut resting: Vec<(O::Key, Vec<Entry<O>>)> = Vec::new();
        for entry in left {
            let key = entry.operation.key();
            match resting.last_mut() {
                Some((last, entries)) if *last == key => entries.push(entry),
                _ => resting.push((key, vec![entry])),
            }
        }
        let mut keys = Vec::with_capacity(resting.len());
        for (key, entries) in resting {
            let tries = entries.iter().map(|entry| entry.ticket.tries).max().unwrap_or(0);
            let until = until(self.epoch, now, tries);
            let entries = entries.into_iter().map(|entry| {
                let (items, bytes) = (entry.operation.items().max(1), entry.operation.bytes());
                // A lock is not load: no entry counts as late before its pause is over.
                (Entry { arrived: until, ..entry }, items, bytes)
            });
            state.batcher.put_back(&key, entries.collect());
            self.tasks.spawn(self.clone().resume(key.clone(), until, tries));
            keys.push(key);
        }
        keys
    }

    /// Boxed, because it may rest again.
    fn resume(
        self: Arc<Self>,
        key: O::Key,
        until: Instant,
        tries: u32,
    ) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(async move {
            tokio::time::sleep_until(until.into()).await;
            let entries = {
                let mut state = self.lock();
                if !waits(tries) || state.waits {
                    state.batcher.landed(&key);
                    return self.open_slot(&mut state);
                }
                state.waits = true;
                state.batcher.take_put_back(&key, self.limits)
            };
            self.carry(self.connections.acquire().await, vec![key], entries, true).await;
            let mut state = self.lock();
            state.waits = false;
            self.open_slot(&mut state);
        })
    }
}

/// When an entry that was left out for the `tries`th time flies again: between one pause and two from now.
fn until(epoch: Instant, now: Instant, tries: u32) -> Instant {
    let pause = PAUSE_MIN.saturating_mul(1 << tries.saturating_sub(1).min(16)).min(PAUSE_MAX);
    let passed = now.saturating_duration_since(epoch).as_nanos() / pause.as_nanos();
    let pauses = u32::try_from(passed + 2).unwrap_or(u32::MAX);
    (epoch + pause * pauses).max(now + pause)
}

/// Whether the entry waits for its row the next time.
fn waits(tries: u32) -> bool {
    tries >= TRIES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_limit_and_end_together() {
        let epoch = clock::now();
        let now = epoch + Duration::from_micros(77_777);
        let pause = |tries| until(epoch, now, tries) - now;
        assert!(pause(1) >= PAUSE_MIN && pause(1) <= 2 * PAUSE_MIN);
        assert!((1..30).all(|tries| pause(tries) >= PAUSE_MIN && pause(tries) <= 2 * PAUSE_MAX));
        assert!(pause(8) >= PAUSE_MAX && pause(100) >= PAUSE_MAX);
        let later = now + Duration::from_millis(20);
        assert_eq!(until(epoch, now, 9), until(epoch, later, 12), "one flight for both");
    }

    #[test]
    fn a_broker_that_runs_for_years_still_pauses() {
        let epoch = clock::now();
        let now = epoch + Duration::from_secs(10 * 365 * 86_400);
        for tries in [1, 8] {
            let at = until(epoch, now, tries);
            assert!(at > now && at - now <= 2 * PAUSE_MAX);
        }
    }
}

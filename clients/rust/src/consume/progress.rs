//! Progress of a consumer: limit, idle time and summary, shared by its workers.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// What a consumer has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Summary {
    /// Messages handled successfully while the lease was held.
    pub handled: u64,
    /// Messages that failed, or could not be decoded.
    pub failed: u64,
    /// Pops that returned messages.
    pub batches: u64,
}

/// A worker's next step.
#[derive(Debug, PartialEq, Eq)]
pub enum Turn {
    /// Pop at most this many messages, and wait at most this long.
    Pop(u32, Option<Duration>),
    /// Other workers have reserved the rest of the limit, and may return some of it.
    Wait,
    End,
}

pub struct Progress {
    state: Mutex<State>,
    changed: Notify,
}

struct State {
    /// The part of the limit that is not reserved.
    left: Option<u64>,
    /// Reserved and not settled.
    taken: u64,
    /// Number of workers with messages.
    busy: usize,
    /// When a worker last had messages.
    last: Instant,
    idle_timeout: Option<Duration>,
    summary: Summary,
}

impl Progress {
    pub fn new(limit: Option<u64>, idle_timeout: Option<Duration>, now: Instant) -> Self {
        let summary = Summary::default();
        let state = State { left: limit, taken: 0, busy: 0, last: now, idle_timeout, summary };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is reserved here is returned by [`Progress::settle`].
    pub fn turn(&self, batch: u32, now: Instant) -> Turn {
        self.state().turn(batch, now)
    }

    /// Remaining idle time. `None` without an idle timeout, or while a worker has messages.
    pub fn idle_left(&self, now: Instant) -> Option<Duration> {
        self.state().idle_left(now)
    }

    /// Waits until a worker settles. Keep it while asking for the next turn, otherwise a change may be missed.
    pub fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// A worker has messages.
    pub fn begin(&self) {
        let mut state = self.state();
        state.busy += 1;
        state.summary.batches += 1;
    }

    /// A worker is done with its messages.
    pub fn end(&self, handled: u64, failed: u64, now: Instant) {
        let mut state = self.state();
        state.busy -= 1;
        state.last = now;
        state.summary.handled += handled;
        state.summary.failed += failed;
    }

    /// How much of the reservation was used.
    pub fn settle(&self, taken: u32, used: u64) {
        let mut state = self.state();
        let taken = u64::from(taken);
        state.taken -= taken;
        if let Some(left) = &mut state.left {
            *left += taken.saturating_sub(used);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    pub fn summary(&self) -> Summary {
        self.state().summary
    }
}

impl State {
    fn idle_left(&self, now: Instant) -> Option<Duration> {
        let idle = self.idle_timeout.filter(|_| self.busy == 0)?;
        Some(idle.saturating_sub(now.saturating_duration_since(self.last)))
    }

    fn turn(&mut self, batch: u32, now: Instant) -> Turn {
        let wait = match self.idle_left(now) {
            None => self.idle_timeout,
            Some(Duration::ZERO) => return Turn::End,
            left => left,
        };
        let take = match self.left {
            None => batch,
            Some(0) if self.taken > 0 => return Turn::Wait,
            Some(0) => return Turn::End,
            Some(left) => batch.min(u32::try_from(left).unwrap_or(u32::MAX)),
        };
        self.taken += u64::from(take);
        self.left = self.left.map(|left| left - u64::from(take));
        Turn::Pop(take, wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn workers_never_take_more_than_the_limit_and_bring_back_what_they_did_not_use() {
        let now = clock::now();
        let progress = Progress::new(Some(5), None, now);
        assert_eq!(progress.turn(3, now), Turn::Pop(3, None));
        assert_eq!(progress.turn(3, now), Turn::Pop(2, None));
        assert_eq!(progress.turn(3, now), Turn::Wait);
        progress.settle(3, 1);
        assert_eq!(progress.turn(3, now), Turn::Pop(2, None));
        progress.settle(2, 2);
        progress.settle(2, 2);
        assert_eq!(progress.turn(3, now), Turn::End);
    }

    #[test]
    fn a_consumer_is_idle_only_when_none_of_its_workers_has_messages() {
        let start = clock::now();
        let progress = Progress::new(None, Some(2 * SECOND), start);
        assert_eq!(progress.turn(1, start + SECOND), Turn::Pop(1, Some(SECOND)));
        progress.begin();
        assert_eq!(progress.turn(1, start + 5 * SECOND), Turn::Pop(1, Some(2 * SECOND)));
        assert_eq!(progress.idle_left(start + 5 * SECOND), None);
        progress.end(1, 0, start + 6 * SECOND);
        assert_eq!(progress.turn(1, start + 7 * SECOND), Turn::Pop(1, Some(SECOND)));
        assert_eq!(progress.idle_left(start + 7 * SECOND), Some(SECOND));
        assert_eq!(progress.turn(1, start + 8 * SECOND), Turn::End);
        assert_eq!(progress.summary(), Summary { handled: 1, failed: 0, batches: 1 });
    }
}

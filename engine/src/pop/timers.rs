//! When each watch has to look again. One task sleeps for all of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::AcqRel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Instant;

use tokio::sync::Notify;

use super::watch::Watch;
use crate::clock;

#[derive(Default)]
pub struct Timers {
    due: Mutex<BTreeMap<(Instant, u64), Weak<Watch>>>,
    counter: AtomicU64,
    changed: Notify,
}

impl Timers {
    pub fn arm(&self, at: Instant, watch: &Arc<Watch>) {
        let number = self.counter.fetch_add(1, AcqRel);
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let earliest = due.first_key_value().is_none_or(|((first, _), _)| at < *first);
        due.insert((at, number), Arc::downgrade(watch));
        if earliest {
            self.changed.notify_one();
        }
    }

    /// The watches whose time has come, and when the next one does.
    fn fire(&self, now: Instant) -> (Vec<Arc<Watch>>, Option<Instant>) {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let mut fired = Vec::new();
        while let Some(entry) = due.first_entry()
            && entry.key().0 <= now
        {
            fired.extend(entry.remove().upgrade());
        }
        (fired, due.first_key_value().map(|((at, _), _)| *at))
    }

    pub async fn run(&self) {
        loop {
            let now = clock::now();
            let (fired, next) = self.fire(now);
            for watch in fired {
                watch.tick(now);
            }
            match next {
                Some(at) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(at.into()) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }
}

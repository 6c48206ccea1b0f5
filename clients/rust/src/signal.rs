//! A one-time event with many observers; checking it is cheap enough to do for every message.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tokio::sync::Notify;

#[derive(Debug, Default)]
pub struct Signal {
    given: AtomicBool,
    changed: Notify,
}

impl Signal {
    pub fn give(&self) {
        self.given.store(true, SeqCst);
        self.changed.notify_waiters();
    }

    pub fn is_given(&self) -> bool {
        self.given.load(SeqCst)
    }

    /// Returns once the event has happened.
    pub async fn given(&self) {
        loop {
            // Created before checking, so that no notification is missed.
            let changed = self.changed.notified();
            if self.is_given() {
                return;
            }
            changed.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_observer_sees_the_event() {
        let signal = Signal::default();
        assert!(!signal.is_given());
        tokio::join!(signal.given(), signal.given(), async { signal.give() });
        signal.given().await;
        assert!(signal.is_given());
    }
}

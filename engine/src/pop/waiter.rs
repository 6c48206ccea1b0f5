//! What a watch hands to a pop that waits: a wake-up to one that is parked, or the partition itself to one that names it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::AcqRel, Ordering::Acquire};

use tokio::sync::Notify;

use super::ready::Claim;
use super::watch::Watch;
use crate::log::Partition;

const WAITING: u8 = 0;
const WOKEN: u8 = 1;
const LEFT: u8 = 2;

/// A parked pop. It may wait in several watches at once.
#[derive(Default)]
pub struct Waiter {
    state: AtomicU8,
    notify: Notify,
}

impl Waiter {
    /// False if it was already woken or has left.
    pub(super) fn wake(&self) -> bool {
        let woken = self.state.compare_exchange(WAITING, WOKEN, AcqRel, Acquire).is_ok();
        if woken {
            self.notify.notify_one();
        }
        woken
    }

    pub async fn woken(&self) {
        self.notify.notified().await;
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.state.load(Acquire) == WAITING
    }

    /// Called once for all of its watches, before it leaves them. True if something has woken it.
    pub fn leave(&self) -> bool {
        self.state.swap(LEFT, AcqRel) == WOKEN
    }

    #[cfg(test)]
    pub(super) fn is_woken(&self) -> bool {
        self.state.load(Acquire) == WOKEN
    }
}

/// A partition that goes from a claim that has ended to the pop that has waited longest for it, so that no other pop
/// gets ahead. If that pop has left meanwhile, the next one gets it.
pub struct Handover(Option<(Arc<Watch>, Arc<Partition>)>);

impl Handover {
    pub(super) fn new(watch: &Arc<Watch>, partition: &Arc<Partition>) -> Self {
        Self(Some((watch.clone(), partition.clone())))
    }

    /// From now on the partition is being claimed, until `Watch::finish`.
    pub fn accept(mut self) {
        self.0 = None;
    }
}

impl Drop for Handover {
    fn drop(&mut self) {
        if let Some((watch, partition)) = self.0.take() {
            watch.finish(&partition, Claim::Unused);
        }
    }
}

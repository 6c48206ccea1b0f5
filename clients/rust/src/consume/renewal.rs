//! Renews the leases of a consumer while batches are being handled. One task for all workers, so that a batch that is done
//! quickly costs only a table entry.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use crate::clock;
use crate::consume::Signals;
use crate::delivery::Batch;
use crate::error::ErrorKind;
use crate::log;
use crate::message;
use crate::on_error::OnError;
use crate::queen::Shared;

/// Minimum interval for short leases: a busy broker needs some time.
const ATTEMPT_MIN: Duration = Duration::from_millis(250);

pub struct Renewals {
    shared: Arc<Shared>,
    on_error: OnError,
    table: Mutex<Table>,
    wake: Notify,
}

impl Renewals {
    pub fn new(shared: Arc<Shared>, on_error: OnError) -> Arc<Self> {
        Arc::new(Self { shared, on_error, table: Mutex::default(), wake: Notify::new() })
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews the lease until the guard is dropped. The guard's holders see when the lease is lost.
    pub fn hold(self: &Arc<Self>, batch: &Arc<Batch>, signals: Arc<Signals>) -> Held {
        let lease = Lease::new(batch.clone(), signals, clock::now());
        let (key, is_first) = self.table().insert(lease);
        if is_first {
            self.wake.notify_one();
        }
        Held { renewals: self.clone(), key }
    }

    /// Never returns. Dropping it cancels pending renewals.
    pub async fn run(self: Arc<Self>) {
        let mut renewing = JoinSet::new();
        loop {
            let next = self.table().sleep();
            match next {
                None => self.wake.notified().await,
                Some(at) => tokio::select! {
                    () = sleep_until(at) => {}
                    () = self.wake.notified() => {}
                },
            }
            while renewing.try_join_next().is_some() {}
            let due = self.table().due(clock::now());
            for (key, lease) in due {
                renewing.spawn(self.clone().renew(key, lease));
            }
        }
    }

    async fn renew(self: Arc<Self>, key: u64, due: Due) {
        let (sent, Due { batch, ends }) = (clock::now(), due);
        let left = ends.saturating_duration_since(sent).max(Duration::from_millis(100));
        let attempt = patience(batch.lease_seconds, self.shared.timeout);
        let (id, broker, seconds) = (batch.lease_id(), batch.broker, batch.lease_seconds);
        let renewed = message::renew(&self.shared, id, broker, seconds, attempt, left).await;
        let outcome = match &renewed {
            Ok(_) => Outcome::Kept { sent },
            Err(error) if matches!(error.kind(), ErrorKind::Refused | ErrorKind::NotFound) => Outcome::Gone,
            Err(_) => Outcome::Unknown,
        };
        let is_lost = self.table().renewed(key, outcome, clock::now());
        self.wake.notify_one();
        // Errors of a batch that is done by now do not matter.
        if let (Err(error), Some(is_lost)) = (renewed, is_lost) {
            self.on_error.tell(&error, || log::renewal_failed(&batch, &error, is_lost));
        }
    }
}

/// A broker that hangs must leave time for another one.
fn patience(lease_seconds: u64, usual: Duration) -> Duration {
    usual.min((Duration::from_secs(lease_seconds) / 6).max(ATTEMPT_MIN))
}

/// Guard of a renewed lease.
pub struct Held {
    renewals: Arc<Renewals>,
    key: u64,
}

impl Held {
    /// The whole batch is being acknowledged, which ends the lease regularly.
    pub fn settling(&self) {
        if let Some(lease) = self.renewals.table().leases.get_mut(&self.key) {
            lease.settling = true;
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.renewals.table().leases.remove(&self.key);
    }
}

#[derive(Clone, Copy)]
enum Outcome {
    Kept { sent: Instant },
    Gone,
    Unknown,
}

struct Due {
    batch: Arc<Batch>,
    ends: Instant,
}

/// All leases, and when to renew each.
#[derive(Default)]
struct Table {
    leases: HashMap<u64, Lease>,
    last: u64,
    /// When the task wakes up. `None`: only when notified.
    asleep: Option<Instant>,
}

struct Lease {
    batch: Arc<Batch>,
    /// When to renew it. `None`: being renewed, or lost.
    due: Option<Instant>,
    ends: Instant,
    /// See [`Held::settling`].
    settling: bool,
    signals: Arc<Signals>,
}

impl Lease {
    fn new(batch: Arc<Batch>, signals: Arc<Signals>, now: Instant) -> Self {
        let mut lease = Self { batch, due: None, ends: now, settling: false, signals };
        lease.lasts_from(now);
        lease
    }

    fn lasts_from(&mut self, now: Instant) {
        (self.due, self.ends) = (Some(clock::after(now, self.time() / 3)), clock::after(now, self.time()));
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.batch.lease_seconds)
    }

    /// Whether the lease still matters.
    fn is_over(&self) -> bool {
        self.settling || self.batch.is_settled()
    }
}

impl Table {
    /// Whether the task has to be woken for it.
    fn insert(&mut self, lease: Lease) -> (u64, bool) {
        let early = match (self.asleep, lease.due) {
            (Some(asleep), Some(due)) => due < asleep,
            _ => true,
        };
        self.last += 1;
        self.leases.insert(self.last, lease);
        (self.last, early)
    }

    /// When to look again. Removed leases do not wake the task.
    fn sleep(&mut self) -> Option<Instant> {
        self.asleep = self.leases.values().filter_map(|lease| lease.due).min();
        self.asleep
    }

    fn due(&mut self, now: Instant) -> Vec<(u64, Due)> {
        let mut due = Vec::new();
        for (&key, lease) in &mut self.leases {
            if lease.due.is_some_and(|due| due <= now) {
                lease.due = None;
                // A handler that has acknowledged everything may still be running.
                if !lease.batch.is_settled() {
                    due.push((key, Due { batch: lease.batch.clone(), ends: lease.ends }));
                }
            }
        }
        due
    }

    /// Whether to report it as lost, if it still matters.
    fn renewed(&mut self, key: u64, outcome: Outcome, now: Instant) -> Option<bool> {
        let lease = self.leases.get_mut(&key)?;
        match outcome {
            Outcome::Kept { sent } => lease.lasts_from(sent),
            Outcome::Unknown if now < lease.ends => lease.due = Some(clock::after(now, lease.time() / 10)),
            Outcome::Gone | Outcome::Unknown if lease.is_over() => return None,
            Outcome::Gone | Outcome::Unknown => lease.signals.lost.give(),
        }
        Some(lease.signals.lost.is_given())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delivery::Settled;
    use crate::signal::Signal;

    const THIRD: Duration = Duration::from_secs(10);

    fn lasting(seconds: u64, now: Instant) -> Lease {
        let batch = crate::delivery::tests::batch(&format!(
            r#"{{"leaseId":"L","leaseSeconds":{seconds},"messages":[
                {{"id":"1","transactionId":"t1","data":1,"partitionId":"p"}},
                {{"id":"2","transactionId":"t2","data":2,"partitionId":"p"}}]}}"#
        ));
        let signals = Arc::new(Signals { lost: Signal::default(), stop: Arc::default() });
        Lease::new(batch, signals, now)
    }

    fn lease(now: Instant) -> Lease {
        lasting(30, now)
    }

    #[test]
    fn a_lease_is_extended_whenever_a_third_of_it_has_passed() {
        let (mut table, now) = (Table::default(), clock::now());
        let (key, first) = table.insert(lease(now));
        assert!(first);
        assert_eq!(table.sleep(), Some(now + THIRD));
        assert!(table.due(now + THIRD - Duration::from_millis(1)).is_empty());
        assert_eq!(table.due(now + THIRD).len(), 1);
        // Only one renewal at a time, however long it takes.
        assert!(table.due(now + THIRD).is_empty() && table.sleep().is_none());
        assert_eq!(table.renewed(key, Outcome::Kept { sent: now + THIRD }, now + THIRD), Some(false));
        assert_eq!(table.sleep(), Some(now + 2 * THIRD));
        assert_eq!(table.leases[&key].ends, now + 4 * THIRD);
    }

    #[test]
    fn a_lease_is_lost_when_the_broker_says_so_or_its_time_is_over() {
        let (mut table, now) = (Table::default(), clock::now());
        let ((gone, _), (unknown, _)) = (table.insert(lease(now)), table.insert(lease(now)));
        table.renewed(gone, Outcome::Gone, now + THIRD);
        assert!(table.leases[&gone].signals.lost.is_given());
        table.renewed(unknown, Outcome::Unknown, now + THIRD);
        assert!(!table.leases[&unknown].signals.lost.is_given() && table.leases[&unknown].due.is_some());
        table.renewed(unknown, Outcome::Unknown, now + 3 * THIRD);
        assert!(table.leases[&unknown].signals.lost.is_given());
        table.leases.remove(&gone);
        assert_eq!(table.renewed(gone, Outcome::Gone, now), None);
    }

    #[test]
    fn short_batches_do_not_wake_the_task_while_a_look_is_due_anyway() {
        let (mut table, now) = (Table::default(), clock::now());
        table.insert(lease(now));
        table.sleep();
        for n in 1..100 {
            let (key, early) = table.insert(lease(now + Duration::from_millis(n)));
            assert!(!early);
            table.leases.remove(&key);
        }
        assert!(table.insert(lasting(1, now)).1);
    }

    #[test]
    fn a_lease_whose_messages_were_all_acknowledged_is_neither_extended_nor_lost() {
        let (mut table, now) = (Table::default(), clock::now());
        let (key, _) = table.insert(lease(now));
        table.leases[&key].batch.settle(0, Settled::Done);
        assert_eq!(table.due(now + THIRD).len(), 1, "one is left");
        // Meanwhile the handler acknowledges the other one too.
        table.leases[&key].batch.settle(1, Settled::Done);
        assert_eq!(table.renewed(key, Outcome::Gone, now + THIRD), None, "not reported");
        assert!(!table.leases[&key].signals.lost.is_given());
        let (key, _) = table.insert(lease(now));
        table.leases[&key].batch.settle(0, Settled::GivenBack);
        assert!(table.due(now + THIRD).is_empty());
    }

    #[test]
    fn a_lease_that_ends_because_its_batch_is_being_acknowledged_is_not_lost() {
        let (mut table, now) = (Table::default(), clock::now());
        let (key, _) = table.insert(lease(now));
        table.leases.get_mut(&key).unwrap().settling = true;
        assert_eq!(table.due(now + THIRD).len(), 1, "this may take long");
        assert_eq!(table.renewed(key, Outcome::Gone, now + THIRD), None);
        assert!(!table.leases[&key].signals.lost.is_given());
    }

    #[test]
    fn one_attempt_never_takes_all_the_time_that_is_left() {
        let usual = Duration::from_secs(30);
        assert_eq!(patience(12, usual), Duration::from_secs(2));
        assert_eq!(patience(1, usual), ATTEMPT_MIN);
        assert_eq!(patience(86_400, usual), usual);
        assert_eq!(patience(u64::MAX, usual), usual);
    }
}

//! A schedule that does not wait for responses: a fixed number of send times per second, assigned in order.
//!
//! Tokio's timer is late by up to a millisecond, which would count as the broker's latency. The kernel's timer is ten times more
//! precise, and one read returns how many times have come.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Starts with the first call of `next`. Assigns nothing more once dropped.
pub struct Pacer {
    period: Duration,
    tickets: AtomicU32,
    started: OnceLock<Instant>,
    shared: Arc<Shared>,
    _driver: JoinSet<()>,
}

struct Shared {
    timer: AsyncFd<OwnedFd>,
    /// One permit for each send time that has come.
    due: Semaphore,
}

impl Pacer {
    pub fn new(per_second: u32) -> Result<Pacer> {
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        #[expect(deprecated, reason = "its successor is unsafe, for types that give away another descriptor")]
        let timer = AsyncFd::new(timer)?;
        let shared = Arc::new(Shared { timer, due: Semaphore::new(0) });
        let mut driver = JoinSet::new();
        driver.spawn(drive(Arc::clone(&shared)));
        Ok(Pacer {
            period: Duration::from_secs(1) / per_second,
            tickets: AtomicU32::new(0),
            started: OnceLock::new(),
            shared,
            _driver: driver,
        })
    }

    /// Waits for the next unassigned send time and returns it; none if it is not before `until`.
    pub async fn next(&self, until: Option<Instant>) -> Result<Option<Instant>> {
        let ticket = self.tickets.fetch_add(1, Ordering::Relaxed);
        let intended = self.start()? + self.period * ticket;
        if until.is_some_and(|until| intended >= until) {
            return Ok(None);
        }
        // First come, first served: the permit of this ticket's time.
        self.shared.due.acquire().await?.forget();
        Ok(Some(intended))
    }

    fn start(&self) -> Result<Instant> {
        let now = Instant::now();
        match self.started.set(now) {
            Ok(()) => self.arm().map(|()| now),
            Err(_) => Ok(*self.started.get_or_init(|| now)),
        }
    }

    fn arm(&self) -> Result<()> {
        let it_interval = Timespec {
            tv_sec: self.period.as_secs().cast_signed(),
            tv_nsec: self.period.subsec_nanos().into(),
        };
        // Zero would mean never.
        let it_value = Timespec { tv_sec: 0, tv_nsec: 1 };
        let times = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.shared.timer, TimerfdTimerFlags::empty(), &times)?;
        Ok(())
    }
}

async fn drive(shared: Arc<Shared>) {
    while let Ok(mut ready) = shared.timer.readable().await {
        let mut count = [0; 8];
        let read = ready.try_io(|timer| Ok(rustix::io::read(timer, &mut count)?));
        if let Ok(Ok(_)) = read {
            // Every send time is eventually assigned, however late.
            shared.due.add_permits(u64::from_ne_bytes(count) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn send_times_are_evenly_spaced_and_never_early() {
        let pacer = Pacer::new(1_000).unwrap();
        let first = pacer.next(None).await.unwrap().unwrap();
        for index in 1..20 {
            let intended = pacer.next(None).await.unwrap().unwrap();
            assert_eq!(intended, first + Duration::from_millis(index));
            assert!(Instant::now() >= intended);
        }
    }

    #[tokio::test]
    async fn a_schedule_ends_without_waiting_for_its_last_time() {
        let pacer = Pacer::new(1).unwrap();
        let first = pacer.next(None).await.unwrap().unwrap();
        assert_eq!(pacer.next(Some(first)).await.unwrap(), None);
        assert!(first.elapsed() < Duration::from_secs(1));
    }
}

//! Retry policy: which errors to retry, and the pauses. Pure: randomness is an argument.

use std::time::Duration;

use crate::clock;
use crate::error::{Error, ErrorKind};

/// Options of retries.
#[derive(Debug, Clone, Copy)]
pub struct Policy {
    /// Maximum of the first pause; it doubles each time.
    pub retry_delay: Duration,
    /// Maximum of any pause, even if a broker asks for a longer one.
    pub max_retry_delay: Duration,
    pub retry_on_429: bool,
    pub honor_retry_after: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            retry_delay: Duration::from_millis(100),
            max_retry_delay: Duration::from_secs(30),
            retry_on_429: true,
            honor_retry_after: true,
        }
    }
}

impl Policy {
    /// Whether the same request may succeed later. A 408 means that the sender was slow.
    pub fn retries(&self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::RateLimited => self.retry_on_429,
            ErrorKind::Unavailable | ErrorKind::Server | ErrorKind::Network | ErrorKind::Timeout => true,
            _ => false,
        }
    }

    /// The pause after this many pauses. `chance` is uniform in 0 to 1, so that clients that failed together do not come back
    /// together.
    pub fn delay(&self, pauses: u32, retry_after: Option<Duration>, chance: f64) -> Duration {
        // Clock differences can turn a date into no pause at all, which would cause a busy loop.
        if let Some(asked) = retry_after.filter(|asked| self.honor_retry_after && !asked.is_zero()) {
            return asked.min(self.max_retry_delay);
        }
        let longest = self.retry_delay.saturating_mul(1 << pauses.min(20)).min(self.max_retry_delay);
        longest.min(clock::NEVER).mul_f64(chance.clamp(0.0, 1.0))
    }
}

/// Uniform in 0 to 1. The tail of a new UUID is random, which saves a generator of our own.
pub fn chance() -> f64 {
    let tail = uuid::Uuid::now_v7().as_u128() as u32;
    f64::from(tail) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn answered(status: u16) -> Error {
        Error::answered(status, "", None, None)
    }

    #[test]
    fn what_may_pass_is_tried_again_and_what_is_wrong_is_not() {
        let policy = Policy::default();
        for status in [429, 500, 502, 503, 504] {
            assert!(policy.retries(&answered(status)), "{status}");
        }
        for status in [400, 401, 403, 404, 405, 408, 409, 413, 415, 431] {
            assert!(!policy.retries(&answered(status)), "{status}");
        }
        assert!(policy.retries(&Error::new(ErrorKind::Network, "")));
        assert!(policy.retries(&Error::new(ErrorKind::Timeout, "")));
        let strict = Policy { retry_on_429: false, ..policy };
        assert!(!strict.retries(&answered(429)) && strict.retries(&answered(503)));
    }

    #[test]
    fn a_broker_that_names_a_time_gets_it_up_to_the_limit() {
        let policy = Policy { max_retry_delay: Duration::from_secs(5), ..Policy::default() };
        let asked = |seconds| policy.delay(7, Some(Duration::from_secs(seconds)), 0.0);
        assert_eq!((asked(1), asked(60)), (Duration::from_secs(1), Duration::from_secs(5)));
        assert_eq!(policy.delay(0, Some(Duration::ZERO), 1.0), Duration::from_millis(100));
        let own = Policy { honor_retry_after: false, ..policy };
        assert_eq!(own.delay(0, Some(Duration::from_secs(1)), 1.0), Duration::from_millis(100));
    }

    #[test]
    fn pauses_double_up_to_the_limit() {
        let policy = Policy::default();
        let longest: Vec<_> = (0..10).map(|pauses| policy.delay(pauses, None, 1.0).as_millis()).collect();
        assert_eq!(longest, [100, 200, 400, 800, 1600, 3200, 6400, 12800, 25600, 30000]);
        assert_eq!(policy.delay(u32::MAX, None, 1.0), Duration::from_secs(30));
        let endless = Policy { retry_delay: Duration::MAX, max_retry_delay: Duration::MAX, ..policy };
        assert_eq!(endless.delay(0, None, 1.0), clock::NEVER);
    }

    proptest! {
        #[test]
        fn no_pause_is_longer_than_allowed(
            pauses in any::<u32>(), first in 0u64..1_000_000, max in 0u64..1_000_000,
            asked in prop::option::of(any::<u32>()), chance in 0.0f64..=1.0
        ) {
            let policy = Policy {
                retry_delay: Duration::from_millis(first), max_retry_delay: Duration::from_millis(max), ..Policy::default()
            };
            let asked = asked.map(|seconds| Duration::from_secs(seconds.into()));
            prop_assert!(policy.delay(pauses, asked, chance) <= policy.max_retry_delay);
        }
    }

    #[test]
    fn chance_is_spread_over_all_of_it() {
        let chances: Vec<f64> = (0..1_000).map(|_| chance()).collect();
        assert!(chances.iter().all(|chance| (0.0..=1.0).contains(chance)));
        for tenth in 0..10 {
            let low = f64::from(tenth) / 10.0;
            assert!(chances.iter().any(|&chance| chance >= low && chance <= low + 0.1), "{tenth}");
        }
    }
}

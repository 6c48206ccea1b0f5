//! Polling with growing intervals until a deadline.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::clock;

const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

pub struct Looks {
    until: Instant,
    pause: Duration,
}

impl Looks {
    pub fn until(until: Instant) -> Self {
        Self { until, pause: PAUSE_FIRST }
    }

    /// Waits for the next poll. False: the deadline has passed.
    pub async fn again(&mut self) -> bool {
        if self.until <= clock::now() + self.pause {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        true
    }

    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(clock::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn looks_become_rarer_and_end_before_the_time_does() {
        let start = clock::now();
        let mut looks = Looks::until(start + Duration::from_secs(4));
        let mut times = Vec::new();
        while looks.again().await {
            times.push(start.elapsed().as_millis());
        }
        assert_eq!(times, [50, 150, 350, 750, 1550, 2550, 3550]);
        assert!(looks.left() < PAUSE_MAX);
    }
}

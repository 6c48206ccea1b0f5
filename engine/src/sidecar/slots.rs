//! Decides whether a lane opens another slot in addition to those in the air. Pure.
//!
//! One flight at a time carries the most per statement, so a second one leaves only if it would be full as well, or
//! if the first takes much longer than flights of this lane usually do.

use std::time::Duration;

/// Weight of the newest flight in the running mean: about the last ten count.
const NEWEST: f64 = 0.1;

/// A wait of this many usual flights is longer than the usual wait for the flight ahead.
const PATIENCE: f64 = 3.0;

const PATIENCE_MIN: Duration = Duration::from_millis(2);
const PATIENCE_MAX: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub struct Slots {
    max: usize,
    busy: usize,
    usual: Duration,
}

impl Slots {
    pub fn new(max: usize) -> Self {
        Self { max: max.max(1), busy: 0, usual: Duration::ZERO }
    }

    /// Takes a slot if one should be opened. `items` wait, the oldest for `waited`, and a flight carries `items_max`.
    pub fn open(&mut self, items: usize, items_max: usize, waited: Duration) -> bool {
        let wanted = self.busy == 0 || items >= items_max || waited >= self.patience();
        let opens = items > 0 && self.busy < self.max && wanted;
        self.busy += usize::from(opens);
        opens
    }

    /// The share of the slots in use.
    pub fn share(&self) -> f64 {
        self.busy as f64 / self.max as f64
    }

    pub fn close(&mut self) {
        self.busy -= 1;
    }

    pub fn landed(&mut self, took: Duration) {
        self.usual = self.usual.mul_f64(1.0 - NEWEST) + took.mul_f64(NEWEST);
    }

    /// How long an entry waits before a slow flight ahead of it is overtaken.
    pub fn patience(&self) -> Duration {
        self.usual.mul_f64(PATIENCE).clamp(PATIENCE_MIN, PATIENCE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_micros(100);

    #[test]
    fn a_second_flight_waits_until_it_is_full_or_the_first_is_slow() {
        let mut slots = Slots::new(4);
        assert!(slots.open(1, 500, SOON));
        assert!(!slots.open(499, 500, SOON));
        assert!(slots.open(500, 500, SOON));
        assert!(!slots.open(1, 500, SOON));
        assert!(slots.open(1, 500, Duration::from_millis(200)));
    }

    #[test]
    fn patience_follows_what_flights_usually_take() {
        let mut slots = Slots::new(2);
        assert_eq!(slots.patience(), PATIENCE_MIN);
        for _ in 0..100 {
            slots.landed(Duration::from_millis(10));
        }
        assert!(slots.patience() > Duration::from_millis(25));
        for _ in 0..100 {
            slots.landed(Duration::from_secs(1));
        }
        assert_eq!(slots.patience(), PATIENCE_MAX);
    }

    #[test]
    fn there_are_never_more_than_the_maximum_and_none_for_nothing() {
        let mut slots = Slots::new(2);
        assert!(!slots.open(0, 500, SOON));
        let opened = (0..10).filter(|_| slots.open(1000, 500, SOON)).count();
        assert_eq!(opened, 2);
        slots.close();
        assert!(slots.open(1000, 500, SOON));
    }
}

//! A histogram with fixed bounds. Adding takes two atomic additions, no lock and no allocation, so it is fit for a hot
//! path.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bounds for microseconds: from a fast statement to a statement's time limit.
pub const MICROSECONDS: [u64; 15] = [
    250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 5_000_000,
    10_000_000, 30_000_000,
];

/// Bounds for items of one flight.
pub const ITEMS: [u64; 9] = [1, 2, 5, 10, 25, 50, 100, 250, 500];

/// # Invariants
/// - Every value is in exactly one bucket: the first whose bound is not below it, or the last, which has none.
#[derive(Debug)]
pub struct Histogram {
    bounds: &'static [u64],
    /// One more than there are bounds.
    buckets: Box<[AtomicU64]>,
    sum: AtomicU64,
}

/// One reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Distribution {
    pub bounds: &'static [u64],
    /// For each bound, how many values did not exceed it; last, how many there were in total.
    pub counts: Vec<u64>,
    pub sum: u64,
}

impl Histogram {
    pub fn new(bounds: &'static [u64]) -> Self {
        let buckets = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, sum: AtomicU64::new(0) }
    }

    pub fn add(&self, value: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.buckets[bucket].fetch_add(1, Relaxed);
        self.sum.fetch_add(value, Relaxed);
    }

    pub fn sum(&self) -> u64 {
        self.sum.load(Relaxed)
    }

    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum()
    }

    pub fn read(&self) -> Distribution {
        let mut total = 0;
        let counts = self.buckets.iter().map(|bucket| {
            total += bucket.load(Relaxed);
            total
        });
        Distribution { bounds: self.bounds, counts: counts.collect(), sum: self.sum() }
    }
}

impl Distribution {
    pub fn count(&self) -> u64 {
        self.counts.last().copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_every_bucket_it_fits_into() {
        let histogram = Histogram::new(&[1, 10, 100]);
        for value in [0, 1, 2, 10, 100, 101, 5_000] {
            histogram.add(value);
        }
        let read = histogram.read();
        assert_eq!(read.counts, [2, 4, 5, 7]);
        assert_eq!((read.sum, read.count(), histogram.count()), (5_214, 7, 7));
    }

    #[test]
    fn bounds_go_up() {
        for bounds in [&MICROSECONDS[..], &ITEMS] {
            assert!(bounds.is_sorted_by(|a, b| a < b));
        }
    }
}

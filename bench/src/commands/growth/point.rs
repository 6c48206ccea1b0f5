//! The axes and their points. Pure.

use std::fmt;

use serde::Serialize;

use crate::options::{Axis, Options};
use crate::report::thousands;

/// One size of one dimension.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Point {
    pub axis: Axis,
    /// Partitions, groups, messages, long polls or bytes.
    pub size: u32,
}

impl Axis {
    pub const ALL: [Axis; 5] = [Axis::Partitions, Axis::Groups, Axis::Backlog, Axis::Parked, Axis::Payload];

    /// The first is the reference. A smoke test only tries each way to load.
    pub fn points(self, quick: bool) -> Vec<Point> {
        let sizes: &[u32] = match (self, quick) {
            (Axis::Partitions, false) => &[100, 10_000, 100_000, 1_000_000],
            (Axis::Partitions, true) => &[500],
            (Axis::Groups, false) => &[1, 10, 100],
            (Axis::Groups, true) => &[3],
            (Axis::Backlog, false) => &[0, 10_000_000],
            (Axis::Backlog, true) => &[64_000],
            (Axis::Parked, false) => &[1, 1_000, 20_000],
            (Axis::Parked, true) => &[50],
            (Axis::Payload, false) => &[102, 1_024, 65_536],
            (Axis::Payload, true) => &[1_024],
        };
        self.of_sizes(sizes)
    }

    pub fn of_sizes(self, sizes: &[u32]) -> Vec<Point> {
        sizes.iter().map(|&size| Point { axis: self, size }).collect()
    }
}

/// The payloads of a backlog: small, to fit many. Pushes use the same size.
const BACKLOG_PAYLOAD_BYTES: usize = 102;
/// Payload bytes loaded ahead of the pops.
const PRELOAD_BYTES_MAX: u32 = 512 << 20;

/// Open files of a process that are reserved for everything but long polls.
const OTHER_FILES: u32 = 500;

impl Point {
    /// As many long polls as the open file limit of broker and load generator allows.
    pub fn within(self, open_files: u64) -> Point {
        let most = u32::try_from(open_files).unwrap_or(u32::MAX).saturating_sub(OTHER_FILES).max(1);
        match self.axis {
            Axis::Parked => Point { size: self.size.min(most), ..self },
            _ => self,
        }
    }

    /// The load is the same at every point of an axis, except for what grows.
    pub fn options(self, base: &Options) -> Options {
        let payload = match self.axis {
            Axis::Payload => self.size as usize,
            Axis::Backlog => BACKLOG_PAYLOAD_BYTES,
            _ => base.payload,
        };
        let fit = PRELOAD_BYTES_MAX / u32::try_from(payload).unwrap_or(u32::MAX).max(1);
        Options { payload, preload_max: base.preload_max.min(fit), ..base.clone() }
    }

    /// None: queue mode.
    pub fn groups(self) -> Vec<String> {
        let groups = if self.axis == Axis::Groups { self.size } else { 0 };
        (0..groups).map(|group| format!("group-{group}")).collect()
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = thousands(f64::from(self.size));
        match self.axis {
            Axis::Partitions => write!(f, "{size} partitions"),
            Axis::Groups => write!(f, "{size} groups"),
            Axis::Backlog => write!(f, "backlog of {size}"),
            Axis::Parked => write!(f, "{size} parked pops"),
            Axis::Payload => write!(f, "payload of {size} bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_axis_grows_from_its_first_point() {
        for axis in Axis::ALL {
            for quick in [true, false] {
                let sizes: Vec<u32> = axis.points(quick).iter().map(|point| point.size).collect();
                assert!(!sizes.is_empty() && sizes.is_sorted_by(|a, b| a < b), "{axis:?} {sizes:?}");
                assert!(quick || sizes.len() > 1, "{axis:?} has nothing to compare");
            }
        }
    }

    #[test]
    fn long_polls_are_limited_by_open_files_and_nothing_else_is() {
        let within = |axis, size| Point { axis, size }.within(20_000).size;
        assert_eq!(within(Axis::Parked, 20_000), 19_500);
        assert_eq!(within(Axis::Parked, 1_000), 1_000);
        assert_eq!(within(Axis::Partitions, 1_000_000), 1_000_000);
    }

    #[test]
    fn large_payloads_are_preloaded_in_smaller_numbers() {
        let base = Options::standard();
        let of = |size| Point { axis: Axis::Payload, size }.options(&base);
        assert_eq!((of(102).payload, of(102).preload_max), (102, base.preload_max));
        assert_eq!((of(65_536).payload, of(65_536).preload_max), (65_536, 8_192));
        assert_eq!(Point { axis: Axis::Parked, size: 1 }.options(&base).payload, base.payload);
    }
}

//! The goals of our broker relative to the peer, in one table.

use std::fmt;

use super::format::significant;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Minimum ratio of messages per second to the peer's.
    Throughput(f64),
    /// Maximum ratio of the p99 to the peer's.
    P99Part(f64),
    P50Ms(f64),
    P99Ms(f64),
    /// Maximum of the total time.
    WallMs(f64),
    /// Minimum speedup over the sequential loop.
    OverLoop(f64),
    ResidentMb(f64),
}

use Goal::{OverLoop, P50Ms, P99Ms, P99Part, ResidentMb, Throughput, WallMs};

const GOALS: [(&str, &[Goal]); 24] = [
    ("push-1", &[Throughput(5.0)]),
    ("push-1-c64", &[Throughput(5.0), P99Part(1.0 / 3.0)]),
    ("push-10", &[Throughput(4.0)]),
    ("push-10x10", &[Throughput(5.0)]),
    ("push-100", &[Throughput(2.0)]),
    ("pop-specific-autoack-1", &[Throughput(6.0)]),
    ("pop-specific-autoack-10", &[Throughput(4.0)]),
    ("pop-specific-autoack-100", &[Throughput(2.0)]),
    ("pop-specific-1", &[Throughput(6.0)]),
    ("pop-specific-10", &[Throughput(4.0)]),
    ("pop-specific-100", &[Throughput(2.0)]),
    ("pop-wildcard-1", &[Throughput(10.0)]),
    ("pop-wildcard-10", &[Throughput(8.0)]),
    ("pop-wildcard-100", &[Throughput(3.0)]),
    ("pop-wildcard-100x10", &[Throughput(10.0)]),
    ("end-to-end", &[Throughput(6.0), P99Ms(50.0)]),
    ("end-to-end-rate-1000", &[P50Ms(4.0), P99Ms(20.0)]),
    ("end-to-end-rate-100", &[P50Ms(2.5)]),
    ("burst", &[WallMs(60.0), OverLoop(10.0)]),
    ("drain-1", &[Throughput(20.0)]),
    ("drain-10", &[Throughput(10.0)]),
    ("fan-out", &[Throughput(3.0)]),
    (MEMORY, &[ResidentMb(120.0)]),
    ("parked", &[]),
];

/// Name for the broker's memory after the series.
pub const MEMORY: &str = "memory";

pub fn of(scenario: &str) -> &'static [Goal] {
    GOALS.iter().find(|(name, _)| *name == scenario).map_or(&[], |(_, goals)| goals)
}

/// The figures that goals refer to; unmeasured ones are missing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Facts {
    pub throughput_ratio: Option<f64>,
    /// Ratio of ours to the peer's.
    pub p99_ratio: Option<f64>,
    pub p50_ms: Option<f64>,
    pub p99_ms: Option<f64>,
    pub wall_ms: Option<f64>,
    /// Time of the same work in sequence.
    pub loop_ms: Option<f64>,
    pub resident_mb: Option<f64>,
}

impl Goal {
    /// None if unknown.
    pub fn met(self, facts: &Facts) -> Option<bool> {
        let at_least = |value: Option<f64>, least: f64| Some(value? >= least);
        let at_most = |value: Option<f64>, most: f64| Some(value? <= most);
        match self {
            Throughput(ratio) => at_least(facts.throughput_ratio, ratio),
            P99Part(part) => at_most(facts.p99_ratio, part),
            P50Ms(ms) => at_most(facts.p50_ms, ms),
            P99Ms(ms) => at_most(facts.p99_ms, ms),
            WallMs(ms) => at_most(facts.wall_ms, ms),
            OverLoop(times) => at_least(Some(facts.loop_ms? / facts.wall_ms?), times),
            ResidentMb(mb) => at_most(facts.resident_mb, mb),
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Throughput(ratio) => write!(f, "≥{ratio}×"),
            P99Part(part) => write!(f, "p99 ≤{}×", significant(*part)),
            P50Ms(ms) => write!(f, "p50 ≤{ms} ms"),
            P99Ms(ms) => write!(f, "p99 ≤{ms} ms"),
            WallMs(ms) => write!(f, "≤{ms} ms in total"),
            OverLoop(times) => write!(f, "≥{times}× the loop"),
            ResidentMb(mb) => write!(f, "≤{mb} MB"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenarios;

    #[test]
    fn every_goal_belongs_to_a_scenario_and_every_scenario_is_in_the_table() {
        let names: Vec<String> = scenarios::all().iter().map(ToString::to_string).collect();
        for (name, _) in GOALS {
            assert!(name == MEMORY || names.iter().any(|known| known == name), "{name} is not a scenario");
        }
        for name in names {
            assert!(GOALS.iter().any(|(known, _)| *known == name), "no goal is defined for {name}");
        }
    }

    #[test]
    fn the_limit_itself_is_met() {
        let facts = Facts {
            throughput_ratio: Some(5.0),
            p99_ratio: Some(0.5),
            p50_ms: Some(4.0),
            wall_ms: Some(50.0),
            loop_ms: Some(400.0),
            ..Facts::default()
        };
        assert_eq!(Throughput(5.0).met(&facts), Some(true));
        assert_eq!(Throughput(5.1).met(&facts), Some(false));
        assert_eq!(P99Part(1.0 / 3.0).met(&facts), Some(false));
        assert_eq!(P50Ms(4.0).met(&facts), Some(true));
        assert_eq!(WallMs(60.0).met(&facts), Some(true));
        assert_eq!(OverLoop(10.0).met(&facts), Some(false));
        assert_eq!(ResidentMb(120.0).met(&facts), None);
    }
}

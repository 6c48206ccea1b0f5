//! Two brokers side by side, and ours against its goals. Pure.

use serde::Serialize;

use super::contender::Contender;
use super::goals::{self, Facts, Goal, MEMORY};
use super::summary::{Spread, Summary};
use crate::scenarios::BURST_LOOP;

#[derive(Debug, Serialize)]
pub struct Comparison {
    pub lines: Vec<Line>,
    pub memory: Vec<Verdict>,
}

/// One scenario. Figures are missing if a broker did not finish it.
#[derive(Debug, Serialize)]
pub struct Line {
    pub scenario: String,
    /// `service` or `response`: when latencies start.
    pub clock: Option<&'static str>,
    pub ours: Option<Figures>,
    pub peer: Option<Figures>,
    /// Ratio of ours to the peer's.
    pub throughput_ratio: Option<f64>,
    pub p50_ratio: Option<f64>,
    pub p99_ratio: Option<f64>,
    pub verdicts: Vec<Verdict>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    pub messages_per_second: Spread,
    pub p50_us: Spread,
    pub p99_us: Spread,
}

#[derive(Debug, PartialEq, Serialize)]
pub struct Verdict {
    pub goal: String,
    /// None if unknown.
    pub met: Option<bool>,
}

/// In our order, then what only the peer finished.
pub fn compare(ours: &Contender, peer: &Contender) -> Comparison {
    let mut scenarios: Vec<&str> = Vec::new();
    for summary in ours.summaries.iter().chain(&peer.summaries) {
        if !scenarios.contains(&summary.scenario.as_str()) {
            scenarios.push(&summary.scenario);
        }
    }
    let lines = scenarios.into_iter().map(|scenario| line(scenario, ours, peer)).collect();
    let memory = Facts { resident_mb: ours.resident_mb.map(|mb| mb.median), ..Facts::default() };
    Comparison { lines, memory: verdicts(goals::of(MEMORY), &memory) }
}

fn line(scenario: &str, ours: &Contender, peer: &Contender) -> Line {
    let one_by_one = ours.summary(BURST_LOOP);
    // A scenario without measurements has neither a rate nor a latency.
    let measured = |summary: &&Summary| summary.messages_per_second.median > 0.0;
    let (ours, peer) = (ours.summary(scenario).filter(measured), peer.summary(scenario).filter(measured));
    let ratio = |value: fn(&Summary) -> Spread| {
        let (ours, peer) = (value(ours?).median, value(peer?).median);
        (peer > 0.0).then(|| ours / peer)
    };
    let p99_ratio = ratio(|summary| summary.p99_us);
    let throughput_ratio = ratio(|summary| summary.messages_per_second);
    let facts = Facts {
        throughput_ratio,
        p99_ratio,
        p50_ms: ours.map(|summary| summary.p50_us.median / 1e3),
        p99_ms: ours.map(|summary| summary.p99_us.median / 1e3),
        wall_ms: ours.map(|summary| summary.seconds.median * 1e3),
        loop_ms: one_by_one.map(|summary| summary.seconds.median * 1e3),
        resident_mb: None,
    };
    Line {
        scenario: scenario.to_owned(),
        clock: ours.or(peer).map(|summary| summary.clock),
        ours: ours.map(Figures::of),
        peer: peer.map(Figures::of),
        throughput_ratio,
        p50_ratio: ratio(|summary| summary.p50_us),
        p99_ratio,
        verdicts: verdicts(goals::of(scenario), &facts),
    }
}

fn verdicts(goals: &[Goal], facts: &Facts) -> Vec<Verdict> {
    goals.iter().map(|goal| Verdict { goal: goal.to_string(), met: goal.met(facts) }).collect()
}

impl Figures {
    fn of(summary: &Summary) -> Figures {
        let Summary { messages_per_second, p50_us, p99_us, .. } = *summary;
        Figures { messages_per_second, p50_us, p99_us }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::Operation;
    use crate::report::contender::tests::contender;
    use crate::report::summary::tests::row;

    #[test]
    fn ratios_are_ours_to_the_peers_and_decide_the_goal() {
        let ours = contender(vec![row("push-1", Operation::Push, 1_000, 2)], 100.0);
        let peer = contender(vec![row("push-1", Operation::Push, 100, 8)], 300.0);
        let comparison = compare(&ours, &peer);
        let line = &comparison.lines[0];
        assert_eq!(line.throughput_ratio, Some(10.0));
        assert!((line.p99_ratio.unwrap() - 0.25).abs() < 0.01);
        assert_eq!(line.verdicts, [Verdict { goal: "≥5×".to_owned(), met: Some(true) }]);
        assert_eq!(comparison.memory, [Verdict { goal: "≤120 MB".to_owned(), met: Some(true) }]);
    }

    #[test]
    fn what_the_peer_did_not_finish_leaves_a_gap_and_no_verdict() {
        let ours = contender(vec![row("push-1", Operation::Push, 1_000, 2)], 130.0);
        let peer = contender(vec![row("fan-out", Operation::Pop, 0, 1)], 1.0);
        let comparison = compare(&ours, &peer);
        let [push, fan_out] = &comparison.lines[..] else { panic!("{comparison:?}") };
        assert!(push.peer.is_none() && push.throughput_ratio.is_none());
        assert_eq!(push.verdicts[0].met, None);
        assert!(fan_out.ours.is_none() && fan_out.peer.is_none(), "a row of zeros is no figure");
        assert_eq!(comparison.memory[0].met, Some(false));
    }
}

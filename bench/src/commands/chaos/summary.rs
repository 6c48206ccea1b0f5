//! The results of all runs, as tables and as numbers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::checker::Rule;
use super::run::RunResult;
use super::statuses::Statuses;
use crate::report::Table;

#[derive(Default)]
pub struct Summary {
    runs: Vec<RunResult>,
}

#[derive(Serialize)]
pub struct Results {
    runs: Vec<OneRun>,
    rules: Vec<OneRule>,
}

#[derive(Serialize)]
struct OneRun {
    seed: u64,
    faults: usize,
    accepted: u64,
    deliveries: u64,
    failover_seconds: Option<f64>,
    violations: Vec<String>,
    untested: Vec<String>,
}

#[derive(Serialize)]
struct OneRule {
    rule: Rule,
    cases: u64,
    violations: usize,
}

impl Summary {
    pub fn add(&mut self, run: RunResult) {
        self.runs.push(run);
    }

    pub fn is_clean(&self) -> bool {
        self.runs.iter().all(|run| run.findings.violations.is_empty() && untested(run).is_empty())
    }

    pub fn tables(&self) -> Vec<Table> {
        vec![self.run_table(), self.fault_table(), self.status_table(), rules(&self.runs)]
    }

    fn run_table(&self) -> Table {
        let headings = [
            "seed",
            "faults",
            "accepted",
            "spooled",
            "deliveries",
            "transactions",
            "lost responses",
            "ready after s",
            "violations",
        ];
        let mut table = Table::new(1, headings);
        for run in &self.runs {
            let counts = &run.counts;
            let ready =
                run.failover.map_or("–".to_owned(), |took| format!("{:.2}", took.service.as_secs_f64()));
            table.push(vec![
                run.seed.to_string(),
                run.faults.len().to_string(),
                counts.accepted.to_string(),
                counts.buffered.to_string(),
                counts.deliveries.to_string(),
                counts.transactions.to_string(),
                (counts.unknown + counts.lost_pops).to_string(),
                ready,
                run.findings.violations.len().to_string(),
            ]);
        }
        table
    }

    fn fault_table(&self) -> Table {
        let mut times: BTreeMap<&str, u64> = BTreeMap::new();
        for fault in self.runs.iter().flat_map(|run| &run.faults) {
            *times.entry(fault).or_default() += 1;
        }
        let mut table = Table::new(1, ["fault", "times"]);
        for (fault, times) in times {
            table.push(vec![fault.to_owned(), times.to_string()]);
        }
        table
    }

    fn status_table(&self) -> Table {
        let mut all = Statuses::default();
        for run in &self.runs {
            all.merge(&run.statuses);
        }
        all.table()
    }

    pub fn verdict(&self) -> String {
        let violations: usize = self.runs.iter().map(|run| run.findings.violations.len()).sum();
        let runs =
            if self.runs.len() == 1 { "1 run".to_owned() } else { format!("{} runs", self.runs.len()) };
        let mut text = match violations {
            0 => format!("No violation in {runs}."),
            _ => format!("{violations} VIOLATIONS in {runs}."),
        };
        let unused = Rule::ALL.into_iter().filter(|&rule| cases(&self.runs, rule) == 0);
        let unused: Vec<&str> = unused.map(Rule::words).collect();
        if !unused.is_empty() {
            text += &format!(" Never exercised: {}.", unused.join("; "));
        }
        let waited_for = self.answered_in_time();
        if !waited_for.is_empty() {
            text += &format!(" Always answered before the caller hung up: {}.", waited_for.join("; "));
        }
        let idle = self.runs.iter().filter(|run| !untested(run).is_empty()).count();
        if idle > 0 {
            text += &format!(" NOT TESTED ENOUGH: {idle} of {runs}.");
        }
        text
    }

    /// Routes that always responded before the call was canceled.
    fn answered_in_time(&self) -> Vec<&str> {
        let mut times: BTreeMap<&str, u64> = BTreeMap::new();
        for (route, hang_ups) in self.runs.iter().flat_map(|run| &run.hang_ups) {
            *times.entry(route).or_default() += hang_ups;
        }
        times.into_iter().filter(|(_, times)| *times == 0).map(|(route, _)| route).collect()
    }

    pub fn results(&self) -> Results {
        let one = |run: &RunResult| OneRun {
            seed: run.seed,
            faults: run.faults.len(),
            accepted: run.counts.accepted,
            deliveries: run.counts.deliveries,
            failover_seconds: run.failover.map(|took| took.service.as_secs_f64()),
            violations: run.findings.violations.iter().map(|one| one.text.clone()).collect(),
            untested: untested(run),
        };
        let rule =
            |rule| OneRule { rule, cases: cases(&self.runs, rule), violations: violations(&self.runs, rule) };
        Results { runs: self.runs.iter().map(one).collect(), rules: Rule::ALL.map(rule).into() }
    }
}

/// What a run should have exercised and did not. A run in which nothing happens violates nothing.
pub fn untested(run: &RunResult) -> Vec<String> {
    let mut untested = Vec::new();
    if run.counts.accepted == 0 {
        untested.push("nothing was accepted".to_owned());
    }
    if run.counts.deliveries == 0 {
        untested.push("nothing was delivered".to_owned());
    }
    if run.must_spool && run.counts.buffered == 0 {
        untested.push("nothing was spooled".to_owned());
    }
    if run.thorough {
        let unused = Rule::ALL.into_iter().filter(|&rule| run.findings.cases(rule) == 0);
        untested.extend(unused.map(|rule| format!("never exercised: {}", rule.words())));
        if run.counts.removed == 0 {
            untested.push("retention removed nothing".to_owned());
        }
    }
    untested
}

fn rules(runs: &[RunResult]) -> Table {
    let mut table = Table::new(2, ["promise", "one case is", "cases", "violations"]);
    for rule in Rule::ALL {
        table.push(vec![
            rule.words().to_owned(),
            rule.case().to_owned(),
            cases(runs, rule).to_string(),
            violations(runs, rule).to_string(),
        ]);
    }
    table
}

fn cases(runs: &[RunResult], rule: Rule) -> u64 {
    runs.iter().map(|run| run.findings.cases(rule)).sum()
}

fn violations(runs: &[RunResult], rule: Rule) -> usize {
    runs.iter().map(|run| run.findings.violations_of(rule)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::chaos::checker::{Findings, Violation};
    use crate::commands::chaos::run::Counts;

    fn run(accepted: u64, deliveries: u64) -> RunResult {
        RunResult {
            seed: 1,
            thorough: false,
            must_spool: false,
            findings: Findings::default(),
            faults: Vec::new(),
            failover: None,
            counts: Counts { accepted, deliveries, ..Counts::default() },
            hang_ups: BTreeMap::new(),
            statuses: Statuses::default(),
        }
    }

    fn is_clean(run: RunResult) -> bool {
        Summary { runs: vec![run] }.is_clean()
    }

    #[test]
    fn a_run_in_which_nothing_happens_is_not_clean() {
        assert!(is_clean(run(1, 1)));
        assert!(!is_clean(run(0, 1)));
        assert!(!is_clean(run(1, 0)));
    }

    #[test]
    fn a_violation_is_not_clean() {
        let mut broken = run(1, 1);
        broken.findings.violations.push(Violation { rule: Rule::Lost, text: String::new() });
        assert!(!is_clean(broken));
    }

    #[test]
    fn a_thorough_run_has_cases_for_every_rule() {
        let thorough = |rules: &[Rule]| {
            let mut run = RunResult { thorough: true, ..run(1, 1) };
            run.counts.removed = 1;
            rules.iter().for_each(|&rule| run.findings.case(rule));
            run
        };
        assert!(is_clean(thorough(&Rule::ALL)));
        for at in 0..Rule::ALL.len() {
            let others = [&Rule::ALL[..at], &Rule::ALL[at + 1..]].concat();
            assert!(!is_clean(thorough(&others)), "{:?}", Rule::ALL[at]);
        }
    }

    #[test]
    fn a_thorough_run_has_messages_for_retention() {
        let thorough = |removed| {
            let mut run = RunResult { thorough: true, ..run(1, 1) };
            Rule::ALL.into_iter().for_each(|rule| run.findings.case(rule));
            run.counts.removed = removed;
            run
        };
        assert!(is_clean(thorough(1)));
        assert!(!is_clean(thorough(0)));
    }

    #[test]
    fn a_failover_has_messages_for_the_spools() {
        let failover = |buffered| {
            let mut run = RunResult { must_spool: true, ..run(1, 1) };
            run.counts.buffered = buffered;
            run
        };
        assert!(is_clean(failover(1)));
        assert!(!is_clean(failover(0)));
    }

    #[test]
    fn a_route_whose_answer_always_came_in_time_is_named() {
        let of =
            |hang_ups| RunResult { hang_ups: BTreeMap::from([("GET /a".to_owned(), hang_ups)]), ..run(1, 1) };
        let verdict = |runs| Summary { runs }.verdict();
        assert!(verdict(vec![of(0), of(0)]).contains("hung up: GET /a."));
        assert!(!verdict(vec![of(0), of(1)]).contains("hung up"));
    }
}

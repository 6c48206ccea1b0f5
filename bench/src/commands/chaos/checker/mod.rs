//! Checks a history against the guarantees. Pure: a history goes in, violations come out.
//!
//! A rule only applies where the times of requests and responses leave no doubt. What may have been executed is never held against a
//! broker, so every reported violation is real.

mod auto_ack;
mod dead_letters;
mod deliveries;
mod index;
mod leases;
mod replays;
#[cfg(test)]
mod tests;
mod transactions;
mod waits;

use std::time::Duration;

use serde::Serialize;

use self::index::Index;
use super::history::History;

/// Processes on one machine share a clock, but a time is old when it is compared.
const MARGIN: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    Lost,
    Order,
    TwoLeases,
    StaleHolder,
    Duplicate,
    Atomic,
    StoredTwice,
    Asleep,
    Replayed,
    GivenUp,
    AtMostOnce,
}

impl Rule {
    pub const ALL: [Rule; 11] = [
        Rule::Lost,
        Rule::Order,
        Rule::TwoLeases,
        Rule::StaleHolder,
        Rule::Duplicate,
        Rule::Atomic,
        Rule::StoredTwice,
        Rule::Asleep,
        Rule::Replayed,
        Rule::GivenUp,
        Rule::AtMostOnce,
    ];

    /// The guarantee.
    pub fn words(self) -> &'static str {
        match self {
            Rule::Lost => "a push answered 2xx is delivered to every group",
            Rule::Order => "messages are delivered in order, and none is skipped",
            Rule::TwoLeases => "a group never has two live leases on a partition",
            Rule::StaleHolder => "nothing is accepted from a holder whose lease has ended",
            Rule::Duplicate => "nothing is redelivered unless its lease ended without an ack",
            Rule::Atomic => "a transaction happens as a whole or not at all",
            Rule::StoredTwice => "a message is stored once, under the id that was returned",
            Rule::Asleep => "a waiting pop returns soon after its message is stored",
            Rule::Replayed => "a group that was sent back gets everything again",
            Rule::GivenUp => "a message is completed, or dead-lettered after its last retry",
            Rule::AtMostOnce => "auto-acknowledged messages are delivered at most once, in order",
        }
    }

    /// What counts as a case of it.
    pub fn case(self) -> &'static str {
        match self {
            Rule::Lost => "deliveries owed",
            Rule::Order => "predecessors checked",
            Rule::TwoLeases => "leases granted close to a live one",
            Rule::StaleHolder => "late acks, nacks and renewals",
            Rule::Duplicate => "repeated deliveries",
            Rule::Atomic => "transactions",
            Rule::StoredTwice => "messages sent more than once",
            Rule::Asleep => "deliveries to pops that wait for minutes",
            Rule::Replayed => "messages to be read again",
            Rule::GivenUp => "messages that may be dead-lettered",
            Rule::AtMostOnce => "auto-acknowledged deliveries",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub rule: Rule,
    pub text: String,
}

/// How often each rule applied, and the violations it found.
#[derive(Debug, Default)]
pub struct Findings {
    cases: [u64; Rule::ALL.len()],
    pub violations: Vec<Violation>,
}

impl Findings {
    pub fn cases(&self, rule: Rule) -> u64 {
        self.cases[rule as usize]
    }

    pub fn violations_of(&self, rule: Rule) -> usize {
        self.violations.iter().filter(|violation| violation.rule == rule).count()
    }

    pub fn case(&mut self, rule: Rule) {
        self.cases[rule as usize] += 1;
    }

    fn violation(&mut self, rule: Rule, text: String) {
        self.violations.push(Violation { rule, text });
    }
}

pub fn check(history: &History) -> Findings {
    let index = Index::of(history);
    let mut findings = Findings::default();
    deliveries::check(&index, history, &mut findings);
    leases::check(&index, history, &mut findings);
    transactions::check(&index, history, &mut findings);
    waits::check(&index, history, &mut findings);
    replays::check(&index, history, &mut findings);
    dead_letters::check(&index, history, &mut findings);
    auto_ack::check(&index, history, &mut findings);
    findings
}

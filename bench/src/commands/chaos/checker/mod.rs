//! Holds a history to what is promised. Pure: a history goes in, violations come out.
//!
//! A rule speaks only where the times of requests and answers leave no doubt. What may have been done is never held against
//! a broker, so that every violation is one.

mod deliveries;
mod index;
mod leases;
#[cfg(test)]
mod tests;
mod transactions;

use std::time::Duration;

use serde::Serialize;

use self::index::Index;
use super::history::History;

/// Clocks of two processes on one machine are the same, but a time that is taken is old when it is compared.
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
}

impl Rule {
    pub const ALL: [Rule; 7] = [
        Rule::Lost,
        Rule::Order,
        Rule::TwoLeases,
        Rule::StaleHolder,
        Rule::Duplicate,
        Rule::Atomic,
        Rule::StoredTwice,
    ];

    /// The promise.
    pub fn words(self) -> &'static str {
        match self {
            Rule::Lost => "a push answered 2xx is delivered to every group",
            Rule::Order => "delivered in order, and nothing is skipped",
            Rule::TwoLeases => "never two live leases on a partition",
            Rule::StaleHolder => "nothing is accepted from a holder whose lease is over",
            Rule::Duplicate => "nothing comes again unless its lease ended without an ack",
            Rule::Atomic => "transactions happen as a whole or not at all",
            Rule::StoredTwice => "a message is stored once, under the id that was told",
        }
    }

    /// What a case of it is.
    pub fn case(self) -> &'static str {
        match self {
            Rule::Lost => "deliveries owed",
            Rule::Order => "predecessors looked at",
            Rule::TwoLeases => "leases beside a live one's time",
            Rule::StaleHolder => "late acks, nacks and renewals",
            Rule::Duplicate => "repeated deliveries",
            Rule::Atomic => "transactions",
            Rule::StoredTwice => "messages sent more than once",
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Violation {
    pub rule: Rule,
    pub text: String,
}

/// How often each rule had something to say, and what it found.
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
    deliveries::check(&index, &mut findings);
    leases::check(&index, history, &mut findings);
    transactions::check(&index, history, &mut findings);
    findings
}

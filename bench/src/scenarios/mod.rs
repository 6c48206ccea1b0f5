//! All scenarios by name. Each gets its own queue, deleted at its end.

mod burst;
mod drain;
mod end_to_end;
mod fan_out;
mod parked;
mod pop;
mod push;

use std::fmt;

use anyhow::{Result, bail};

use crate::checker::Checker;
use crate::harness::{Clock, Operation, Phase};
use crate::measure::Cost;
use crate::report::Row;
use crate::setup::Setup;
pub use burst::LOOP as BURST_LOOP;
pub use end_to_end::{Pace, run as end_to_end};
pub use parked::park;
pub use pop::{Claim, run as pop_by_groups};
pub use push::Shape;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    Push(Shape),
    Pop { claim: Claim, batch: u32 },
    Burst,
    EndToEnd,
    EndToEndRate { per_second: u32 },
    FanOut,
    Drain { claimed: u32 },
    Parked,
}

#[derive(Default)]
pub struct Outcome {
    pub rows: Vec<Row>,
    /// Facts for a line under the table.
    pub notes: Vec<String>,
    /// Violated guarantees.
    pub violations: Vec<String>,
    pub error_texts: Vec<String>,
}

impl Outcome {
    fn of(name: &str, phase: &Phase) -> Outcome {
        let mut outcome = Outcome::default();
        outcome.add(name, phase);
        outcome
    }

    /// One row per operation that took place.
    fn add(&mut self, name: &str, phase: &Phase) {
        let took_place = |operation: &Operation| !phase.tally(*operation).latency_us.is_empty();
        let mut operations: Vec<Operation> = Operation::ALL.into_iter().filter(took_place).collect();
        if operations.is_empty() {
            // Only errors, or nothing at all: a row of zeros shows that.
            operations.push(Operation::ALL[0]);
        }
        for (index, &operation) in operations.iter().enumerate() {
            let tally = phase.tally(operation);
            let scheduled = phase.open_loop && matches!(operation, Operation::Delivery | Operation::Push);
            let clock = if scheduled { Clock::Response } else { Clock::Service };
            let mut row = Row::new(name, operation, clock, phase.seconds, tally);
            if index == 0 {
                row.errors = phase.errors;
                row.cost = Some(Cost::of(&phase.usage, tally.metered_messages));
            }
            self.rows.push(row);
        }
        self.error_texts.extend(phase.error_texts.iter().map(|text| format!("{name}: {text}")));
    }

    pub fn add_all(&mut self, other: Outcome) {
        self.rows.extend(other.rows);
        self.notes.extend(other.notes);
        self.violations.extend(other.violations);
        self.error_texts.extend(other.error_texts);
    }

    fn add_violations(&mut self, name: &str, checker: &Checker) {
        self.violations.extend(checker.violations().iter().map(|text| format!("{name}: {text}")));
    }
}

pub async fn run(setup: &Setup, scenario: Scenario) -> Result<Outcome> {
    let queue = setup.create_queue(&scenario.to_string()).await?;
    let outcome = run_on(setup, &queue, scenario).await;
    let deleted = setup.delete_queue(&queue).await;
    let outcome = outcome?;
    deleted?;
    Ok(outcome)
}

/// On a queue that the caller has prepared and may inspect afterwards.
pub async fn run_on(setup: &Setup, queue: &str, scenario: Scenario) -> Result<Outcome> {
    let name = scenario.to_string();
    match scenario {
        Scenario::Push(shape) => push::run(setup, queue, &name, shape).await,
        Scenario::Pop { claim, batch } => pop::run(setup, queue, &name, claim, batch, &[]).await,
        Scenario::Burst => burst::run(setup, queue, &name).await,
        Scenario::EndToEnd => end_to_end::run(setup, queue, &name, None).await,
        Scenario::EndToEndRate { per_second } => {
            end_to_end::run(setup, queue, &name, Some(Pace { per_second, batch: 1 })).await
        }
        Scenario::FanOut => fan_out::run(setup, queue, &name).await,
        Scenario::Drain { claimed } => drain::run(setup, queue, &name, claimed).await,
        Scenario::Parked => parked::run(setup, queue, &name).await,
    }
}

pub fn all() -> Vec<Scenario> {
    const BATCHES: [u32; 3] = [1, 10, 100];
    let push = |batch| Shape { batch, spread: 1, connections: None };
    let mut all: Vec<Scenario> = BATCHES.map(|batch| Scenario::Push(push(batch))).into();
    all.push(Scenario::Push(Shape { connections: Some(64), ..push(1) }));
    all.push(Scenario::Push(Shape { spread: 10, ..push(10) }));
    for claim in [Claim::Specific, Claim::SpecificAutoAck, Claim::Wildcard] {
        all.extend(BATCHES.map(|batch| Scenario::Pop { claim, batch }));
    }
    all.push(Scenario::Pop { claim: Claim::Spread(10), batch: 100 });
    all.extend([Scenario::Burst, Scenario::EndToEnd]);
    all.extend([100, 1_000].map(|per_second| Scenario::EndToEndRate { per_second }));
    all.extend([1, 10].map(|claimed| Scenario::Drain { claimed }));
    all.extend([Scenario::FanOut, Scenario::Parked]);
    all
}

/// A word selects the scenario of that name, otherwise all whose names start with it.
pub fn select(words: &[String]) -> Result<Vec<Scenario>> {
    let all = all();
    let mut selected = Vec::new();
    for word in words {
        let exact = all.iter().any(|scenario| scenario.to_string() == *word);
        let family = format!("{word}-");
        let matches = |name: &str| name == word || word == "all" || !exact && name.starts_with(&family);
        let before = selected.len();
        selected.extend(all.iter().filter(|scenario| matches(&scenario.to_string())));
        if selected.len() == before {
            let names: Vec<String> = all.iter().map(Scenario::to_string).collect();
            bail!("unknown scenario `{word}`; known are {}", names.join(", "));
        }
    }
    Ok(selected)
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scenario::Push(Shape { batch, connections: Some(connections), .. }) => {
                write!(f, "push-{batch}-c{connections}")
            }
            Scenario::Push(Shape { batch, spread: 1, .. }) => write!(f, "push-{batch}"),
            Scenario::Push(Shape { batch, spread, .. }) => write!(f, "push-{batch}x{spread}"),
            Scenario::Pop { claim: Claim::Specific, batch } => write!(f, "pop-specific-{batch}"),
            Scenario::Pop { claim: Claim::SpecificAutoAck, batch } => {
                write!(f, "pop-specific-autoack-{batch}")
            }
            Scenario::Pop { claim: Claim::Wildcard, batch } => write!(f, "pop-wildcard-{batch}"),
            Scenario::Pop { claim: Claim::Spread(claimed), batch } => {
                write!(f, "pop-wildcard-{batch}x{claimed}")
            }
            Scenario::Burst => write!(f, "burst"),
            Scenario::EndToEnd => write!(f, "end-to-end"),
            Scenario::EndToEndRate { per_second } => write!(f, "end-to-end-rate-{per_second}"),
            Scenario::FanOut => write!(f, "fan-out"),
            Scenario::Drain { claimed } => write!(f, "drain-{claimed}"),
            Scenario::Parked => write!(f, "parked"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(words: &[&str]) -> Vec<String> {
        let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        select(&words).unwrap().iter().map(Scenario::to_string).collect()
    }

    #[test]
    fn a_word_selects_one_scenario_or_a_family() {
        assert_eq!(names(&["push"]), ["push-1", "push-10", "push-100", "push-1-c64", "push-10x10"]);
        assert_eq!(names(&["end-to-end", "push-10"]), ["end-to-end", "push-10"]);
        assert_eq!(names(&["end-to-end-rate"]).len(), 2);
        assert_eq!(names(&["all"]).len(), all().len());
        assert!(select(&["pu".to_owned()]).is_err());
    }
}

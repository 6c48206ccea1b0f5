//! `queen-bench chaos`: runs producers, consumers and transactors on two brokers while faults are injected, and then checks all
//! guarantees. A seed determines everything that is ours to decide.

mod admin;
mod broker;
mod caller;
mod checker;
mod clock;
mod consumers;
mod disk;
mod failover;
mod faults;
mod hangups;
mod history;
mod leased;
mod nemesis;
mod pin;
mod postgres;
mod producers;
mod run;
mod stage;
mod statuses;
mod summary;
mod transactors;

use anyhow::Result;

use self::run::Shape;
use self::summary::{Summary, untested};
use super::{write, write_json};
use crate::environment::Machine;
use crate::options::ChaosOptions;
use crate::report::section;

pub async fn run(options: ChaosOptions) -> Result<bool> {
    let shape = Shape::of(&options);
    let first = options.seed.unwrap_or_else(|| u64::from(uuid::Uuid::new_v4().as_fields().0));
    let mut summary = Summary::default();
    for seed in first..first + u64::from(options.runs) {
        println!("seed {seed}: {}", shape.words());
        let result = Box::pin(run::run(&options.queen, seed, &shape)).await?;
        for violation in &result.findings.violations {
            println!("VIOLATION ({}) {}", violation.rule.words(), violation.text);
        }
        match result.findings.violations.len() {
            0 => println!("seed {seed}: no violation"),
            _ => println!("replay with: {}", shape.replay(&options.queen, seed)),
        }
        for what in untested(&result) {
            println!("NOT TESTED ENOUGH: {what}");
        }
        summary.add(result);
    }
    let tables = summary.tables();
    for table in &tables {
        println!("{}", table.text());
    }
    let verdict = summary.verdict();
    println!("{verdict}");
    let machine = Machine::here();
    if let Some(file) = &options.markdown {
        write(file, section(&machine, &verdict, &tables).as_bytes())?;
    }
    write_json(options.json.as_deref(), machine, summary.results())?;
    Ok(summary.is_clean())
}

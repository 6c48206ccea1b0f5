//! `queen-bench pinned`: end-to-end throughput without and with a transaction that stays open the whole time, like a forgotten
//! session or a long report. Dead rows cannot be removed meanwhile, which may slow things down. Each on a fresh PostgreSQL. A
//! missed goal is not a failure.

mod half;
mod tables;

pub use half::{Holder, tables as table_states};

use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use self::half::Half;
use super::{write, write_json};
use crate::environment::{Machine, Source};
use crate::options::{Options, PinnedOptions};
use crate::report::section;

/// Share of the throughput without the transaction.
const GOAL_PERCENT: f64 = 80.0;

#[derive(Serialize)]
struct Results<'a> {
    free: &'a Half,
    pinned: &'a Half,
    percent: Option<f64>,
    goal_percent: f64,
    met: Option<bool>,
}

pub async fn run(pinned_options: PinnedOptions) -> Result<bool> {
    let seconds =
        pinned_options.seconds.unwrap_or(Duration::from_secs(if pinned_options.quick { 1 } else { 300 }));
    let options = Options { quick: pinned_options.quick, seconds: Some(seconds), ..Options::standard() };
    let source = Source::queen(&pinned_options.queen);
    eprintln!("free: {source}");
    let free = half::run(&source, &options, false).await?;
    eprintln!("pinned: {source}");
    let pinned = half::run(&source, &options, true).await?;

    let percent = tables::percent(&free, &pinned);
    let met = percent.map(|percent| percent >= GOAL_PERCENT);
    let verdict = match (percent, met) {
        (Some(percent), Some(met)) => {
            let met = if met { "met" } else { "missed" };
            format!("Pinned reaches {percent:.0} % of free; the goal of {GOAL_PERCENT:.0} % is {met}.")
        }
        _ => "Nothing was measured.".to_owned(),
    };
    let both = [tables::summary(&free, &pinned), tables::tenths(&free, &pinned)];
    for table in &both {
        println!("{}", table.text());
    }
    println!("{verdict}");
    for (name, half) in [("free", &free), ("pinned", &pinned)] {
        for note in &half.notes {
            println!("{name}: {note}");
        }
        for violation in &half.violations {
            println!("{name}: VIOLATION {violation}");
        }
    }
    let machine = Machine::here();
    if let Some(file) = &pinned_options.markdown {
        let seconds = seconds.as_secs_f64();
        let words = format!(
            "End-to-end for {seconds} s without and with a transaction held open all the time. {verdict}"
        );
        write(file, section(&machine, &words, &both).as_bytes())?;
    }
    let results = Results { free: &free, pinned: &pinned, percent, goal_percent: GOAL_PERCENT, met };
    write_json(pinned_options.json.as_deref(), machine, results)?;
    Ok(percent.is_some() && free.violations.is_empty() && pinned.violations.is_empty())
}

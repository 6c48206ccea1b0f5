//! `queen-bench ceiling`: throughput of PostgreSQL alone with the broker's own SQL, and the share of it that remains behind HTTP and
//! the broker. Each on a fresh PostgreSQL, in turn. A missed goal is not a failure.
//!
//! Every connection calls with the requests of all clients. So with several connections there are more requests in progress than
//! the clients send, which no broker can reach; with one there are as many, but each call waits for the previous one.

mod alone;
mod lines;
mod work;

use anyhow::{Result, ensure};
use serde::Serialize;

use self::alone::Rate;
use self::lines::Line;
use self::work::Work;
use super::{print_remarks, write, write_json};
use crate::environment::{Machine, Site, Source};
use crate::options::{CeilingOptions, Options};
use crate::report::{Contender, section};
use crate::scenarios::{self, Scenario};
use crate::series::{self, Pass};

const NAME: &str = "queen";

#[derive(Serialize)]
struct Results<'a> {
    ceiling: &'a [Line],
    broker: &'a Contender,
    violations: &'a [String],
}

/// Figures of PostgreSQL alone in one run, by scenario.
#[derive(Default)]
struct Alone {
    rates: Vec<(Scenario, Vec<Rate>)>,
    violations: Vec<String>,
}

pub async fn run(ceiling_options: CeilingOptions) -> Result<bool> {
    let CeilingOptions { queen, fetch, markdown, options } = ceiling_options;
    let mut selected = scenarios::select(&options.scenario)?;
    selected.retain(|&scenario| Work::of(scenario, &options).is_some());
    ensure!(!selected.is_empty(), "only pushes and pops from one partition have a ceiling");
    let source = Source::queen(&queen);
    let runs = options.runs.unwrap_or(options.scale(3, 1));
    let (mut alone, mut series) = (Vec::new(), Vec::new());
    for run in 1..=runs {
        // The first has a cooler machine and colder caches, so the order alternates.
        for postgres in [run % 2 == 1, run % 2 == 0] {
            if postgres {
                eprintln!("run {run}/{runs}: PostgreSQL alone");
                alone.push(run_alone(&source, &options, &selected, fetch).await?);
            } else {
                eprintln!("run {run}/{runs}: {source}");
                series.push(series::run(&source, &options, &selected, Pass::Timed).await?);
            }
        }
    }
    let broker = Contender::of(source.to_string(), series, None);
    let line = |&scenario: &Scenario| {
        let rates = alone.iter().flat_map(|run| &run.rates).filter(|(measured, _)| *measured == scenario);
        let rates = rates.map(|(_, rates)| rates.clone()).collect();
        Line::new(scenario, rates, broker.summary(&scenario.to_string()))
    };
    let lines: Vec<Line> = selected.iter().map(line).collect();
    let violations: Vec<String> = alone.iter().flat_map(|run| run.violations.clone()).collect();

    let table = lines::table(&lines);
    println!("{}", table.text());
    print_remarks(NAME, &broker);
    for violation in &violations {
        println!("PostgreSQL alone: VIOLATION {violation}");
    }
    let machine = Machine::here();
    if let Some(file) = &markdown {
        let words = "PostgreSQL alone, called with the broker's own SQL on 1, 2 and 4 connections, and the broker on it, \
                     as a percentage of the best of these and of one connection. Medians of all runs, with their range.";
        write(file, section(&machine, words, &[table]).as_bytes())?;
    }
    let results = Results { ceiling: &lines, broker: &broker, violations: &violations };
    write_json(options.json.as_deref(), machine, results)?;
    Ok(broker.is_clean() && violations.is_empty())
}

/// The broker only creates the schema. Scenarios with the same calls are measured once.
async fn run_alone(source: &Source, options: &Options, selected: &[Scenario], fetch: bool) -> Result<Alone> {
    let mut site = Site::open(source).await?;
    site.stop_broker().await?;
    let database = site.database()?;
    let mut alone = Alone::default();
    let mut known: Vec<(Work, Vec<Rate>)> = Vec::new();
    for &scenario in selected {
        let Some(work) = Work::of(scenario, options) else { continue };
        if let Some((_, rates)) = known.iter().find(|(same, _)| *same == work) {
            alone.rates.push((scenario, rates.clone()));
            continue;
        }
        eprintln!("  {scenario}");
        match alone::rates(&database, &work, options, fetch).await {
            Ok(rates) => {
                alone.rates.push((scenario, rates.clone()));
                known.push((work, rates));
            }
            Err(error) => alone.violations.push(format!("{scenario}: {error:#}")),
        }
    }
    Ok(alone)
}

//! `queen-bench compare`: our broker and another one in turn, each run on a fresh PostgreSQL.
//!
//! Violations of the peer are reported but are not a failure; neither is a missed goal.

use anyhow::Result;
use serde::Serialize;

use super::{print_remarks, write, write_json};
use crate::environment::{Machine, Source};
use crate::options::CompareOptions;
use crate::report::{
    Comparison, Contender, compare, comparison_table, cost_table, markdown, memory_table, plot,
};
use crate::scenarios::{self, Outcome};
use crate::series::{self, Pass, Series};

const NAMES: [&str; 2] = ["ours", "peer"];

#[derive(Serialize)]
struct Results<'a> {
    ours: &'a Contender,
    peer: &'a Contender,
    comparison: &'a Comparison,
}

pub async fn run(compare_options: CompareOptions) -> Result<bool> {
    let CompareOptions { queen, peer, plots, markdown: markdown_file, options } = compare_options;
    let selected = scenarios::select(&options.scenario)?;
    let sources = [Source::queen(&queen), Source::parse(&peer)];
    let runs = options.runs.unwrap_or(options.scale(3, 1));
    let mut all: [Vec<Series>; 2] = Default::default();
    let mut budgets: [Option<Series>; 2] = Default::default();
    let series = async |broker: usize, pass: Pass| {
        let series = series::run(&sources[broker], &options, &selected, pass).await;
        // The other broker's series may still be useful.
        series.unwrap_or_else(|error| Series {
            outcome: Outcome { violations: vec![format!("no series: {error:#}")], ..Outcome::default() },
            ..Series::default()
        })
    };
    for run in 1..=runs {
        // The first has a cooler machine and colder caches, so the order alternates.
        let order = if run % 2 == 1 { [0, 1] } else { [1, 0] };
        for broker in order {
            eprintln!("run {run}/{runs}: {}, {}", NAMES[broker], sources[broker]);
            all[broker].push(series(broker, Pass::Timed).await);
        }
    }
    if options.budget {
        for broker in [0, 1] {
            eprintln!("budget: {}", NAMES[broker]);
            budgets[broker] = Some(series(broker, Pass::Budget).await);
        }
    }
    let [our_runs, peer_runs] = all;
    let [our_budget, peer_budget] = budgets;
    let ours = Contender::of(sources[0].to_string(), our_runs, our_budget);
    let peer = Contender::of(sources[1].to_string(), peer_runs, peer_budget);
    let comparison = compare(&ours, &peer);

    let both = [(NAMES[0], &ours), (NAMES[1], &peer)];
    let tables = [comparison_table(&comparison), memory_table(&both, &comparison.memory), cost_table(&both)];
    for table in &tables {
        println!("{}", table.text());
    }
    for (name, contender) in both {
        println!("{name}: {}", contender.describe());
        print_remarks(name, contender);
    }
    let machine = Machine::here();
    if let Some(folder) = &plots {
        plot(&comparison, folder)?;
    }
    if let Some(file) = &markdown_file {
        write(file, markdown(&machine, &both, &tables).as_bytes())?;
    }
    write_json(
        options.json.as_deref(),
        machine,
        Results { ours: &ours, peer: &peer, comparison: &comparison },
    )?;
    Ok(ours.is_clean())
}

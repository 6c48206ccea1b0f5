//! `queen-bench run`: runs scenarios on one broker. Fails on any violation and any unexpected response.

use anyhow::Result;

use super::{print_remarks, write_json};
use crate::environment::{Machine, Site, Source};
use crate::options::RunOptions;
use crate::report::{Contender, cost_table, memory_table, result_table};
use crate::scenarios::{self, Scenario};
use crate::series::{self, Pass, Series};

const NAME: &str = "queen";

pub async fn run(run_options: RunOptions) -> Result<bool> {
    let options = &run_options.options;
    let selected = scenarios::select(&options.scenario)?;
    let source = match &run_options.queen {
        Some(queen) => Source::queen(queen),
        None => Source::Url(run_options.url.clone()),
    };
    let runs = options.runs.unwrap_or(1);
    let mut all = Vec::new();
    // Runs are the outer loop, so that a slow minute of the machine affects each scenario at most once.
    for run in 1..=runs {
        eprintln!("run {run}/{runs}");
        all.push(series(&run_options, &source, &selected, Pass::Timed).await?);
    }
    let mut budget = None;
    if options.budget {
        eprintln!("budget");
        budget = Some(series(&run_options, &source, &selected, Pass::Budget).await?);
    }
    let contender = Contender::of(source.to_string(), all, budget);

    print!("{}", result_table(&contender.summaries).text());
    println!("\n{}", cost_table(&[(NAME, &contender)]).text());
    println!("{}", memory_table(&[(NAME, &contender)], &[]).text());
    print_remarks(NAME, &contender);
    write_json(options.json.as_deref(), Machine::here(), &contender)?;
    Ok(contender.is_clean())
}

async fn series(
    run_options: &RunOptions,
    source: &Source,
    selected: &[Scenario],
    pass: Pass,
) -> Result<Series> {
    let Source::Url(_) = source else {
        return series::run(source, &run_options.options, selected, pass).await;
    };
    // A broker that was not started here: its process ids come from the options.
    let mut site = Site::open(source).await?;
    site.watch.broker_pid = run_options.broker_pid;
    site.watch.postgres_pid = run_options.postgres_pid;
    series::run_on(&site, &run_options.options, selected, pass).await
}

//! `queen-bench growth`: cost of an operation as one dimension grows while the work per message stays the same. Each point uses a
//! fresh PostgreSQL, the loaded dimension and a new broker; then batches of one, pops and acks, and pushes, always of the same 64
//! partitions.

mod lines;
mod load;
mod point;

use std::time::Duration;

use anyhow::Result;
use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use self::lines::{Figures, Line};
use self::point::Point;
use super::{write, write_json};
use crate::environment::{Machine, Site, Source};
use crate::options::{Axis, GrowthOptions, Options};
use crate::report::section;
use crate::scenarios::{self, Claim, Outcome, Scenario, Shape};
use crate::setup::Setup;

const POP: &str = "pop + ack";
const PUSH: &str = "push";

#[derive(Serialize)]
struct Results<'a> {
    growth: &'a [Line],
    violations: &'a [String],
}

pub async fn run(growth: GrowthOptions) -> Result<bool> {
    let axes = if growth.axis.is_empty() { Axis::ALL.to_vec() } else { growth.axis.clone() };
    let base = Options {
        quick: growth.quick,
        seconds: growth.seconds.or(growth.quick.then_some(Duration::from_millis(200))),
        ..Options::standard()
    };
    let source = Source::queen(&growth.queen);
    let mut measured = Vec::new();
    let mut violations = Vec::new();
    let points = |axis: Axis| match &*growth.points {
        [] => axis.points(growth.quick),
        sizes => axis.of_sizes(sizes),
    };
    let open_files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    for point in axes.into_iter().flat_map(points).map(|point| point.within(open_files)) {
        eprintln!("{point}");
        match Box::pin(measure(&source, point, &base)).await {
            Ok((operations, broken)) => {
                measured.push((point, operations));
                violations.extend(broken.into_iter().map(|text| format!("{point}: {text}")));
            }
            // The other points may still be useful.
            Err(error) => violations.push(format!("{point}: not finished: {error:#}")),
        }
    }
    let lines = lines::lines(&measured);
    let table = lines::table(&lines);
    println!("{}", table.text());
    for violation in &violations {
        println!("VIOLATION {violation}");
    }
    let machine = Machine::here();
    if let Some(file) = &growth.markdown {
        let words =
            "Per message, for groups per delivery; in brackets the ratio to the first point of the axis.";
        write(file, section(&machine, words, &[table]).as_bytes())?;
    }
    write_json(growth.json.as_deref(), machine, Results { growth: &lines, violations: &violations })?;
    Ok(violations.is_empty())
}

type Operations = Vec<(&'static str, Figures)>;

/// The figures of each operation, and violations.
async fn measure(source: &Source, point: Point, base: &Options) -> Result<(Operations, Vec<String>)> {
    let options = point.options(base);
    let mut site = Site::open(source).await?;
    let queue = Setup::at(&site, &options, false).await?.create_queue("growth").await?;
    site.stop_broker().await?;
    load::fill(&site, &queue, point, &options).await?;
    site.restart_broker().await?;

    let setup = Setup::at(&site, &options, false).await?;
    let mut polls = None;
    if point.axis == Axis::Parked {
        let idle_queue = setup.create_queue("idle").await?;
        polls = Some(scenarios::park(&setup, &idle_queue, point.size).await?);
    }
    let pops = scenarios::pop_by_groups(&setup, &queue, POP, Claim::Wildcard, 1, &point.groups()).await?;
    let shape = Shape { batch: 1, spread: 1, connections: None };
    let pushes = scenarios::run_on(&setup, &queue, Scenario::Push(shape)).await?;

    let memory = site.broker_memory();
    let mut broken = Vec::new();
    if polls.as_mut().is_some_and(|polls| polls.try_join_next().is_some()) {
        broken.push("a poll of an idle queue ended early".to_owned());
    }
    drop(polls);
    let mut operations = Vec::new();
    for (name, outcome) in [(POP, pops), (PUSH, pushes)] {
        let Outcome { rows, violations, error_texts, .. } = outcome;
        broken.extend(violations.into_iter().chain(error_texts));
        match rows.first() {
            Some(row) if row.messages > 0 => operations.push((name, Figures::of(row, memory))),
            _ => broken.push(format!("{name}: nothing was measured")),
        }
    }
    site.close().await?;
    Ok((operations, broken))
}

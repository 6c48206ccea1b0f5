//! `queen-bench admin`: latency and accuracy of the admin API while a large queue is written and read, and the cost of its
//! statistics. Uses one PostgreSQL, filled over HTTP.

mod cost;
mod depth;
mod load;
mod routes;
mod tables;
mod traffic;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use serde::Serialize;

use self::cost::Cost;
use self::depth::Exactness;
use self::load::Size;
use self::routes::RouteFigures;
use self::traffic::{Ledger, Steady};
use super::{write, write_json};
use crate::direct::Link;
use crate::environment::{Machine, Site, Source};
use crate::options::{AdminOptions, Options};
use crate::report::{section, thousands};
use crate::setup::Setup;

/// Both read all of the large queue.
const GROUPS: [&str; 2] = ["first", "second"];

/// Median latency of a response.
const GOAL_P50_US: f64 = 50_000.0;
/// Throughput relative to that without statistics.
const GOAL_RATIO: f64 = 0.98;
/// Between the last acknowledgement and the first exact response.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Results<'a> {
    size: Size,
    fill_seconds: f64,
    /// Time to measure what changed, mostly the large queue.
    measured_ms: f64,
    /// The same under traffic, which keeps changing the queue.
    measured_under_load_ms: f64,
    traffic: &'a Steady,
    routes: &'a [RouteFigures],
    goal_p50_us: f64,
    exactness: &'a Exactness,
    cost: &'a Cost,
    goal_ratio: f64,
    /// None in a smoke test.
    met: Option<bool>,
    violations: &'a [String],
}

pub async fn run(admin: AdminOptions) -> Result<bool> {
    let options = Options { quick: admin.quick, seconds: admin.seconds, ..Options::standard() };
    let size = Size::of(&admin);
    let mut site = Site::open(&Source::queen(&admin.queen)).await?;
    let setup = Setup::at(&site, &options, false).await?;
    let mut violations = Vec::new();

    eprintln!("filling: {size}");
    let ledger = Arc::new(Ledger::new(&GROUPS));
    let (queue, fill_seconds) = load::fill(&setup, size, &ledger).await?;
    Link::open(&site.database()?).await?.settle().await?;
    let measured_ms = load::refresh(&setup).await?;

    let each = options.seconds.unwrap_or(options.scale(Duration::from_secs(5), Duration::from_millis(300)));
    let ask = async {
        let routes = routes::ask_all(&setup, &queue, GROUPS[0], each).await?;
        // A background measurement must not change the counts.
        eprintln!("measuring");
        Ok((routes, load::refresh(&setup).await?))
    };
    let traffic = traffic::Place { queue: &queue, partitions: size.partitions, ledger: &ledger };
    let (steady, (routes, measured_under_load_ms)) = traffic.beside(&setup, admin.rate, &GROUPS, ask).await?;
    violations.extend(steady.error_texts.iter().map(|text| format!("traffic: {text}")));
    violations.extend(routes.iter().filter_map(RouteFigures::violation));

    let exactness = depth::wait_until_exact(&setup, &queue, &ledger, PATIENCE).await?;
    violations.extend(exactness.violation());
    eprintln!("{exactness}");

    let pairs = admin.pairs.unwrap_or(options.scale(8, 1));
    let plan = cost::Plan::new(pairs, options.quick, Duration::from_secs_f64(measured_ms / 1e3));
    let cost = Box::pin(cost::run(&mut site, &options, &queue, plan)).await?;
    violations.extend(cost.error_texts.iter().map(|text| format!("with and without statistics: {text}")));
    if cost.ratio.is_none() {
        violations.push("with and without statistics: nothing was measured".to_owned());
    }
    site.close().await?;

    let fast = routes.iter().all(tables::is_met);
    let cheap = cost.ratio.is_some_and(|ratio| ratio.median >= GOAL_RATIO);
    let met = (!admin.quick).then_some(fast && cheap);
    let tables = [tables::routes(&routes), tables::cost(&cost)];
    let words = [
        format!(
            "{size}, filled in {fill_seconds:.0} s; measured on demand in {} ms, and in {} ms under load.",
            thousands(measured_ms),
            thousands(measured_under_load_ms),
        ),
        steady.to_string(),
        exactness.to_string(),
        tables::verdict(&cost),
    ];
    for table in &tables {
        println!("{}", table.text());
    }
    for line in &words {
        println!("{line}");
    }
    for violation in &violations {
        println!("VIOLATION {violation}");
    }
    let machine = Machine::here();
    if let Some(file) = &admin.markdown {
        write(file, section(&machine, &words.join("\n"), &tables).as_bytes())?;
    }
    let results = Results {
        size,
        fill_seconds,
        measured_ms,
        measured_under_load_ms,
        traffic: &steady,
        routes: &routes,
        goal_p50_us: GOAL_P50_US,
        exactness: &exactness,
        cost: &cost,
        goal_ratio: GOAL_RATIO,
        met,
        violations: &violations,
    };
    write_json(admin.json.as_deref(), machine, results)?;
    Ok(violations.is_empty() && met != Some(false))
}

//! `queen-bench soak`: runs a broker below its peak for a long time, while retention removes old messages. Memory, dead tuples,
//! tables and latency must not grow; and with a transaction that stays open all the time it must sustain most of the same load.
//! Each on a fresh PostgreSQL.

mod part;
mod tables;
mod verdict;

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use self::part::Part;
use self::verdict::Trend;
use super::pinned::Holder;
use super::{write, write_json};
use crate::environment::{Machine, Site, Source};
use crate::options::{Options, SoakOptions};
use crate::report::{section, thousands};
use crate::scenarios::{Pace, end_to_end};
use crate::setup::Setup;
use crate::wire::expect_status;

/// Share of the load without the transaction.
const GOAL_PERCENT: f64 = 80.0;
const PARTS: u32 = 10;
/// Messages per push.
const BATCH: u32 = 10;
/// Share of the time for finding the peak.
const PEAK_SHARE: f64 = 0.03;

#[derive(Serialize)]
struct Results<'a> {
    peak_per_second: f64,
    rate_per_second: u32,
    keep_seconds: u32,
    free: &'a [Part],
    trends: &'a [Trend],
    pinned: &'a [Part],
    percent: Option<f64>,
    goal_percent: f64,
    /// None in a smoke test.
    met: Option<bool>,
    violations: &'a [String],
}

pub async fn run(soak: SoakOptions) -> Result<bool> {
    let seconds = soak.seconds.unwrap_or(Duration::from_secs(if soak.quick { 3 } else { 1_800 }));
    let pinned_seconds = soak.pinned_seconds.unwrap_or(seconds);
    let keep = soak.keep.unwrap_or(if soak.quick { 1 } else { 60 });
    let options = Options { quick: soak.quick, ..Options::standard() };

    let peak = peak(&soak, &options, keep, seconds.mul_f64(PEAK_SHARE).max(Duration::from_secs(1))).await?;
    let pace = Pace { per_second: ((peak * soak.load) as u32).max(BATCH), batch: BATCH };
    eprintln!("peak {} msg/s; free at {} msg/s", thousands(peak), thousands(pace.per_second.into()));
    let (free, mut violations) = parts(&soak, &options, keep, pace, seconds, false).await?;
    eprintln!("pinned at {} msg/s", thousands(pace.per_second.into()));
    let (pinned, others) = parts(&soak, &options, keep, pace, pinned_seconds, true).await?;
    violations.extend(others);

    let trends = verdict::trends(&free);
    let percent = verdict::percent(&free, &pinned);
    let flat = trends.iter().all(Trend::is_flat);
    let carried = percent.is_some_and(|percent| percent >= GOAL_PERCENT);
    let met = (!soak.quick).then_some(flat && carried);
    let all = [tables::parts(&free), tables::trends(&trends), tables::parts(&pinned)];
    let words = format!(
        "Peak {} msg/s, load {} msg/s for {} s, messages removed after {keep} s. {} With a transaction held open for \
         {} s it carried {} % of that; the goal is {GOAL_PERCENT:.0} %.",
        thousands(peak),
        thousands(pace.per_second.into()),
        seconds.as_secs(),
        if flat { "Nothing grew." } else { "Something grew." },
        pinned_seconds.as_secs(),
        percent.map_or_else(|| "?".to_owned(), |percent| format!("{percent:.0}")),
    );
    for (name, table) in ["free", "trends", "pinned"].iter().zip(&all) {
        println!("{name}\n{}", table.text());
    }
    println!("{words}");
    for violation in &violations {
        println!("VIOLATION {violation}");
    }
    let machine = Machine::here();
    if let Some(file) = &soak.markdown {
        write(file, section(&machine, &words, &all).as_bytes())?;
    }
    let results = Results {
        peak_per_second: peak,
        rate_per_second: pace.per_second,
        keep_seconds: keep,
        free: &free,
        trends: &trends,
        pinned: &pinned,
        percent,
        goal_percent: GOAL_PERCENT,
        met,
        violations: &violations,
    };
    write_json(soak.json.as_deref(), machine, results)?;
    Ok(violations.is_empty() && met != Some(false))
}

/// Messages delivered per second in a closed loop, while as many are removed as are pushed.
async fn peak(soak: &SoakOptions, options: &Options, keep: u32, time: Duration) -> Result<f64> {
    let steady = Duration::from_secs(u64::from(keep)) * 3 / 2;
    let options = Options { seconds: Some(time), warmup: Some(steady), ..options.clone() };
    let site = Site::open(&source(soak)).await?;
    let setup = Setup::at(&site, &options, false).await?;
    let queue = create_queue(&setup, keep).await?;
    let outcome = end_to_end(&setup, &queue, "peak", None).await?;
    site.close().await?;
    Ok(outcome.rows.first().context("nothing was measured")?.messages_per_second)
}

/// The same load repeatedly, on the same queue of the same broker.
async fn parts(
    soak: &SoakOptions,
    options: &Options,
    keep: u32,
    pace: Pace,
    time: Duration,
    held: bool,
) -> Result<(Vec<Part>, Vec<String>)> {
    let site = Site::open(&source(soak)).await?;
    let options = Options { seconds: Some(time / PARTS), ..options.clone() };
    let setup = Setup::at(&site, &options, false).await?;
    let queue = create_queue(&setup, keep).await?;
    let holder = if held { Some(Holder::begin(&site).await?) } else { None };
    let (mut parts, mut violations) = (Vec::new(), Vec::new());
    for number in 1..=PARTS {
        let (part, broken) = Box::pin(part::run(&site, &setup, &queue, pace, number)).await?;
        eprintln!("{part}");
        parts.push(part);
        violations.extend(broken);
    }
    if let Some(holder) = &holder {
        holder.check().await?;
    }
    drop(holder);
    site.close().await?;
    Ok((parts, violations))
}

/// Retention runs often enough to be active in every part.
fn source(soak: &SoakOptions) -> Source {
    let interval = if soak.quick { "200ms" } else { "5s" };
    let program = soak.queen.display().to_string();
    Source::Command(
        [program.as_str(), "serve", "--retention-interval", interval, "--extent-bytes", "64MiB"]
            .map(str::to_owned)
            .into(),
    )
}

async fn create_queue(setup: &Setup, keep: u32) -> Result<String> {
    let queue = setup.create_queue("soak").await?;
    let body = format!(
        r#"{{"queue":"{queue}","options":{{"retentionEnabled":true,"retentionSeconds":{keep},"completedRetentionSeconds":{keep}}}}}"#
    );
    let reply = setup.client().post("/api/v1/configure", body.as_bytes()).await?;
    expect_status("configure", &reply, 200)?;
    Ok(queue)
}

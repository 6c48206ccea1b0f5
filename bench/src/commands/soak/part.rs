//! One part of the time: the load, and samples of the broker and its tables.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::commands::pinned::table_states;
use crate::direct::Link;
use crate::environment::Site;
use crate::report::{millis, significant, thousands};
use crate::scenarios::{Pace, end_to_end};
use crate::setup::Setup;

/// Samples of the tables per part.
const LOOKS: u32 = 30;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Part {
    pub number: u32,
    pub messages_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    // The following are medians of all samples, because caches shrink in steps and vacuum runs at irregular times.
    /// Of the broker.
    pub resident_mb: f64,
    /// All tables of the broker with their indexes.
    pub tables_mb: f64,
    /// Without the log, whose size follows the load.
    pub state_mb: f64,
    pub dead_tuples: f64,
}

#[derive(Clone, Copy)]
struct Look {
    resident_mb: f64,
    tables_mb: f64,
    state_mb: f64,
    dead_tuples: f64,
}

/// With violations and unexpected responses.
pub async fn run(
    site: &Site,
    setup: &Setup,
    queue: &str,
    pace: Pace,
    number: u32,
) -> Result<(Part, Vec<String>)> {
    let observer = Link::open(&site.database()?).await?;
    let mut looks = Vec::new();
    let name = format!("part {number}");
    let outcome = tokio::select! {
        outcome = end_to_end(setup, queue, &name, Some(pace)) => outcome?,
        failed = watch(site, &observer, setup.options.measured() / LOOKS, &mut looks) => failed?,
    };
    looks.push(look(site, &observer).await?);
    let row = outcome.rows.first().context("nothing was measured")?;
    let part = Part {
        number,
        messages_per_second: row.messages_per_second,
        p50_us: row.p50_us as f64,
        p99_us: row.p99_us as f64,
        resident_mb: middle(&looks, |look| look.resident_mb),
        tables_mb: middle(&looks, |look| look.tables_mb),
        state_mb: middle(&looks, |look| look.state_mb),
        dead_tuples: middle(&looks, |look| look.dead_tuples),
    };
    Ok((part, outcome.violations.into_iter().chain(outcome.error_texts).collect()))
}

/// Runs until dropped. Only returns after a failure.
async fn watch<T>(site: &Site, observer: &Link, interval: Duration, looks: &mut Vec<Look>) -> Result<T> {
    loop {
        tokio::time::sleep(interval).await;
        looks.push(look(site, observer).await?);
    }
}

async fn look(site: &Site, observer: &Link) -> Result<Look> {
    let tables = table_states(observer).await?;
    let state = tables.iter().filter(|table| table.name != "segments");
    Ok(Look {
        resident_mb: site.broker_memory().context("the broker is gone")?.resident_mb,
        tables_mb: tables.iter().map(|table| table.megabytes).sum(),
        state_mb: state.map(|table| table.megabytes).sum(),
        dead_tuples: tables.iter().map(|table| table.dead as f64).sum(),
    })
}

fn middle(looks: &[Look], value: fn(&Look) -> f64) -> f64 {
    let mut values: Vec<f64> = looks.iter().map(value).collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "part {}: {} msg/s, p50 {} ms, p99 {} ms, broker {} MB, tables {} MB, {} dead tuples",
            self.number,
            thousands(self.messages_per_second),
            millis(self.p50_us),
            millis(self.p99_us),
            significant(self.resident_mb),
            significant(self.tables_mb),
            thousands(self.dead_tuples),
        )
    }
}

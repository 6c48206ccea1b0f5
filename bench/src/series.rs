//! Runs all selected scenarios once, on a broker that is started before and stopped afterwards.

use anyhow::Result;

use crate::environment::{Site, Source};
use crate::measure::Memory;
use crate::options::Options;
use crate::scenarios::{self, Outcome, Scenario};
use crate::setup::Setup;

#[derive(Default)]
pub struct Series {
    pub outcome: Outcome,
    /// Memory of the broker at the end.
    pub memory: Option<Memory>,
    pub broker_version: Option<String>,
    pub postgres_version: Option<String>,
}

/// The purpose of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pass {
    Timed,
    /// For the costs that PostgreSQL reports late.
    Budget,
}

/// Opens a site, runs the series, closes the site. Only a missing site is an error; everything else is part of the outcome, because
/// other scenarios may still be useful.
pub async fn run(source: &Source, options: &Options, selected: &[Scenario], pass: Pass) -> Result<Series> {
    let site = Site::open(source).await?;
    let series = run_on(&site, options, selected, pass).await;
    let closed = site.close().await;
    let mut series = series?;
    if let Err(error) = closed {
        series.outcome.violations.push(format!("{error:#}"));
    }
    Ok(series)
}

pub async fn run_on(site: &Site, options: &Options, selected: &[Scenario], pass: Pass) -> Result<Series> {
    let setup = Setup::at(site, options, pass == Pass::Budget).await?;
    let mut total = Outcome::default();
    for &scenario in selected {
        eprintln!("  {scenario}");
        match Box::pin(scenarios::run(&setup, scenario)).await {
            Ok(outcome) => {
                if outcome.rows.iter().any(|row| row.messages == 0) {
                    total.violations.push(format!("{scenario}: nothing was measured"));
                }
                total.add_all(outcome);
            }
            Err(error) => total.violations.push(format!("{scenario}: not finished: {error:#}")),
        }
    }
    Ok(Series {
        outcome: total,
        memory: site.broker_memory(),
        broker_version: site.broker_version.clone(),
        postgres_version: site.postgres_version.clone(),
    })
}

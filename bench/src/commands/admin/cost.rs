//! The cost of statistics: brokers with and without them in turn, each started fresh on the same database, with the same traffic
//! on the large queue.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::traffic::{Ledger, Place};
use crate::environment::Site;
use crate::harness::{self, Operation};
use crate::measure;
use crate::options::Options;
use crate::report::Spread;
use crate::setup::Setup;

/// An interval so long that statistics are never reported during a run.
const WITHOUT: [&str; 2] = ["--stats-interval", "1h"];
/// This group reads only messages that are pushed here, so that every run finds the queue unchanged.
const GROUP: &str = "live";
/// Procedures that a broker calls in the background to maintain its statistics.
const PROCEDURES: [&str; 2] = ["queen.count", "queen.measure_next"];

pub struct Plan {
    pairs: u32,
    warmup: Duration,
    measured: Duration,
}

impl Plan {
    /// A new broker first measures the queue, and then not for a while, because it limits the time spent on that.
    /// Within the measured time this would weigh far too much, so it belongs to the warm-up. Under traffic it takes
    /// longer than `measuring`.
    pub fn new(pairs: u32, quick: bool, measuring: Duration) -> Plan {
        let (warmup, measured) = match quick {
            true => (Duration::from_millis(300), Duration::from_millis(500)),
            false => (Duration::from_secs(3) + measuring * 3, Duration::from_secs(10)),
        };
        Plan { pairs, warmup, measured }
    }
}

#[derive(Debug, Serialize)]
pub struct Cost {
    pub measured_seconds: f64,
    pub pairs: Vec<Pair>,
    /// Throughput with statistics relative to that without, for each pair.
    pub ratio: Option<Spread>,
    /// Time that calls for statistics spent in the database, in percent of the measured time.
    pub share_percent: Option<Spread>,
    #[serde(skip)]
    pub error_texts: Vec<String>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Pair {
    pub with: Leg,
    pub without: Leg,
}

impl Pair {
    pub fn ratio(&self) -> Option<f64> {
        let measured = self.without.messages_per_second > 0.0;
        measured.then(|| self.with.messages_per_second / self.without.messages_per_second)
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Leg {
    /// Pushed and acknowledged.
    pub messages_per_second: f64,
    /// CPU time of broker and PostgreSQL per message.
    pub cpu_us: Option<f64>,
    pub statistics_ms: f64,
}

pub async fn run(site: &mut Site, options: &Options, queue: &str, plan: Plan) -> Result<Cost> {
    let mut pairs = Vec::new();
    let mut error_texts = Vec::new();
    for number in 1..=plan.pairs {
        let mut pair = Pair { with: Leg::default(), without: Leg::default() };
        // The first run has the smaller database, so the order alternates.
        for with in [number % 2 == 1, number % 2 == 0] {
            eprintln!("pair {number}/{}: {} statistics", plan.pairs, if with { "with" } else { "without" });
            let leg = leg(site, options, queue, &plan, with, &mut error_texts).await?;
            *(if with { &mut pair.with } else { &mut pair.without }) = leg;
        }
        pairs.push(pair);
    }
    let measured_seconds = plan.measured.as_secs_f64();
    let share = |pair: &Pair| pair.with.statistics_ms / measured_seconds / 10.0;
    Ok(Cost {
        measured_seconds,
        ratio: Spread::of(pairs.iter().filter_map(Pair::ratio).collect()),
        share_percent: Spread::of(pairs.iter().map(share).collect()),
        pairs,
        error_texts,
    })
}

async fn leg(
    site: &mut Site,
    options: &Options,
    queue: &str,
    plan: &Plan,
    with: bool,
    error_texts: &mut Vec<String>,
) -> Result<Leg> {
    site.restart_broker_with(if with { &[] } else { &WITHOUT }).await?;
    let setup = Setup::at(site, options, false).await?;
    let session = site.session().await?.context("the database is not ours")?;
    // Messages pushed and read here do not matter afterwards.
    let ledger = Arc::new(Ledger::new(&[]));
    let place = Place { queue, partitions: options.partitions, ledger: &ledger };
    let warmup = harness::Plan::timed(Duration::ZERO, plan.warmup).unmetered();
    let warmup = place.at_full_speed(&setup, GROUP, warmup).await?;
    let before = session.milliseconds_of(&PROCEDURES).await?;
    let measured = harness::Plan::timed(Duration::ZERO, plan.measured);
    let phase = place.at_full_speed(&setup, GROUP, measured).await?;
    let statistics_ms = session.milliseconds_of(&PROCEDURES).await? - before;
    error_texts.extend(warmup.error_texts.into_iter().chain(phase.error_texts.iter().cloned()));

    let count = |messages: fn(&harness::Tally) -> u64| {
        messages(phase.tally(Operation::Push)) + messages(phase.tally(Operation::Ack))
    };
    let cost = measure::Cost::of(&phase.usage, count(|tally| tally.metered_messages));
    Ok(Leg {
        messages_per_second: count(|tally| tally.messages) as f64 / phase.seconds.max(0.001),
        cpu_us: cost.broker_cpu_us.zip(cost.postgres_cpu_us).map(|(broker, postgres)| broker + postgres),
        statistics_ms,
    })
}

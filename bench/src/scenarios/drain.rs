//! Many partitions with one message each, drained by wildcard pops of up to `claimed` partitions.

use anyhow::Result;

use super::Outcome;
use crate::checker::Checker;
use crate::consumer::{Consumer, Timing, check_nothing_left};
use crate::harness::{Plan, run_workers};
use crate::setup::{Setup, shared, with_checker};

pub async fn run(setup: &Setup, queue: &str, name: &str, claimed: u32) -> Result<Outcome> {
    let options = &setup.options;
    let partitions = options.scale(10_000, 300);
    let checker = shared(Checker::new(1));
    setup.preload(queue, partitions, 1, Some(&checker)).await?;
    let query = format!("batch=10&partitions={claimed}");
    let consumer = |_| Consumer::new(queue, &query, None, &checker, Timing::Pop, options.stall);
    let consumers = (0..options.connections).map(consumer).collect();
    let phase = run_workers(setup, consumers, Plan::until_done()).await?;
    check_nothing_left(&mut setup.client(), queue, None, &checker).await?;

    let mut outcome = Outcome::of(name, &phase);
    with_checker(&checker, |checker| outcome.add_violations(name, checker));
    Ok(outcome)
}

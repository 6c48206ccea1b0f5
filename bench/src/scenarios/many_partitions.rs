//! Many partitions with one message each, drained by wildcard pops of one and of ten partitions.

use std::time::Duration;

use anyhow::Result;

use super::Outcome;
use crate::checker::Checker;
use crate::consumer::{Consumer, Timing, check_nothing_left};
use crate::harness::run_workers;
use crate::setup::{Setup, shared, with_checker};

pub async fn run(setup: &Setup, queue: &str, name: &str) -> Result<Outcome> {
    let options = &setup.options;
    let partitions = options.scale(10_000, 300);
    setup.preload(queue, partitions, 1, None).await?;
    let mut outcome = Outcome::default();
    for claimed in [1, 10] {
        let name = format!("{name}-{claimed}");
        let group = format!("claims-{claimed}");
        let mut checker = Checker::new(0);
        for partition in 0..partitions {
            checker.sent(0, partition, 0, true);
        }
        let checker = shared(checker);
        let query = format!("batch=10&partitions={claimed}");
        let consumer = |_| Consumer::new(queue, &query, Some(&group), &checker, Timing::Pop, options.stall);
        let consumers = (0..options.connections).map(consumer).collect();
        let phase = run_workers(setup, consumers, Duration::ZERO, None).await?;
        check_nothing_left(&mut setup.client(), queue, Some(&group), &checker).await?;
        outcome.add(&name, &phase);
        with_checker(&checker, |checker| outcome.add_violations(&name, checker));
    }
    Ok(outcome)
}

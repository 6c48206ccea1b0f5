//! Five consumer groups read the same queue to its end, each of them everything, once and in order.

use anyhow::Result;

use super::Outcome;
use crate::checker::Checker;
use crate::consumer::{Consumer, Timing, check_nothing_left};
use crate::harness::{Plan, run_workers};
use crate::setup::{Setup, shared, with_checker};

const GROUPS: u32 = 5;

pub async fn run(setup: &Setup, queue: &str, name: &str) -> Result<Outcome> {
    let options = &setup.options;
    let partitions = options.partitions;
    let each = options.scale(1_000, 20);
    let mut groups = Vec::new();
    for group in 0..GROUPS {
        // All groups must receive the same: the pushes themselves fill the first checker.
        let checker = shared(Checker::new(1));
        if group == 0 {
            setup.preload(queue, partitions, each, Some(&checker)).await?;
        } else {
            with_checker(&checker, |checker| {
                for (partition, seq) in (0..partitions).flat_map(|p| (0..each).map(move |seq| (p, seq))) {
                    checker.sent(0, partition, seq, true);
                }
                checker.producer_done();
            });
        }
        groups.push((format!("group-{group}"), checker));
    }
    let per_group = (options.connections / GROUPS).max(1);
    let mut consumers = Vec::new();
    for (group, checker) in &groups {
        for _ in 0..per_group {
            let timing = Timing::Pop;
            consumers.push(Consumer::new(queue, "batch=100", Some(group), checker, timing, options.stall));
        }
    }
    let phase = run_workers(setup, consumers, Plan::until_done()).await?;
    let mut outcome = Outcome::of(name, &phase);
    for (group, checker) in &groups {
        check_nothing_left(&mut setup.client(), queue, Some(group), checker).await?;
        with_checker(checker, |checker| outcome.add_violations(&format!("{name} {group}"), checker));
    }
    Ok(outcome)
}

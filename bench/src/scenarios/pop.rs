//! Pop and acknowledge from a queue filled beforehand, as fast as the broker answers.
//!
//! How much to fill in is found by a short drain first, which is also the warm-up. The measured time ends
//! with the limit or with the first empty pop, so that it never contains idle workers.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Outcome;
use crate::client::Client;
use crate::harness::{Flow, Operation, Phase, Plan, Recorder, Worker, run_workers};
use crate::setup::{ACK, Setup};
use crate::wire::{ack_body, check_acked, count_popped, partition_name, popped};

/// Where a pop takes its messages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Specific,
    SpecificAutoAck,
    Wildcard,
    /// Any of up to so many partitions, none of which can fill the batch alone.
    Spread(u32),
}

/// Of a spread pop: what the warm-up drained fits many times.
const SPREAD_PARTITIONS_MAX: u32 = 5_000;

pub async fn run(setup: &Setup, queue: &str, name: &str, claim: Claim, batch: u32) -> Result<Outcome> {
    let options = &setup.options;
    let fill = async |messages: f64| {
        let messages = messages.min(f64::from(options.preload_max));
        let (partitions, each) = match claim {
            Claim::Spread(claimed) => {
                let each = batch / claimed;
                let partitions = (messages / f64::from(each)).ceil() as u32;
                (partitions.clamp(options.partitions, SPREAD_PARTITIONS_MAX), each)
            }
            _ => {
                let batches = messages / f64::from(options.partitions) / f64::from(batch);
                (options.partitions, batch * batches.ceil().max(1.0) as u32)
            }
        };
        setup.preload(queue, partitions, each, None).await
    };
    let per_worker = options.scale(50, 5);
    fill(f64::from(options.connections * batch * per_worker)).await?;
    let warmup = Plan::timed(Duration::ZERO, options.warmup()).unmetered();
    let warmup = drain(setup, queue, claim, batch, warmup).await?;
    let rate = warmup.tally(Operation::Pop).messages as f64 / warmup.seconds.max(0.001);

    // A quarter more than the warm-up would take: a warm broker is faster.
    fill(rate * options.measured().as_secs_f64() * 1.25).await?;
    let measured = Plan::timed(Duration::ZERO, options.measured());
    let mut phase = drain(setup, queue, claim, batch, measured).await?;
    phase.errors += warmup.errors;
    phase.error_texts.extend(warmup.error_texts);
    Ok(Outcome::of(name, &phase))
}

async fn drain(setup: &Setup, queue: &str, claim: Claim, batch: u32, plan: Plan) -> Result<Phase> {
    let partitions = setup.options.partitions;
    // A partition has one lease at a time: more workers than partitions would only find it taken.
    let workers = setup.options.connections.min(partitions);
    let specific = |partition: u32, more: &str| {
        let partition = partition_name(partition);
        format!("/api/v1/pop/queue/{queue}/partition/{partition}?batch={batch}{more}")
    };
    let wildcard = |more: &str| vec![format!("/api/v1/pop/queue/{queue}?batch={batch}{more}")];
    let popper = |worker: u32| {
        let own = (worker..partitions).step_by(workers as usize);
        let pops = match claim {
            Claim::Specific => own.map(|partition| specific(partition, "")).collect(),
            Claim::SpecificAutoAck => own.map(|partition| specific(partition, "&autoAck=true")).collect(),
            Claim::Wildcard => wildcard(""),
            Claim::Spread(claimed) => wildcard(&format!("&partitions={claimed}")),
        };
        Popper { pops, next: 0, acknowledges: claim != Claim::SpecificAutoAck }
    };
    run_workers(setup, (0..workers).map(popper).collect(), plan).await
}

struct Popper {
    /// Asked in turn. No other worker asks the same partition.
    pops: Vec<String>,
    next: usize,
    acknowledges: bool,
}

impl Worker for Popper {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        if recorder.window().is_over() {
            return Ok(Flow::Done);
        }
        let pop = &self.pops[self.next % self.pops.len()];
        self.next += 1;
        let started = Instant::now();
        let reply = client.get(pop).await?;
        let finished = Instant::now();
        let count = count_popped(&reply)?;
        if count == 0 {
            recorder.window().stop();
            return Ok(Flow::Done);
        }
        recorder.record(Operation::Pop, started, finished, count);
        if self.acknowledges {
            let messages = popped(&reply)?;
            let body = ack_body(&messages, None);
            let started = Instant::now();
            let reply = client.post(ACK, &body).await?;
            let finished = Instant::now();
            check_acked(&reply, messages.len())?;
            recorder.record(Operation::Ack, started, finished, messages.len());
        }
        Ok(Flow::Continue)
    }
}

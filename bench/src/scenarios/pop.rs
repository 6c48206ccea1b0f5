//! Pops and acknowledges from a queue filled beforehand, as fast as the broker responds.
//!
//! A short drain first determines how much to fill in, and is also the warm-up. The measured time ends with the limit or with the
//! first empty pop, so that it contains no idle workers.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::Outcome;
use crate::client::Client;
use crate::harness::{Flow, Operation, Phase, Plan, Recorder, Worker, run_workers};
use crate::setup::{ACK, Setup};
use crate::wire::{ack_body, check_acked, count_popped, group_query, partition_name, popped};

/// The source of a pop's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Specific,
    SpecificAutoAck,
    Wildcard,
    /// Any of up to this many partitions in one pop.
    Spread(u32),
}

/// Each group reads everything; without groups, queue mode.
pub async fn run(
    setup: &Setup,
    queue: &str,
    name: &str,
    claim: Claim,
    batch: u32,
    groups: &[String],
) -> Result<Outcome> {
    let options = &setup.options;
    let fill = async |deliveries: f64| {
        let messages = (deliveries / groups.len().max(1) as f64).min(f64::from(options.preload_max));
        let batches = messages / f64::from(options.partitions) / f64::from(batch);
        let each = batch * batches.ceil().max(1.0) as u32;
        setup.preload(queue, options.partitions, each, None).await
    };
    let per_worker = options.scale(50, 5);
    fill(f64::from(options.connections * batch * per_worker)).await?;
    let warmup = Plan::timed(Duration::ZERO, options.warmup()).unmetered();
    let warmup = drain(setup, queue, claim, batch, groups, warmup).await?;
    let rate = warmup.tally(Operation::Pop).messages as f64 / warmup.seconds.max(0.001);

    // A quarter more than the warm-up suggests: a warm broker is faster.
    fill(rate * options.measured().as_secs_f64() * 1.25).await?;
    let measured = Plan::timed(Duration::ZERO, options.measured());
    let mut phase = drain(setup, queue, claim, batch, groups, measured).await?;
    phase.errors += warmup.errors;
    phase.error_texts.extend(warmup.error_texts);
    Ok(Outcome::of(name, &phase))
}

async fn drain(
    setup: &Setup,
    queue: &str,
    claim: Claim,
    batch: u32,
    groups: &[String],
    plan: Plan,
) -> Result<Phase> {
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
        let pops: Vec<String> = match claim {
            Claim::Specific => own.map(|partition| specific(partition, "")).collect(),
            Claim::SpecificAutoAck => own.map(|partition| specific(partition, "&autoAck=true")).collect(),
            Claim::Wildcard => wildcard(""),
            // Sixteen pops of ten partitions want more than there are, so some wait for a lease to end. But an empty queue must show quickly,
            // because it ends the measured time.
            Claim::Spread(claimed) => wildcard(&format!("&partitions={claimed}&wait=true&timeout=50")),
        };
        let of_group = |group: &String| {
            let with_group = |pop: &String| (pop.clone() + &group_query(group), Some(group.clone()));
            pops.iter().map(with_group).collect::<Vec<_>>()
        };
        let pops = match groups {
            [] => pops.into_iter().map(|pop| (pop, None)).collect(),
            groups => groups.iter().flat_map(of_group).collect(),
        };
        // Each starts with another group, so that all groups advance evenly.
        Popper { pops, next: worker as usize, acknowledges: claim != Claim::SpecificAutoAck }
    };
    run_workers(setup, (0..workers).map(popper).collect(), plan).await
}

struct Popper {
    /// The pops to send in turn, with their groups. No other worker pops the same partition by name.
    pops: Vec<(String, Option<String>)>,
    next: usize,
    acknowledges: bool,
}

impl Worker for Popper {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        if recorder.window().is_over() {
            return Ok(Flow::Done);
        }
        let (pop, group) = &self.pops[self.next % self.pops.len()];
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
            let body = ack_body(&messages, group.as_deref());
            let started = Instant::now();
            let reply = client.post(ACK, &body).await?;
            let finished = Instant::now();
            check_acked(&reply, messages.len())?;
            recorder.record(Operation::Ack, started, finished, messages.len());
        }
        Ok(Flow::Continue)
    }
}

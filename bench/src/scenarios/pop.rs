//! Pop and acknowledge from a queue filled beforehand, as fast as the broker answers.
//!
//! How much to fill in is found by a short drain first, which is also the warm-up. The measured time ends
//! with the limit or with the first empty pop, so that it never contains idle workers.

use std::time::{Duration, Instant};

use anyhow::Result;
use hyper::Uri;

use super::Outcome;
use crate::client::Client;
use crate::harness::{Flow, Operation, Phase, Recorder, Worker, run_workers};
use crate::setup::{Setup, ack_uri, uri};
use crate::wire::{ack_body, check_acked, partition_name, popped};

/// Where a pop takes its messages from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    Specific,
    SpecificAutoAck,
    Wildcard,
}

pub async fn run(setup: &Setup, queue: &str, name: &str, claim: Claim, batch: u32) -> Result<Outcome> {
    let options = &setup.options;
    let fill = async |messages: f64| {
        let each = messages.min(f64::from(options.preload_max)) / f64::from(options.partitions);
        let batches = (each / f64::from(batch)).ceil().max(1.0) as u32;
        setup.preload(queue, options.partitions, batches * batch, None).await
    };
    let per_worker = options.scale(50, 5);
    fill(f64::from(options.connections * batch * per_worker)).await?;
    let warmup = drain(setup, queue, claim, batch, options.warmup()).await?;
    let rate = warmup.tally(Operation::Pop).messages as f64 / warmup.seconds.max(0.001);

    // A quarter more than the warm-up would take: a warm broker is faster.
    fill(rate * options.measured().as_secs_f64() * 1.25).await?;
    let mut phase = drain(setup, queue, claim, batch, options.measured()).await?;
    phase.errors += warmup.errors;
    phase.error_texts.extend(warmup.error_texts);
    Ok(Outcome::of(name, &phase))
}

async fn drain(setup: &Setup, queue: &str, claim: Claim, batch: u32, limit: Duration) -> Result<Phase> {
    let partitions = setup.options.partitions;
    // A partition has one lease at a time: more workers than partitions would only find it taken.
    let workers = setup.options.connections.min(partitions);
    let specific = |partition: u32, more: &str| {
        let partition = partition_name(partition);
        uri(&format!("/api/v1/pop/queue/{queue}/partition/{partition}?batch={batch}{more}"))
    };
    let popper = |worker: u32| {
        let own = (worker..partitions).step_by(workers as usize);
        let pops = match claim {
            Claim::Specific => own.map(|partition| specific(partition, "")).collect(),
            Claim::SpecificAutoAck => own.map(|partition| specific(partition, "&autoAck=true")).collect(),
            Claim::Wildcard => vec![uri(&format!("/api/v1/pop/queue/{queue}?batch={batch}"))],
        };
        Popper { pops, next: 0, ack: (claim != Claim::SpecificAutoAck).then(ack_uri) }
    };
    run_workers(setup, (0..workers).map(popper).collect(), Duration::ZERO, Some(limit)).await
}

struct Popper {
    /// Asked in turn. No other worker asks the same partition.
    pops: Vec<Uri>,
    next: usize,
    ack: Option<Uri>,
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
        let messages = popped(&reply)?;
        if messages.is_empty() {
            recorder.window().stop();
            return Ok(Flow::Done);
        }
        recorder.record(Operation::Pop, started, finished, messages.len());
        if let Some(ack) = &self.ack {
            let body = ack_body(&messages, None);
            let started = Instant::now();
            let reply = client.post(ack, body).await?;
            let finished = Instant::now();
            check_acked(&reply, messages.len())?;
            recorder.record(Operation::Ack, started, finished, messages.len());
        }
        Ok(Flow::Continue)
    }
}

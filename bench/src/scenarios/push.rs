//! Push as fast as the broker answers: `batch` messages a request, to one random partition or spread.

use std::time::Instant;

use anyhow::Result;
use hyper::Uri;

use super::Outcome;
use crate::client::Client;
use crate::harness::{Flow, Operation, Recorder, Worker, run_workers};
use crate::setup::{Setup, push_uri};
use crate::wire::{PushBody, Random, Stamp, check_pushed};

pub async fn run(setup: &Setup, queue: &str, name: &str, batch: u32, spread: u32) -> Result<Outcome> {
    let options = &setup.options;
    let pusher = |producer| Pusher {
        body: PushBody::new(queue, options.payload),
        push: push_uri(),
        random: Random::from_entropy(),
        producer,
        batch,
        spread,
        partitions: options.partitions,
        seq: 0,
    };
    let pushers = (0..options.connections).map(pusher).collect();
    let phase = run_workers(setup, pushers, options.warmup(), Some(options.measured())).await?;
    Ok(Outcome::of(name, &phase))
}

struct Pusher {
    body: PushBody,
    push: Uri,
    random: Random,
    producer: u32,
    batch: u32,
    /// Partitions a request touches.
    spread: u32,
    partitions: u32,
    seq: u32,
}

impl Worker for Pusher {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        if recorder.window().is_over() {
            return Ok(Flow::Done);
        }
        let first = self.random.below(self.partitions);
        for index in 0..self.batch {
            let partition = (first + index % self.spread) % self.partitions;
            self.body.add(Stamp { producer: self.producer, partition, seq: self.seq, sent: 0 });
            self.seq += 1;
        }
        let body = self.body.finish();
        let started = Instant::now();
        let reply = client.post(&self.push, body).await?;
        let finished = Instant::now();
        check_pushed(&reply, self.batch as usize)?;
        recorder.record(Operation::Push, started, finished, self.batch as usize);
        Ok(Flow::Continue)
    }
}

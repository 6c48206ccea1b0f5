//! Pushes as fast as the broker responds: `batch` messages per request, to one random partition or spread.

use std::time::Instant;

use anyhow::Result;
use queen_testkit::Random;

use super::Outcome;
use crate::client::Client;
use crate::harness::{Flow, Operation, Plan, Recorder, Worker, run_workers};
use crate::setup::{PUSH, Setup};
use crate::wire::{PushBody, Stamp, check_pushed};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub batch: u32,
    /// Partitions per request.
    pub spread: u32,
    /// From the options, unless given.
    pub connections: Option<u32>,
}

pub async fn run(setup: &Setup, queue: &str, name: &str, shape: Shape) -> Result<Outcome> {
    let options = &setup.options;
    let Shape { batch, spread, connections } = shape;
    let pusher = |producer| Pusher {
        body: PushBody::new(queue, options.payload),
        random: Random::from_entropy(),
        producer,
        batch,
        spread,
        partitions: options.partitions,
        seq: 0,
    };
    let pushers = (0..connections.unwrap_or(options.connections)).map(pusher).collect();
    let phase = run_workers(setup, pushers, Plan::timed(options.warmup(), options.measured())).await?;
    Ok(Outcome::of(name, &phase))
}

struct Pusher {
    body: PushBody,
    random: Random,
    producer: u32,
    batch: u32,
    /// Partitions per request.
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
        let reply = client.post(PUSH, body).await?;
        let finished = Instant::now();
        check_pushed(&reply, self.batch as usize)?;
        recorder.record(Operation::Push, started, finished, self.batch as usize);
        Ok(Flow::Continue)
    }
}

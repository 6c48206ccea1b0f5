//! Producers and consumers at once, with every message checked.
//!
//! Without a rate, producers send as fast as they get responses. With one, each message has a scheduled send time and its latency
//! starts then: a slow broker cannot slow down the clock.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use queen_testkit::Random;

use super::Outcome;
use crate::checker::Checker;
use crate::client::Client;
use crate::consumer::{Consumer, Timing, check_nothing_left};
use crate::harness::{Flow, Operation, Plan, Recorder, Worker, run_workers};
use crate::pacer::Pacer;
use crate::setup::{PUSH, Setup, SharedChecker, shared, with_checker};
use crate::wire::{PushBody, Stamp, check_pushed};

const PRODUCERS: u32 = 8;
const CONSUMERS: u32 = 8;
/// Enough workers to keep the rate while some requests are slow.
const RATE_PRODUCERS: u32 = 32;

/// Messages per second, and messages per request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    pub per_second: u32,
    pub batch: u32,
}

pub async fn run(setup: &Setup, queue: &str, name: &str, pace: Option<Pace>) -> Result<Outcome> {
    let options = &setup.options;
    let producers = if pace.is_some() { RATE_PRODUCERS } else { PRODUCERS };
    let checker = shared(Checker::new(producers as usize));
    let pacer = pace.map(|pace| Pacer::new((pace.per_second / pace.batch).max(1))).transpose()?.map(Arc::new);
    let producer = |producer| {
        Role::Producer(Producer {
            body: PushBody::new(queue, options.payload),
            random: Random::from_entropy(),
            producer,
            batch: pace.map_or(10, |pace| pace.batch),
            next_seqs: vec![0; options.partitions as usize],
            pacer: pacer.clone(),
            epoch: setup.epoch,
            checker: checker.clone(),
        })
    };
    let query = format!("batch=100&wait=true&timeout={}", options.scale(1000, 200));
    let timing = Timing::Delivery(setup.epoch);
    let consumer = |_| Role::Consumer(Consumer::new(queue, &query, None, &checker, timing, options.stall));
    let roles = (0..producers).map(producer).chain((0..CONSUMERS).map(consumer)).collect();
    let plan = Plan::timed(options.warmup(), options.measured());
    let mut phase = run_workers(setup, roles, plan).await?;
    phase.open_loop = pace.is_some();
    check_nothing_left(&mut setup.client(), queue, None, &checker).await?;

    let mut outcome = Outcome::of(name, &phase);
    with_checker(&checker, |checker| {
        outcome.add_violations(name, checker);
        outcome.notes.push(format!("{name}: {} messages checked", checker.queued()));
    });
    Ok(outcome)
}

enum Role {
    Producer(Producer),
    Consumer(Consumer),
}

impl Worker for Role {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        match self {
            Role::Producer(producer) => producer.step(client, recorder).await,
            Role::Consumer(consumer) => consumer.step(client, recorder).await,
        }
    }
}

struct Producer {
    body: PushBody,
    random: Random,
    producer: u32,
    batch: u32,
    /// By partition.
    next_seqs: Vec<u32>,
    pacer: Option<Arc<Pacer>>,
    epoch: Instant,
    checker: SharedChecker,
}

impl Producer {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        let until = recorder.window().until;
        let intended = match &self.pacer {
            Some(pacer) => pacer.next(until).await?,
            None => Some(Instant::now()).filter(|&now| until.is_none_or(|until| now < until)),
        };
        let Some(intended) = intended else {
            with_checker(&self.checker, Checker::producer_done);
            return Ok(Flow::Done);
        };
        let sent = intended.saturating_duration_since(self.epoch).as_nanos() as u64;
        let partition = self.random.below(self.next_seqs.len() as u32);
        let next_seq = &mut self.next_seqs[partition as usize];
        let seqs = *next_seq..*next_seq + self.batch;
        *next_seq = seqs.end;
        for seq in seqs.clone() {
            self.body.add(Stamp { producer: self.producer, partition, seq, sent });
        }
        let items = self.body.items();
        let pushed = match client.post(PUSH, self.body.finish()).await {
            Ok(reply) => check_pushed(&reply, items),
            Err(error) => Err(error),
        };
        recorder.record(Operation::Push, intended, Instant::now(), items);
        with_checker(&self.checker, |checker| {
            for seq in seqs {
                checker.sent(self.producer, partition, seq, pushed.is_ok());
            }
        });
        pushed.map(|()| Flow::Continue)
    }
}

//! Producers and consumers at once, every message checked.
//!
//! Without a rate producers send as fast as they are answered. With one, each message has a time at which
//! it should be sent and its latency counts from then: a slow broker cannot slow down the clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use hyper::Uri;

use super::Outcome;
use crate::checker::Checker;
use crate::client::Client;
use crate::consumer::{Consumer, Timing, check_nothing_left};
use crate::harness::{Flow, Operation, Recorder, Worker, run_workers};
use crate::setup::{Setup, SharedChecker, push_uri, shared, with_checker};
use crate::wire::{PushBody, Random, Stamp, check_pushed};

const PRODUCERS: u32 = 8;
const CONSUMERS: u32 = 8;
/// Enough that a fixed rate is kept while some requests are slow.
const RATE_PRODUCERS: u32 = 32;

pub async fn run(setup: &Setup, queue: &str, name: &str, per_second: Option<u32>) -> Result<Outcome> {
    let options = &setup.options;
    let producers = if per_second.is_some() { RATE_PRODUCERS } else { PRODUCERS };
    let checker = shared(Checker::new(producers as usize));
    let ticket = Arc::new(AtomicU32::new(0));
    let producer = |producer| {
        let pace = per_second.map(|per_second| Pace { per_second, ticket: Arc::clone(&ticket) });
        Role::Producer(Producer {
            body: PushBody::new(queue, options.payload),
            push: push_uri(),
            random: Random::from_entropy(),
            producer,
            batch: if pace.is_some() { 1 } else { 10 },
            next_seqs: vec![0; options.partitions as usize],
            pace,
            epoch: setup.epoch,
            checker: checker.clone(),
        })
    };
    let query = format!("batch=100&wait=true&timeout={}", options.scale(1000, 200));
    let timing = Timing::Delivery(setup.epoch);
    let consumer = |_| Role::Consumer(Consumer::new(queue, &query, None, &checker, timing, options.stall));
    let roles = (0..producers).map(producer).chain((0..CONSUMERS).map(consumer)).collect();
    let phase = run_workers(setup, roles, options.warmup(), Some(options.measured())).await?;
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
    push: Uri,
    random: Random,
    producer: u32,
    batch: u32,
    /// By partition.
    next_seqs: Vec<u32>,
    pace: Option<Pace>,
    epoch: Instant,
    checker: SharedChecker,
}

/// Hands out send times to whichever producer is free.
struct Pace {
    per_second: u32,
    ticket: Arc<AtomicU32>,
}

impl Producer {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        let intended = match &self.pace {
            None => Instant::now(),
            Some(pace) => pace.next(recorder.window().opened),
        };
        if recorder.window().until.is_some_and(|until| intended >= until) {
            with_checker(&self.checker, Checker::producer_done);
            return Ok(Flow::Done);
        }
        sleep_until(intended).await?;
        let sent = intended.saturating_duration_since(self.epoch).as_nanos() as u64;
        let partition = self.random.below(self.next_seqs.len() as u32);
        let next_seq = &mut self.next_seqs[partition as usize];
        let seqs = *next_seq..*next_seq + self.batch;
        *next_seq = seqs.end;
        for seq in seqs.clone() {
            self.body.add(Stamp { producer: self.producer, partition, seq, sent });
        }
        let items = self.body.items();
        let pushed = match client.post(&self.push, self.body.finish()).await {
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

impl Pace {
    fn next(&self, opened: Instant) -> Instant {
        let ticket = self.ticket.fetch_add(1, Ordering::Relaxed);
        opened + Duration::from_secs_f64(f64::from(ticket) / f64::from(self.per_second))
    }
}

/// Tokio's timer is late by up to a millisecond, which would count as the broker's; a thread's by 0.1 ms.
async fn sleep_until(instant: Instant) -> Result<()> {
    if instant > Instant::now() {
        let sleep = move || std::thread::sleep(instant.saturating_duration_since(Instant::now()));
        tokio::task::spawn_blocking(sleep).await?;
    }
    Ok(())
}

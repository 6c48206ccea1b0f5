//! What every scenario needs: the broker's address, a queue of its own, and messages in it.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::checker::Checker;
use crate::client::{Client, Target};
use crate::environment::Site;
use crate::harness::{Flow, Plan, Recorder, Worker, run_workers};
use crate::measure::Meter;
use crate::options::Options;
use crate::wire::{PushBody, Stamp, check_pushed, expect_status};

pub const PUSH: &str = "/api/v1/push";
pub const ACK: &str = "/api/v1/ack/batch";

const PRELOAD_BATCH: usize = 100;

pub struct Setup {
    pub target: Target,
    pub options: Options,
    pub meter: Meter,
    /// Origin of the `sent` times in payloads.
    pub epoch: Instant,
}

/// Shared by the workers of a scenario; held only between requests.
pub type SharedChecker = Arc<Mutex<Checker>>;

pub fn shared(checker: Checker) -> SharedChecker {
    Arc::new(Mutex::new(checker))
}

pub fn with_checker<T>(checker: &SharedChecker, act: impl FnOnce(&mut Checker) -> T) -> T {
    act(&mut checker.lock().unwrap_or_else(PoisonError::into_inner))
}

impl Setup {
    /// `settles` waits around every window until PostgreSQL's late counters have arrived.
    pub async fn at(site: &Site, options: &Options, settles: bool) -> Result<Setup> {
        let target = site.target.clone();
        let session = site.session().await?;
        let meter = Meter { watch: site.watch, target: target.clone(), session, settles };
        Ok(Setup { target, options: options.clone(), meter, epoch: Instant::now() })
    }

    pub fn client(&self) -> Client {
        Client::new(self.target.clone())
    }

    pub async fn create_queue(&self, scenario: &str) -> Result<String> {
        let queue = format!("bench-{scenario}-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let body = format!(r#"{{"queue":"{queue}","options":{{"leaseTime":60}}}}"#);
        let reply = self.client().post("/api/v1/configure", body.as_bytes()).await?;
        expect_status("configure", &reply, 200)?;
        Ok(queue)
    }

    pub async fn delete_queue(&self, queue: &str) -> Result<()> {
        let reply = self.client().delete(&format!("/api/v1/resources/queues/{queue}")).await?;
        expect_status("delete queue", &reply, 200)
    }

    /// Pushes `each` messages to every partition and informs the checker, which must expect one producer.
    pub async fn preload(
        &self,
        queue: &str,
        partitions: u32,
        each: u32,
        checker: Option<&SharedChecker>,
    ) -> Result<()> {
        let workers = self.options.connections.min(partitions).min(8);
        let loader = |first| Loader {
            body: PushBody::new(queue, self.options.payload),
            step: workers,
            partitions,
            each,
            next: (first, 0),
            checker: checker.cloned(),
        };
        let workers = (0..workers).map(loader).collect();
        let phase = run_workers(self, workers, Plan::until_done().unmetered()).await?;
        if let Some(error) = phase.error_texts.first() {
            bail!("loading {each} messages into each of {partitions} partitions: {error}");
        }
        if let Some(checker) = checker {
            with_checker(checker, Checker::producer_done);
        }
        Ok(())
    }
}

/// Fills its share of the partitions, one after the other.
struct Loader {
    body: PushBody,
    step: u32,
    partitions: u32,
    each: u32,
    /// Partition and sequence number.
    next: (u32, u32),
    checker: Option<SharedChecker>,
}

impl Worker for Loader {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        let mut sent = Vec::with_capacity(PRELOAD_BATCH);
        while sent.len() < PRELOAD_BATCH && self.next.0 < self.partitions && self.each > 0 {
            let (partition, seq) = self.next;
            self.body.add(Stamp { producer: 0, partition, seq, sent: 0 });
            sent.push(self.next);
            self.next = if seq + 1 < self.each { (partition, seq + 1) } else { (partition + self.step, 0) };
        }
        if sent.is_empty() {
            return Ok(Flow::Done);
        }
        let pushed = match client.post(PUSH, self.body.finish()).await {
            Ok(reply) => check_pushed(&reply, sent.len()),
            Err(error) => Err(error),
        };
        if let Err(error) = pushed {
            recorder.error(&error);
            return Ok(Flow::Done);
        }
        if let Some(checker) = &self.checker {
            with_checker(checker, |checker| {
                for (partition, seq) in sent {
                    checker.sent(0, partition, seq, true);
                }
            });
        }
        Ok(Flow::Continue)
    }
}

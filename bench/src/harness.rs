//! Runs workers against the broker and counts what they did. Knows no scenario.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::cpu::CpuSeconds;
use crate::setup::Setup;

/// After an error a worker pauses, so that a broker that is down is not hammered.
const ERROR_PAUSE: Duration = Duration::from_millis(20);
const ERROR_TEXTS_MAX: usize = 3;

/// One connection's work, step by step.
pub trait Worker: Send + 'static {
    /// Sends a request or a few that belong together and records them. An error is counted, and the
    /// worker goes on: it must answer `Done` by itself once its time is over.
    fn step(
        &mut self,
        client: &mut Client,
        recorder: &mut Recorder,
    ) -> impl Future<Output = Result<Flow>> + Send;
}

pub enum Flow {
    Continue,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Push,
    Pop,
    Ack,
    /// From the sending of a message to its receipt.
    Delivery,
}

impl Operation {
    pub const ALL: [Operation; 4] = [Operation::Delivery, Operation::Push, Operation::Pop, Operation::Ack];

    pub fn name(self) -> &'static str {
        match self {
            Operation::Push => "push",
            Operation::Pop => "pop",
            Operation::Ack => "ack",
            Operation::Delivery => "delivery",
        }
    }
}

/// Runs all workers at once, each on a connection opened before the clock starts.
/// Without `limit` the workers decide when it is over.
pub async fn run_workers<W: Worker>(
    setup: &Setup,
    workers: Vec<W>,
    warmup: Duration,
    limit: Option<Duration>,
) -> Result<Phase> {
    let mut crew = Vec::with_capacity(workers.len());
    for worker in workers {
        let mut client = setup.client();
        client.connect().await?;
        crew.push((worker, client));
    }
    let window = Arc::new(Window::open(Instant::now(), warmup, limit));
    let mut tasks = JoinSet::new();
    for (worker, client) in crew {
        tasks.spawn(work(worker, client, Recorder::new(Arc::clone(&window))));
    }
    tokio::time::sleep_until(window.from.into()).await;
    let before = setup.cpu_seconds().await?;
    let mut total = Recorder::new(Arc::clone(&window));
    while let Some(recorder) = tasks.join_next().await {
        total.add(recorder?);
    }
    let end = window.end().unwrap_or_else(Instant::now);
    let cpu = setup.cpu_seconds().await?.since(before);
    let seconds = end.saturating_duration_since(window.from).as_secs_f64();
    Ok(Phase { seconds, cpu, tallies: total.tallies, errors: total.errors, error_texts: total.error_texts })
}

async fn work<W: Worker>(mut worker: W, mut client: Client, mut recorder: Recorder) -> Recorder {
    loop {
        match worker.step(&mut client, &mut recorder).await {
            Ok(Flow::Continue) => {}
            Ok(Flow::Done) => return recorder,
            Err(error) => {
                recorder.error(&error);
                tokio::time::sleep(ERROR_PAUSE).await;
            }
        }
    }
}

/// What a set of workers did.
pub struct Phase {
    pub seconds: f64,
    pub cpu: CpuSeconds,
    pub tallies: [Tally; 4],
    pub errors: u64,
    pub error_texts: Vec<String>,
}

impl Phase {
    pub fn tally(&self, operation: Operation) -> &Tally {
        &self.tallies[operation as usize]
    }
}

#[derive(Clone)]
pub struct Tally {
    pub requests: u64,
    pub messages: u64,
    pub latency_us: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Tally {
        // Three digits: 0.1 % of the value, far below the noise of any run.
        let latency_us = Histogram::new(3).expect("3 digits are allowed");
        Tally { requests: 0, messages: 0, latency_us }
    }
}

impl Tally {
    pub fn latency(&mut self, latency: Duration) {
        let micros = latency.as_micros().max(1) as u64;
        self.latency_us.record(micros).expect("the histogram grows by itself");
    }
}

/// One worker's counts.
pub struct Recorder {
    window: Arc<Window>,
    tallies: [Tally; 4],
    errors: u64,
    error_texts: Vec<String>,
}

impl Recorder {
    fn new(window: Arc<Window>) -> Recorder {
        Recorder { window, tallies: Default::default(), errors: 0, error_texts: Vec::new() }
    }

    /// Work finished inside the window counts as throughput. A latency counts if it began in the window,
    /// however late it ends: leaving out what was still under way would hide the slowest.
    pub fn record(&mut self, operation: Operation, started: Instant, finished: Instant, messages: usize) {
        let tally = &mut self.tallies[operation as usize];
        if self.window.contains(finished) {
            tally.requests += 1;
            tally.messages += messages as u64;
        }
        if self.window.contains(started) {
            tally.latency(finished.saturating_duration_since(started));
        }
    }

    pub fn error(&mut self, error: &anyhow::Error) {
        self.errors += 1;
        if self.error_texts.len() < ERROR_TEXTS_MAX {
            self.error_texts.push(format!("{error:#}"));
        }
    }

    pub fn window(&self) -> &Window {
        &self.window
    }

    fn add(&mut self, other: Recorder) {
        for (tally, theirs) in self.tallies.iter_mut().zip(&other.tallies) {
            tally.requests += theirs.requests;
            tally.messages += theirs.messages;
            tally.latency_us.add(&theirs.latency_us).expect("the histogram grows by itself");
        }
        self.errors += other.errors;
        self.error_texts.extend(other.error_texts);
        self.error_texts.truncate(ERROR_TEXTS_MAX);
    }
}

/// The time that is measured: from the end of the warm-up to the limit or the first call of `stop`.
pub struct Window {
    pub opened: Instant,
    pub from: Instant,
    pub until: Option<Instant>,
    stopped: OnceLock<Instant>,
}

impl Window {
    fn open(now: Instant, warmup: Duration, limit: Option<Duration>) -> Window {
        let from = now + warmup;
        Window { opened: now, from, until: limit.map(|limit| from + limit), stopped: OnceLock::new() }
    }

    /// Ends the window for everyone: what there was to measure is used up.
    pub fn stop(&self) {
        self.stopped.get_or_init(Instant::now);
    }

    pub fn is_over(&self) -> bool {
        self.end().is_some_and(|end| Instant::now() >= end)
    }

    fn end(&self) -> Option<Instant> {
        match (self.stopped.get(), self.until) {
            (Some(&stopped), Some(until)) => Some(stopped.min(until)),
            (Some(&stopped), None) => Some(stopped),
            (None, until) => until,
        }
    }

    fn contains(&self, instant: Instant) -> bool {
        instant >= self.from && self.end().is_none_or(|end| instant <= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_answers_count_as_latency_but_not_as_throughput() {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let window = Window::open(start, Duration::from_millis(100), Some(Duration::from_millis(100)));
        let mut recorder = Recorder::new(Arc::new(window));
        recorder.record(Operation::Push, at(10), at(20), 1); // warm-up
        recorder.record(Operation::Push, at(90), at(110), 1); // counted, began too early to time
        recorder.record(Operation::Push, at(120), at(130), 1);
        recorder.record(Operation::Push, at(190), at(900), 1); // timed, too late to count
        let tally = &recorder.tallies[Operation::Push as usize];
        assert_eq!((tally.requests, tally.latency_us.len()), (2, 2));
        assert!(tally.latency_us.max() >= 700_000);
    }

    #[test]
    fn a_stopped_window_is_over_for_everyone() {
        let window = Window::open(Instant::now(), Duration::ZERO, Some(Duration::from_secs(60)));
        assert!(!window.is_over());
        window.stop();
        assert!(window.is_over());
    }
}

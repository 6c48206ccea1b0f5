//! Runs workers against the broker and records their results. Knows no scenario.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use crate::client::Client;
use crate::measure::Usage;
use crate::setup::Setup;

/// Pause after an error, so that a broker that is down is not flooded.
const ERROR_PAUSE: Duration = Duration::from_millis(20);
const ERROR_TEXTS_MAX: usize = 3;
pub const TENTHS: usize = 10;

/// One connection's work, step by step.
pub trait Worker: Send + 'static {
    /// Sends a request, or a few that belong together, and records them. An error is counted, and the worker continues; it returns
    /// `Done` once its time is over.
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
    /// From sending a message to its receipt.
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

/// When a latency starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// When the request is sent, in a loop that waits for responses. A slow broker gets fewer requests, so these latencies look
    /// better than they are.
    Service,
    /// When the schedule wanted to send.
    Response,
}

impl Clock {
    pub fn name(self) -> &'static str {
        match self {
            Clock::Service => "service",
            Clock::Response => "response",
        }
    }
}

/// Which part of the workers' time is measured.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    warmup: Duration,
    limit: Option<Duration>,
    metered: bool,
}

impl Plan {
    pub fn timed(warmup: Duration, limit: Duration) -> Plan {
        Plan { warmup, limit: Some(limit), metered: true }
    }

    /// The workers decide when it is over.
    pub fn until_done() -> Plan {
        Plan { warmup: Duration::ZERO, limit: None, metered: true }
    }

    /// Preparation, whose cost does not matter.
    pub fn unmetered(self) -> Plan {
        Plan { metered: false, ..self }
    }
}

/// Runs all workers at once, each on a connection opened before the clock starts.
pub async fn run_workers<W: Worker>(setup: &Setup, workers: Vec<W>, plan: Plan) -> Result<Phase> {
    let mut crew = Vec::with_capacity(workers.len());
    for worker in workers {
        let mut client = setup.client();
        client.connect().await?;
        crew.push((worker, client));
    }
    let Plan { warmup, limit, metered } = plan;
    // Counters that must settle cannot be read under load, so they are read before it starts.
    let warmup = if metered && setup.meter.settles { Duration::ZERO } else { warmup };
    let mut before = None;
    if metered && warmup.is_zero() {
        before = Some(setup.meter.begin().await?);
    }
    let window = Arc::new(Window::open(Instant::now(), warmup, limit));
    let mut tasks = JoinSet::new();
    for (worker, client) in crew {
        tasks.spawn(work(worker, client, Recorder::new(Arc::clone(&window))));
    }
    tokio::time::sleep_until(window.from.into()).await;
    if metered && !warmup.is_zero() {
        before = Some(setup.meter.begin().await?);
    }
    let mut total = Recorder::new(Arc::clone(&window));
    while let Some(recorder) = tasks.join_next().await {
        total.add(recorder?);
    }
    let end = window.end().unwrap_or_else(Instant::now);
    let usage = match before {
        Some(before) => setup.meter.end(before).await?,
        None => Usage::default(),
    };
    let seconds = end.saturating_duration_since(window.from).as_secs_f64();
    let Recorder { tallies, errors, error_texts, .. } = total;
    Ok(Phase { seconds, usage, tallies, errors, error_texts, open_loop: false })
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

/// Combined results of a set of workers.
pub struct Phase {
    pub seconds: f64,
    pub usage: Usage,
    pub tallies: [Tally; 4],
    pub errors: u64,
    pub error_texts: Vec<String>,
    /// Requests were sent by the clock and not after responses.
    pub open_loop: bool,
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
    /// Includes messages that finished after the window, because their cost is measured as well.
    pub metered_messages: u64,
    /// Messages in each tenth of a window of fixed length, to show a decline.
    pub tenths: [u64; TENTHS],
    pub latency_us: Histogram<u64>,
}

impl Default for Tally {
    fn default() -> Tally {
        // Three digits: 0.1 % of the value, far below the noise of any run.
        let latency_us = Histogram::new(3).expect("3 digits are allowed");
        Tally { requests: 0, messages: 0, metered_messages: 0, tenths: [0; TENTHS], latency_us }
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

    /// Work finished inside the window counts as throughput. A latency counts if it started in the window, however late it ends:
    /// omitting unfinished requests would hide the slowest.
    pub fn record(&mut self, operation: Operation, started: Instant, finished: Instant, messages: usize) {
        let tally = &mut self.tallies[operation as usize];
        if self.window.contains(finished) {
            tally.requests += 1;
            tally.messages += messages as u64;
            if let Some(tenth) = self.window.tenth(finished) {
                tally.tenths[tenth] += messages as u64;
            }
        }
        if finished >= self.window.from {
            tally.metered_messages += messages as u64;
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
            tally.metered_messages += theirs.metered_messages;
            for (tenth, theirs) in tally.tenths.iter_mut().zip(theirs.tenths) {
                *tenth += theirs;
            }
            tally.latency_us.add(&theirs.latency_us).expect("the histogram grows by itself");
        }
        self.errors += other.errors;
        self.error_texts.extend(other.error_texts);
        self.error_texts.truncate(ERROR_TEXTS_MAX);
    }
}

/// The measured time: from the end of the warm-up to the limit or the first call of `stop`.
pub struct Window {
    pub from: Instant,
    pub until: Option<Instant>,
    stopped: OnceLock<Instant>,
}

impl Window {
    fn open(now: Instant, warmup: Duration, limit: Option<Duration>) -> Window {
        let from = now + warmup;
        Window { from, until: limit.map(|limit| from + limit), stopped: OnceLock::new() }
    }

    /// Ends the window for all workers: there is nothing left to measure.
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

    /// None before the window starts, and for one without a fixed end.
    fn tenth(&self, instant: Instant) -> Option<usize> {
        let length = self.until?.duration_since(self.from);
        let part = instant.checked_duration_since(self.from)?.div_duration_f64(length);
        Some(((part * TENTHS as f64) as usize).min(TENTHS - 1))
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
        assert_eq!((tally.requests, tally.metered_messages, tally.latency_us.len()), (2, 3, 2));
        assert_eq!(tally.tenths, [0, 1, 0, 1, 0, 0, 0, 0, 0, 0]);
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

//! Requests of workers to the brokers: to one at a time, to the other one after a failure, and sometimes hanging up before the
//! response.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::Bytes;
use queen_testkit::Random;

use super::history::{History, Time};
use super::statuses::Statuses;
use crate::client::{Client, Target};

/// Longer than a lease, so that a broker that was stopped for longer responds to some requests late.
pub const PATIENCE: Duration = Duration::from_secs(5);
/// Shorter than many requests take: the response is lost, but the request may be executed.
const IMPATIENCE_MS: Range<u32> = 1..30;
const IMPATIENT_PERCENT: u32 = 3;
const WANDERING_PERCENT: u32 = 4;

/// State shared by all workers of a run.
pub struct Run {
    started: Instant,
    history: Mutex<History>,
    statuses: Mutex<Statuses>,
    phase: tokio::sync::watch::Sender<Phase>,
    writers: AtomicUsize,
    is_hurried: AtomicBool,
    pub targets: Vec<Target>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Normal operation.
    Load,
    /// No new messages; consumers complete everything they can.
    Drain,
    Over,
}

impl Run {
    pub fn new(targets: Vec<Target>) -> Arc<Run> {
        Arc::new(Run {
            started: Instant::now(),
            history: Mutex::default(),
            statuses: Mutex::default(),
            phase: tokio::sync::watch::Sender::new(Phase::Load),
            writers: AtomicUsize::new(0),
            is_hurried: AtomicBool::new(false),
            targets,
        })
    }

    pub fn now(&self) -> Time {
        self.started.elapsed()
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("never poisoned")
    }

    pub fn statuses(&self) -> MutexGuard<'_, Statuses> {
        self.statuses.lock().expect("never poisoned")
    }

    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub fn is_loading(&self) -> bool {
        self.phase() == Phase::Load
    }

    pub fn enter(&self, phase: Phase) {
        self.phase.send_replace(phase);
    }

    /// Number of writers that may be sending a message, or waiting for its result.
    pub fn writers(&self) -> usize {
        self.writers.load(Ordering::SeqCst)
    }

    /// Counts one more writer until the result is dropped.
    pub fn writing(self: &Arc<Run>) -> Writing {
        self.writers.fetch_add(1, Ordering::SeqCst);
        Writing(Arc::clone(self))
    }

    /// Whether producers continue no matter how far consumers are behind.
    pub fn is_hurried(&self) -> bool {
        self.is_hurried.load(Ordering::SeqCst)
    }

    pub fn hurry(&self, hurry: bool) {
        self.is_hurried.store(hurry, Ordering::SeqCst);
    }

    /// Returns when the load has ended.
    pub async fn loaded(&self) {
        let _ = self.phase.subscribe().wait_for(|&phase| phase > Phase::Load).await;
    }

    pub async fn over(&self) {
        let _ = self.phase.subscribe().wait_for(|&phase| phase == Phase::Over).await;
    }

    /// Sleeps, but not beyond the end of the run.
    pub async fn pause(&self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.over() => {}
        }
    }
}

/// An active writer.
pub struct Writing(Arc<Run>);

impl Drop for Writing {
    fn drop(&mut self) {
        self.0.writers.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A response.
pub struct Answer {
    pub sent: Time,
    pub ended: Time,
    pub broker: usize,
    /// `None` if no response arrived.
    pub reply: Option<(u16, Bytes)>,
}

impl Answer {
    /// The body of a 2xx.
    pub fn body(&self) -> Option<&[u8]> {
        self.reply.as_ref().filter(|(status, _)| (200..300).contains(status)).map(|(_, body)| &**body)
    }

    pub fn status(&self) -> Option<u16> {
        self.reply.as_ref().map(|(status, _)| *status)
    }
}

#[derive(Clone, Copy)]
enum Method<'a> {
    Get,
    Post(&'a [u8]),
    Delete,
}

pub struct Caller {
    pub run: Arc<Run>,
    pub random: Random,
    clients: Vec<Client>,
    at: usize,
}

impl Caller {
    pub fn new(run: &Arc<Run>, seed: u64) -> Caller {
        let client = |target| {
            let mut client = Client::new(target);
            client.answer_timeout = Duration::MAX;
            client
        };
        let clients = run.targets.iter().cloned().map(client).collect();
        let mut random = Random::seeded(seed);
        let at = random.below(run.targets.len());
        Caller { run: Arc::clone(run), random, clients, at }
    }

    pub fn percent(&mut self, percent: u32) -> bool {
        self.random.below(100) < percent
    }

    pub fn between(&mut self, range: Range<u32>) -> u32 {
        range.start + self.random.below(range.end - range.start)
    }

    pub fn is_loading(&self) -> bool {
        self.run.is_loading()
    }

    pub fn is_over(&self) -> bool {
        self.run.phase() == Phase::Over
    }

    pub async fn get(&mut self, path: &str, wait: Duration) -> Result<Answer> {
        self.call(Method::Get, path, wait).await
    }

    pub async fn post(&mut self, path: &str, body: &[u8]) -> Result<Answer> {
        self.call(Method::Post(body), path, Duration::ZERO).await
    }

    pub async fn delete(&mut self, path: &str) -> Result<Answer> {
        self.call(Method::Delete, path, Duration::ZERO).await
    }

    /// Posts a change of an object that may not exist anymore.
    pub async fn post_unless_gone(&mut self, path: &str) -> Result<Answer> {
        self.exchange(Method::Post(b"{}"), path, Duration::ZERO, |status| {
            status != 404 && is_our_fault(status)
        })
        .await
    }

    async fn call(&mut self, method: Method<'_>, path: &str, wait: Duration) -> Result<Answer> {
        self.exchange(method, path, wait, is_our_fault).await
    }

    async fn exchange(
        &mut self,
        method: Method<'_>,
        path: &str,
        wait: Duration,
        is_wrong: impl Fn(u16) -> bool,
    ) -> Result<Answer> {
        if self.percent(WANDERING_PERCENT) {
            self.turn_away();
        }
        let impatient = self.is_loading() && self.percent(IMPATIENT_PERCENT);
        let patience = match impatient {
            true => Duration::from_millis(self.between(IMPATIENCE_MS).into()),
            false => PATIENCE + wait,
        };
        let broker = self.at;
        let client = &mut self.clients[broker];
        let sent = self.run.now();
        let exchange = async {
            match method {
                Method::Get => client.get(path).await,
                Method::Post(body) => client.post(path, body).await,
                Method::Delete => client.delete(path).await,
            }
        };
        // A canceled request leaves a closed connection behind, like a client that hangs up.
        let reply = tokio::select! {
            exchanged = tokio::time::timeout(patience, exchange) => match exchanged {
                Ok(Ok(reply)) => Some((reply.status, reply.body)),
                Ok(Err(_)) | Err(_) => None,
            },
            () = self.run.over() => None,
        };
        let ended = self.run.now();
        let route = path.split('/').nth(3).unwrap_or("").split('?').next().unwrap_or("");
        self.run.statuses().add(route, reply.as_ref().map(|(status, _)| *status));
        if let Some((status, body)) = &reply
            && is_wrong(*status)
        {
            bail!("{status} to {path}: {}", String::from_utf8_lossy(body));
        }
        let answer = Answer { sent, ended, broker, reply };
        match answer.status() {
            Some(200..300) => {}
            _ if impatient => {}
            _ => {
                self.turn_away();
                // A broker that is down refuses at once: do not flood it.
                self.run.pause(Duration::from_millis(50)).await;
            }
        }
        Ok(answer)
    }

    fn turn_away(&mut self) {
        self.at = (self.at + 1) % self.clients.len();
    }
}

/// An unexpected refusal: all our requests are valid. A broker may only be overloaded, or wait in vain for the rest of a request that
/// the network holds back.
fn is_our_fault(status: u16) -> bool {
    (400..500).contains(&status) && !matches!(status, 408 | 429)
}

/// Checks a response against the contract; one that cannot be parsed is an error of the run.
pub fn parse<'a, T: serde::Deserialize<'a>>(body: &'a [u8]) -> Result<T> {
    serde_json::from_slice(body)
        .map_err(|error| anyhow::anyhow!("{error}: {}", String::from_utf8_lossy(body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_a_request_as_it_should_be_is_an_error() {
        assert!([400, 401, 403, 404, 409, 413, 422].into_iter().all(is_our_fault));
        assert!(![200, 202, 204, 408, 429, 500, 503].into_iter().any(is_our_fault));
    }

    #[test]
    fn a_writer_counts_until_it_is_done() {
        let run = Run::new(Vec::new());
        let one = run.writing();
        let other = run.writing();
        assert_eq!(run.writers(), 2);
        drop((one, other));
        assert_eq!(run.writers(), 0);
    }
}

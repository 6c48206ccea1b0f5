//! What the client logs with `tracing`, target `queen_client`: errors without a listener, and outages. Never a payload.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::{error, warn};

use crate::clock;
use crate::delivery::Batch;
use crate::error::{Error, ErrorKind};
use crate::want::Source;

const TARGET: &str = "queen_client";

/// A recurring failure, reported when it starts and when it ends.
#[derive(Debug, Default)]
pub struct Trouble {
    /// Whether an outage is in progress. Checked on every request, and almost always false.
    begun: AtomicBool,
    since: Mutex<Option<Instant>>,
}

impl Trouble {
    /// Whether the outage starts.
    pub fn begin(&self) -> bool {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        self.begun.store(true, SeqCst);
        let begins = since.is_none();
        since.get_or_insert_with(clock::now);
        begins
    }

    /// How long it lasted, if it ends.
    pub fn end(&self) -> Option<Duration> {
        if !self.begun.load(SeqCst) {
            return None;
        }
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        self.begun.store(false, SeqCst);
        since.take().map(|since| clock::now().duration_since(since))
    }
}

/// Tracks outages of brokers and of the token provider.
#[derive(Debug)]
pub struct Outages {
    brokers: Vec<(String, Trouble)>,
    token: Trouble,
}

impl Outages {
    pub fn new<'a>(urls: impl IntoIterator<Item = &'a str>) -> Self {
        let brokers = urls.into_iter().map(|url| (url.to_owned(), Trouble::default())).collect();
        Self { brokers, token: Trouble::default() }
    }

    pub fn answered(&self, broker: usize) {
        self.has_token();
        let (broker, trouble) = &self.brokers[broker];
        if let Some(outage) = trouble.end() {
            warn!(target: TARGET, broker, outage_ms = millis(outage), "broker responds again");
        }
    }

    /// `cut`: the caller's deadline ended it, which says nothing about the broker.
    pub fn failed(&self, broker: usize, error: &Error, cut: bool) {
        if error.is_ours() {
            if self.token.begin() {
                warn!(target: TARGET, %error, "token request failed");
            }
            return;
        }
        if !is_unanswered(error) {
            return self.answered(broker);
        }
        self.has_token();
        let (broker, trouble) = &self.brokers[broker];
        if !(cut && error.kind() == ErrorKind::Timeout) && trouble.begin() {
            warn!(target: TARGET, broker, %error, "broker does not respond");
        }
    }

    fn has_token(&self) {
        if let Some(outage) = self.token.end() {
            warn!(target: TARGET, outage_ms = millis(outage), "token requests succeed again");
        }
    }
}

/// No response arrived: an outage.
fn is_unanswered(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Network | ErrorKind::Timeout) && error.status().is_none()
}

/// For several messages, the first is named.
pub fn handler_failed(batch: &Arc<Batch>, first: usize, messages: usize, error: &str) {
    let (queue, partition, transaction_id) = names(batch, first);
    error!(target: TARGET, queue, partition, transaction_id, messages, error, "handler failed");
}

pub fn acknowledgement_failed(batch: &Arc<Batch>, first: usize, messages: usize, error: &Error) {
    let (queue, partition, transaction_id) = names(batch, first);
    error!(target: TARGET, queue, partition, transaction_id, messages, %error, "acknowledgement failed");
}

pub fn renewal_failed(batch: &Arc<Batch>, error: &Error, lost: bool) {
    let (queue, partition, transaction_id) = names(batch, 0);
    let messages = batch.len();
    if lost {
        error!(target: TARGET, queue, partition, transaction_id, messages, %error, "lease lost");
    } else if !is_unanswered(error) {
        error!(target: TARGET, queue, partition, transaction_id, messages, %error, "renewal failed");
    }
}

pub fn pop_failed(refusals: &Trouble, source: &Source, error: &Error) {
    if !is_unanswered(error) && refusals.begin() {
        warn!(target: TARGET, from = ?source, %error, "pops are failing; retrying");
    }
}

pub fn pop_worked(refusals: &Trouble, source: &Source) {
    if let Some(outage) = refusals.end() {
        warn!(target: TARGET, from = ?source, outage_ms = millis(outage), "pops work again");
    }
}

pub fn not_delivered(queue: &str, error: &Error) {
    error!(target: TARGET, queue, %error, "message was not delivered");
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn names(batch: &Arc<Batch>, index: usize) -> (String, String, String) {
    let one = batch.envelope(index);
    (one.queue().to_owned(), one.partition().to_owned(), one.transaction_id().to_owned())
}

//! A batch: messages of a lane that are sent in one request, from serialization to their results.

use std::collections::HashSet;
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use bytes::Bytes;
use tokio::sync::Notify;

use super::Undelivered;
use crate::error::{Error, ErrorKind};
use crate::push::{self, Pushed};

const HEAD: &[u8] = b"{\"items\":[";
const TAIL: &[u8] = b"]}";
/// Memory that an idle lane keeps for reuse.
const IDLE_MAX: usize = 1 << 20;

/// The body of a request under construction.
pub(crate) struct Batch {
    body: Vec<u8>,
    /// End offset of each message.
    ends: Vec<usize>,
    /// Share of the buffer's memory limit that they take.
    pub room: usize,
    pub outcome: Arc<Outcome>,
}

impl Batch {
    /// Clears and reuses `memory`.
    pub fn new(memory: Memory) -> Self {
        let Memory { mut body, mut ends } = memory;
        body.clear();
        ends.clear();
        body.extend_from_slice(HEAD);
        Self { body, ends, room: 0, outcome: Arc::default() }
    }

    pub fn add(&mut self, message: &[u8], room: usize) {
        if !self.ends.is_empty() {
            self.body.push(b',');
        }
        self.body.extend_from_slice(message);
        self.ends.push(self.body.len());
        self.room += room;
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Completes the body; no messages can be added afterwards.
    pub fn seal(mut self) -> Sealed {
        self.body.extend_from_slice(TAIL);
        Sealed { body: self.body.into(), ends: self.ends, room: self.room, outcome: self.outcome }
    }
}

/// A batch that is being sent.
pub(crate) struct Sealed {
    body: Bytes,
    ends: Vec<usize>,
    pub room: usize,
    outcome: Arc<Outcome>,
}

impl Sealed {
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The body of a request with only these messages, copied from this one.
    pub fn body(&self, from: usize, to: usize) -> Bytes {
        if to - from == self.len() {
            return self.body.clone();
        }
        let messages = &self.body[self.start(from)..self.ends[to - 1]];
        [HEAD, messages, TAIL].concat().into()
    }

    fn start(&self, index: usize) -> usize {
        if index == 0 { HEAD.len() } else { self.ends[index - 1] + 1 }
    }

    /// The report of a message that could not be delivered.
    pub fn undelivered(&self, index: usize, error: Error) -> Arc<Undelivered> {
        let json = &self.body[self.start(index)..self.ends[index]];
        let written = serde_json::from_slice(json).expect("it was written here");
        Arc::new(Undelivered::new(written, error))
    }

    pub fn outcome(&self) -> &Arc<Outcome> {
        &self.outcome
    }

    /// The memory of the body, once nothing else uses it.
    pub fn memory(&mut self) -> Option<Memory> {
        let (body, ends) = (take(&mut self.body), take(&mut self.ends));
        body.is_unique().then(|| Memory { body: Vec::from(body), ends })
    }
}

/// For the body of another batch.
#[derive(Default)]
pub(crate) struct Memory {
    body: Vec<u8>,
    ends: Vec<usize>,
}

impl Memory {
    fn bytes(&self) -> usize {
        self.body.capacity() + self.ends.capacity() * size_of::<usize>()
    }
}

/// Memory of sent batches for reuse. Growing a new allocation would copy every message again, and the system would have to
/// zero its pages.
#[derive(Default)]
pub(crate) struct Idle(Vec<Memory>);

impl Idle {
    pub fn take(&mut self) -> Memory {
        self.0.pop().unwrap_or_default()
    }

    pub fn keep(&mut self, memory: Memory) {
        let kept: usize = self.0.iter().map(Memory::bytes).sum();
        if kept + memory.bytes() <= IDLE_MAX {
            self.0.push(memory);
        }
    }
}

/// The result of a message.
pub(crate) type Fate = Result<Pushed, Arc<Undelivered>>;

/// The results of all messages of a batch.
pub(crate) enum Fates {
    /// All are stored. The details are parsed on request.
    Stored {
        answer: Bytes,
        read: OnceLock<Result<Vec<Pushed>, Error>>,
    },
    Told(Vec<Fate>),
}

impl Fates {
    pub fn stored(answer: Bytes) -> Self {
        Self::Stored { answer, read: OnceLock::new() }
    }

    fn of(&self, index: usize) -> Result<Fate, Error> {
        match self {
            Self::Told(fates) => Ok(fates[index].clone()),
            Self::Stored { answer, read } => {
                let results = read.get_or_init(|| push::read(answer)).as_ref().map_err(Error::clone)?;
                let missing = || Error::new(ErrorKind::Decode, "stored, but there is no result for it");
                results.get(index).cloned().map(Ok).ok_or_else(missing)
            }
        }
    }

    /// The error of a message that could not be delivered.
    fn failures(&self) -> impl Iterator<Item = (usize, &Arc<Undelivered>)> {
        let fates = match self {
            Self::Told(fates) => fates.as_slice(),
            Self::Stored { .. } => &[],
        };
        fates
            .iter()
            .enumerate()
            .filter_map(|(index, fate)| fate.as_ref().err().map(|failure| (index, failure)))
    }

    fn failure(&self, index: usize) -> Option<Arc<Undelivered>> {
        self.failures().find(|(failed, _)| *failed == index).map(|(_, failure)| failure.clone())
    }
}

/// The results of a batch, shared with the holders of receipts.
#[derive(Default)]
pub(crate) struct Outcome {
    results: OnceLock<Fates>,
    settled: Notify,
    /// Indexes of messages with a waiting receipt. Locked while results arrive, so that each failure is reported exactly once.
    watched: Mutex<HashSet<usize>>,
}

impl Outcome {
    fn watched(&self) -> MutexGuard<'_, HashSet<usize>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Failures without a waiting receipt are passed to `orphan`, before a receipt can take them.
    pub fn settle(&self, results: Fates, mut orphan: impl FnMut(usize, &Arc<Undelivered>)) {
        let watched = self.watched();
        for (index, undelivered) in results.failures() {
            if !watched.contains(&index) {
                orphan(index, undelivered);
            }
        }
        if self.results.set(results).is_ok() {
            self.settled.notify_waiters();
        }
    }

    /// A caller that stops waiting early must call [`leave`](Self::leave). Returns an error if the message is stored but the
    /// broker's details cannot be parsed.
    pub async fn result(&self, index: usize) -> Result<Fate, Error> {
        self.watched().insert(index);
        loop {
            // Created before checking, so that no notification is missed.
            let settled = self.settled.notified();
            if let Some(results) = self.results.get() {
                return results.of(index);
            }
            settled.await;
        }
    }

    /// The receipt stops waiting. Returns a failure that has arrived for it.
    pub fn leave(&self, index: usize) -> Option<Arc<Undelivered>> {
        let mut watched = self.watched();
        watched.remove(&index);
        self.results.get().and_then(|results| results.failure(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn batch() -> Sealed {
        let mut batch = Batch::new(Memory::default());
        for n in 0..3 {
            let message =
                json!({"queue": "q", "partition": "p", "transactionId": format!("t{n}"), "payload": n});
            batch.add(message.to_string().as_bytes(), 10);
        }
        batch.seal()
    }

    fn payloads(body: &[u8]) -> Vec<Value> {
        let read: Value = serde_json::from_slice(body).unwrap();
        read["items"].as_array().unwrap().iter().map(|item| item["payload"].clone()).collect()
    }

    #[test]
    fn any_part_of_a_batch_is_a_body_and_any_message_can_be_had_back() {
        let batch = batch();
        assert_eq!((batch.len(), batch.room), (3, 30));
        assert_eq!(payloads(&batch.body(0, 3)), [0, 1, 2]);
        assert_eq!(payloads(&batch.body(0, 1)), [0]);
        assert_eq!(payloads(&batch.body(1, 3)), [1, 2]);
        let kept = batch.undelivered(1, Error::bad_use("x"));
        assert_eq!((kept.transaction_id.as_str(), kept.payload.get()), ("t1", "1"));
    }

    #[test]
    fn the_memory_of_a_batch_is_reused_once_it_is_free() {
        let (mut read, mut sent) = (batch(), batch());
        let body = read.body(0, 3);
        assert!(read.memory().is_none());
        assert_eq!(payloads(&body), [0, 1, 2]);
        let mut next = Batch::new(sent.memory().unwrap());
        next.add(br#"{"payload":7}"#, 1);
        assert_eq!(payloads(&next.seal().body(0, 1)), [7]);
    }

    #[test]
    fn only_so_much_memory_lies_idle() {
        let mut idle = Idle::default();
        for _ in 0..3 {
            idle.keep(Memory { body: Vec::with_capacity(IDLE_MAX / 2), ends: Vec::new() });
        }
        assert!(idle.take().bytes() > 0 && idle.take().bytes() > 0);
        assert_eq!(idle.take().bytes(), 0);
    }

    #[tokio::test]
    async fn a_failure_goes_to_a_waiting_receipt_or_is_an_orphan() {
        let batch = batch();
        let failed = |index| Err(batch.undelivered(index, Error::bad_use("x")));
        let mut orphans = Vec::new();
        let (result, ()) = tokio::join!(batch.outcome().result(0), async {
            let fates = vec![failed(0), failed(1), failed(2)];
            batch.outcome().settle(Fates::Told(fates), |index, _| orphans.push(index));
        });
        assert_eq!(result.unwrap().unwrap_err().transaction_id, "t0");
        assert_eq!(orphans, [1, 2]);
    }

    #[tokio::test]
    async fn a_receipt_dropped_before_the_result_does_not_count_and_after_it_takes_the_failure() {
        let batch = batch();
        let outcome = batch.outcome();
        for index in [0, 1] {
            let mut waiting = Box::pin(outcome.result(index));
            assert!(
                std::future::poll_fn(|context| std::task::Poll::Ready(
                    waiting.as_mut().poll(context).is_pending()
                ))
                .await
            );
        }
        assert!(outcome.leave(0).is_none());
        let mut orphans = Vec::new();
        let fates = (0..3).map(|index| Err(batch.undelivered(index, Error::bad_use("x")))).collect();
        outcome.settle(Fates::Told(fates), |index, _| orphans.push(index));
        assert_eq!(orphans, [0, 2]);
        assert_eq!(outcome.leave(1).unwrap().transaction_id, "t1");
    }

    #[tokio::test]
    async fn results_of_stored_messages_are_parsed_on_demand() {
        let answer = r#"[{"index":0,"message_id":"m0","transaction_id":"t0","status":"queued"}]"#;
        let batch = batch();
        batch.outcome().settle(Fates::stored(answer.into()), |_, _| unreachable!("nothing has failed"));
        assert_eq!(batch.outcome().result(0).await.unwrap().unwrap().message_id, "m0");
        assert_eq!(batch.outcome().result(1).await.unwrap_err().kind(), ErrorKind::Decode);
        assert!(batch.outcome().leave(0).is_none());
    }
}

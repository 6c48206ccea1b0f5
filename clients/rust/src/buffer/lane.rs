//! A lane of a buffer: a queue of batches, with one request at a time. All messages of a partition use the same lane, which
//! keeps their order.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};

use super::batch::{Batch, Fates, Idle, Outcome, Sealed};
use super::{Limits, State};
use crate::clock;
use crate::error::Error;
use crate::push::{self, Results};

pub(crate) struct Lane {
    line: Mutex<Line<Batch>>,
    changed: Notify,
    /// Number of messages with a result.
    settled: watch::Sender<u64>,
    idle: Mutex<Idle>,
}

impl Default for Lane {
    fn default() -> Self {
        let (line, idle, settled) = (Mutex::default(), Mutex::default(), watch::Sender::new(0));
        Self { line, changed: Notify::new(), settled, idle }
    }
}

impl Lane {
    fn line(&self) -> MutexGuard<'_, Line<Batch>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> MutexGuard<'_, Idle> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The batch of the message, and its index there. `None` once the lane is closed.
    pub fn add(&self, message: &[u8], room: usize, limits: &Limits) -> Option<(Arc<Outcome>, usize)> {
        let mut line = self.line();
        let begin = || (Batch::new(self.idle().take()), clock::now());
        let (batch, wakes) = line.add(message.len(), limits, begin)?;
        batch.add(message, room);
        let place = (batch.outcome.clone(), batch.len() - 1);
        drop(line);
        if wakes {
            self.changed.notify_one();
        }
        Some(place)
    }

    pub fn close(&self) {
        self.line().closed = true;
        self.changed.notify_one();
    }

    /// Sends what is in it without lingering. Returns how many results to wait for.
    pub fn hurry(&self) -> u64 {
        let mut line = self.line();
        line.hurry = line.added;
        self.changed.notify_one();
        line.added
    }

    pub async fn settled(&self, target: u64) {
        // `self` keeps the sender alive.
        let _ = self.settled.subscribe().wait_for(|&settled| settled >= target).await;
    }
}

/// The lane from the side of its task. Dropping it fails all waiting messages.
pub(crate) struct Work {
    state: Arc<State>,
    number: usize,
}

impl Work {
    pub fn new(state: Arc<State>, number: usize) -> Self {
        Self { state, number }
    }

    fn lane(&self) -> &Lane {
        &self.state.lanes[self.number]
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let left = self.lane().line().end();
        left.into_iter().for_each(|batch| self.state.abandon(&batch.seal()));
        self.lane().settled.send_replace(u64::MAX);
    }
}

/// A batch that is being sent. Dropping it before there are results fails the batch.
struct Flight<'a> {
    state: &'a State,
    batch: Sealed,
    landed: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        if !self.landed {
            self.state.abandon(&self.batch);
        }
    }
}

/// Runs until the lane is closed and empty.
pub(crate) async fn run(work: Work) {
    let (state, lane, number) = (&*work.state, work.lane(), work.number);
    loop {
        let step = lane.line().step(&state.limits, clock::now());
        match step {
            Step::End => return,
            Step::Wait(None) => lane.changed.notified().await,
            Step::Wait(Some(until)) => tokio::select! {
                () = sleep_until(until) => {}
                () = lane.changed.notified() => {}
            },
            Step::Send(batch) => {
                let count = batch.len() as u64;
                let mut flight = Flight { state, batch: batch.seal(), landed: false };
                let results = send(state, number, &flight.batch).await;
                flight.landed = true;
                state.settle(&flight.batch, results);
                if let Some(memory) = flight.batch.memory() {
                    lane.idle().keep(memory);
                }
                lane.settled.send_modify(|settled| *settled += count);
            }
        }
    }
}

/// One bad message must not fail the rest: a rejected request is split in half and sent again.
async fn send(state: &State, lane: usize, batch: &Sealed) -> Fates {
    let mut results = Vec::new();
    let mut parts = VecDeque::from([(0, batch.len())]);
    while let Some((from, to)) = parts.pop_front() {
        let body = batch.body(from, to);
        let sent = push::deliver(&state.queen.shared, body, to - from, state.route(lane)).await;
        if to - from > 1 && sent.as_ref().is_err_and(is_about_messages) {
            let middle = from + (to - from) / 2;
            parts.push_front((middle, to));
            parts.push_front((from, middle));
            continue;
        }
        let sent = match sent {
            Ok(Results::Stored(answer)) if to - from == batch.len() => return Fates::stored(answer),
            Ok(Results::Stored(answer)) => push::read(&answer),
            Ok(Results::Read(results)) => Ok(results),
            Err(error) => Err(error),
        };
        state.read(batch, from, to, sent, &mut results);
    }
    Fates::Told(results)
}

/// The broker rejects the content or the size. Other errors would affect both halves alike.
fn is_about_messages(error: &Error) -> bool {
    matches!(error.status(), Some(400 | 413))
}

/// Waiting messages, and when to send them. Pure: the time is an argument.
struct Line<B> {
    batches: VecDeque<Waiting<B>>,
    added: u64,
    taken: u64,
    /// Everything up to here is sent at once.
    hurry: u64,
    closed: bool,
}

struct Waiting<B> {
    batch: B,
    count: usize,
    bytes: usize,
    since: Instant,
}

enum Step<B> {
    Send(B),
    /// `None`: no deadline until something changes.
    Wait(Option<Instant>),
    End,
}

impl<B> Default for Line<B> {
    fn default() -> Self {
        Self { batches: VecDeque::new(), added: 0, taken: 0, hurry: 0, closed: false }
    }
}

impl<B> Line<B> {
    /// The batch for a message of this size, and whether to wake the lane. A message that exceeds the limit of a batch gets its
    /// own. `None` if closed. `begin` is only called for the first message of a batch.
    fn add(
        &mut self,
        bytes: usize,
        limits: &Limits,
        begin: impl FnOnce() -> (B, Instant),
    ) -> Option<(&mut B, bool)> {
        if self.closed {
            return None;
        }
        let fits = |last: &Waiting<B>| {
            last.count < limits.batch_messages && last.bytes + bytes <= limits.batch_bytes
        };
        let fresh = !self.batches.back().is_some_and(fits);
        if fresh {
            let (batch, since) = begin();
            self.batches.push_back(Waiting { batch, count: 0, bytes: 0, since });
        }
        self.added += 1;
        let last = self.batches.back_mut()?;
        last.count += 1;
        last.bytes += bytes;
        let full = last.count >= limits.batch_messages || last.bytes >= limits.batch_bytes;
        Some((&mut last.batch, fresh || full))
    }

    /// Closes the line and returns everything that will not be sent.
    fn end(&mut self) -> Vec<B> {
        self.closed = true;
        self.batches.drain(..).map(|waiting| waiting.batch).collect()
    }

    fn step(&mut self, limits: &Limits, now: Instant) -> Step<B> {
        let Some(first) = self.batches.front() else {
            return if self.closed { Step::End } else { Step::Wait(None) };
        };
        let due = clock::after(first.since, limits.linger);
        let full = self.batches.len() > 1
            || first.count >= limits.batch_messages
            || first.bytes >= limits.batch_bytes;
        if !(full || self.closed || self.hurry > self.taken || due <= now) {
            return Step::Wait(Some(due));
        }
        match self.batches.pop_front() {
            Some(first) => {
                self.taken += first.count as u64;
                Step::Send(first.batch)
            }
            None => Step::Wait(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    const LIMITS: Limits = Limits {
        messages: 100,
        bytes: 1_000,
        linger: Duration::from_millis(10),
        batch_messages: 3,
        batch_bytes: 100,
    };

    /// Whether the lane is woken.
    fn add(line: &mut Line<Vec<u32>>, message: u32, bytes: usize, now: Instant) -> bool {
        let (batch, wakes) = line.add(bytes, &LIMITS, || (Vec::new(), now)).unwrap();
        batch.push(message);
        wakes
    }

    fn sent(step: Step<Vec<u32>>) -> Option<Vec<u32>> {
        match step {
            Step::Send(batch) => Some(batch),
            _ => None,
        }
    }

    #[test]
    fn messages_leave_when_the_first_has_lingered_or_there_are_enough() {
        let (mut line, now) = (Line::default(), clock::now());
        assert!(matches!(line.step(&LIMITS, now), Step::Wait(None)));
        assert!(add(&mut line, 1, 10, now));
        assert!(!add(&mut line, 2, 10, now + Duration::from_millis(5)), "it looks anyway");
        assert!(matches!(line.step(&LIMITS, now), Step::Wait(Some(due)) if due == now + LIMITS.linger));
        assert_eq!(sent(line.step(&LIMITS, now + LIMITS.linger)), Some(vec![1, 2]));
        let wakes: Vec<_> = (3..7).map(|n| add(&mut line, n, 10, now)).collect();
        assert_eq!(wakes, [true, false, true, true]);
        assert_eq!(sent(line.step(&LIMITS, now)), Some(vec![3, 4, 5]));
        assert_eq!(sent(line.step(&LIMITS, now)), None);
        add(&mut line, 7, 95, now);
        assert_eq!(sent(line.step(&LIMITS, now)), Some(vec![6]));
    }

    #[test]
    fn a_flush_or_a_close_ends_the_lingering_and_a_closed_line_takes_nothing() {
        let (mut line, now) = (Line::default(), clock::now());
        add(&mut line, 1, 1, now);
        line.hurry = line.added;
        add(&mut line, 2, 1, now);
        assert_eq!(sent(line.step(&LIMITS, now)), Some(vec![1, 2]));
        add(&mut line, 3, 1, now);
        assert_eq!(sent(line.step(&LIMITS, now)), None);
        line.closed = true;
        assert!(line.add(1, &LIMITS, || (Vec::new(), now)).is_none());
        assert_eq!(sent(line.step(&LIMITS, now)), Some(vec![3]));
        assert!(matches!(line.step(&LIMITS, now), Step::End));
    }

    #[test]
    fn a_line_may_linger_for_ever_and_ends_with_all_that_is_in_it() {
        let (mut line, now) = (Line::default(), clock::now());
        let limits = Limits { linger: Duration::MAX, ..LIMITS };
        add(&mut line, 1, 60, now);
        assert!(matches!(line.step(&limits, now), Step::Wait(Some(_))));
        add(&mut line, 2, 60, now);
        assert_eq!(line.end(), [vec![1], vec![2]]);
        assert!(
            line.add(1, &limits, || (Vec::new(), now)).is_none()
                && matches!(line.step(&limits, now), Step::End)
        );
    }

    #[test]
    fn only_what_is_about_single_messages_is_sent_by_halves() {
        let halved = |status| is_about_messages(&Error::answered(status, "", None, None));
        assert!(halved(400) && halved(413));
        for status in [302, 401, 403, 404, 405, 408, 415, 429, 500] {
            assert!(!halved(status), "{status}");
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_doubled_or_reordered_and_no_batch_is_too_large(
            sizes in prop::collection::vec((1usize..150, any::<bool>()), 0..100)
        ) {
            let (mut line, now) = (Line::default(), clock::now());
            let mut batches = Vec::new();
            for (n, (bytes, look)) in (0..).zip(&sizes) {
                add(&mut line, n, *bytes, now);
                if *look {
                    batches.extend(sent(line.step(&LIMITS, now)));
                }
            }
            line.closed = true;
            while let Some(batch) = sent(line.step(&LIMITS, now)) {
                batches.push(batch);
            }
            for batch in &batches {
                let bytes: usize = batch.iter().map(|&n| sizes[n as usize].0).sum();
                prop_assert!(batch.len() == 1 || bytes <= LIMITS.batch_bytes);
                prop_assert!(batch.len() <= LIMITS.batch_messages);
            }
            prop_assert_eq!(batches.concat(), (0..sizes.len() as u32).collect::<Vec<_>>());
            prop_assert_eq!(line.taken, line.added);
        }
    }
}

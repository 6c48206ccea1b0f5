//! A worker of a consumer: pops a batch, handles it in order, acknowledges, and repeats.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::Method;
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use crate::ack::{self, Ack, Form, Status};
use crate::call::Trial;
use crate::clock;
use crate::consume::progress::{Progress, Turn};
use crate::consume::renewal::{Held, Renewals};
use crate::consume::settlement::{Settlement, Told};
use crate::consume::{Context, Handler, Handling, Options, Signals};
use crate::delivery::{self, Batch};
use crate::error::Error;
use crate::http::Answer;
use crate::log;
use crate::pop::ANSWER_PATIENCE;
use crate::queen::Shared;
use crate::retry::{Policy, chance};
use crate::signal::Signal;
use crate::want::Want;
use crate::wire;

/// Interval of acknowledgements: a crash repeats at most what was done within it.
const TELL_AFTER: Duration = Duration::from_secs(1);
/// A broker answers promptly when a wait is ended; otherwise it is gone.
const END_PATIENCE: Duration = Duration::from_secs(5);
/// A broker that is overloaded or in maintenance may respond without waiting. Then the worker waits instead.
const EMPTY_PAUSE_MAX: Duration = Duration::from_secs(1);

/// State shared by the workers of a consumer.
pub struct Duty {
    pub shared: Arc<Shared>,
    pub options: Options,
    pub handler: Handler,
    pub progress: Progress,
    pub renewals: Arc<Renewals>,
    pub stop: Arc<Signal>,
    /// Reports when pops start to fail and when they work again.
    pub refusals: log::Trouble,
}

pub struct Worker {
    duty: Arc<Duty>,
    number: usize,
    /// Consecutive pops that returned nothing too early.
    hasty: u32,
}

/// Counts of message outcomes.
#[derive(Default)]
pub struct Count {
    handled: u64,
    failed: u64,
}

impl Count {
    fn add(&mut self, outcome: &Result<(), String>) {
        match outcome {
            Ok(()) => self.handled += 1,
            Err(_) => self.failed += 1,
        }
    }
}

impl Worker {
    pub fn new(duty: Arc<Duty>, number: usize) -> Self {
        Self { duty, number, hasty: 0 }
    }

    pub async fn run(mut self) -> Result<(), Error> {
        let duty = self.duty.clone();
        while !duty.stop.is_given() {
            let changed = duty.progress.changed();
            let (batch, wait) = match duty.progress.turn(duty.options.want.batch, clock::now()) {
                Turn::Pop(batch, wait) => (batch, wait),
                Turn::End => break,
                Turn::Wait => {
                    tokio::select! {
                        () = changed => {}
                        () = duty.stop.given() => {}
                    }
                    continue;
                }
            };
            let mut want = duty.options.want.clone();
            want.batch = batch;
            want.wait = wait.map_or(want.wait, |wait| wait.min(want.wait));
            let popped = self.pop(&want).await;
            let used = match &popped {
                Ok(Some(batch)) => {
                    duty.progress.begin();
                    let count = self.work(batch).await;
                    duty.progress.end(count.handled, count.failed, clock::now());
                    count.handled + count.failed
                }
                _ => 0,
            };
            duty.progress.settle(batch, used);
            popped?;
        }
        Ok(())
    }

    /// Retries until there is a response. `None`: no messages, or it is time to stop.
    async fn pop(&mut self, want: &Want) -> Result<Option<Arc<Batch>>, Error> {
        let duty = self.duty.clone();
        let route = want.source.route(want.group.as_deref(), self.number);
        let policy = Policy { retry_on_429: true, ..duty.shared.policy };
        let mut trial = Trial::new(&duty.shared, policy, route, None);
        loop {
            let broker = trial.begin();
            // A new id each time: the broker may still hold the wait of an earlier attempt.
            let wait_id = Uuid::now_v7();
            let path = want.path(Some(wait_id));
            let (none, asked) = (Bytes::new(), clock::now());
            let asking = duty.shared.ask(broker, &Method::GET, &path, &none, want.wait + ANSWER_PATIENCE);
            let mut asking = pin!(asking);
            let answered = tokio::select! {
                biased;
                answered = &mut asking => answered,
                () = duty.stop.given() => match end_wait(&duty.shared, broker, wait_id, asking).await {
                    Some(Ok(answer)) => Ok(answer),
                    _ => return Ok(None),
                },
            };
            let error = match answered {
                Ok(answer) => {
                    let answer = trial.answered(broker, answer);
                    log::pop_worked(&duty.refusals, &want.source);
                    let found = delivery::read(&duty.shared, want, answer)?;
                    let took = clock::now().duration_since(asked);
                    self.rest(found.is_none() && took < want.wait / 2).await;
                    return Ok(found);
                }
                Err(error) => error,
            };
            let pause = trial.failed(broker, error.clone(), false)?;
            // The idle time has passed, and no broker could be asked.
            let left = duty.progress.idle_left(clock::now());
            if left == Some(Duration::ZERO) {
                return Err(trial.ended(error));
            }
            duty.options.on_error.tell(&error, || log::pop_failed(&duty.refusals, &want.source, &error));
            self.pause(left.map_or(pause, |left| pause.min(left))).await;
            if duty.stop.is_given() {
                return Ok(None);
            }
        }
    }

    /// Waits in place of the broker.
    async fn rest(&mut self, hasty: bool) {
        if !hasty {
            self.hasty = 0;
            return;
        }
        let pause = self.duty.shared.policy.delay(self.hasty, None, chance());
        self.hasty += 1;
        self.pause(pause.min(EMPTY_PAUSE_MAX)).await;
    }

    async fn pause(&self, pause: Duration) {
        tokio::select! {
            () = sleep(pause) => {}
            () = self.duty.stop.given() => {}
        }
    }

    async fn work(&self, batch: &Arc<Batch>) -> Count {
        let duty = &*self.duty;
        let signals = Arc::new(Signals { lost: Signal::default(), stop: duty.stop.clone() });
        let held = duty.options.renew.then(|| duty.renewals.hold(batch, signals.clone()));
        let (context, lost) = (Context { signals: signals.clone() }, &signals.lost);
        let partitions = (0..batch.len()).map(|index| batch.partition_id(index));
        let mut settlement = Settlement::new(partitions, duty.options.auto_ack);
        let count = match &duty.handler {
            Handler::Each(each) => each.handle(self, batch, &mut settlement, context).await,
            Handler::Batches(_) if duty.stop.is_given() => Count::default(),
            Handler::Batches(batches) => {
                let start = AssertUnwindSafe(|| batches(batch, context, &mut settlement));
                let handling = catch_unwind(start).unwrap_or_else(|panic| {
                    let failed: Handling = Box::pin(std::future::ready(Err(panicked(&*panic))));
                    Some(failed)
                });
                self.together(batch, &mut settlement, lost, handling).await
            }
        };
        if !lost.is_given() {
            held.iter().for_each(Held::settling);
            let acked = if duty.options.auto_ack { Vec::new() } else { batch.done() };
            self.tell(batch, settlement.rest(&acked)).await;
        }
        drop(held);
        count
    }

    /// `start` begins to handle a message.
    pub async fn each<R: Future<Output = Result<(), String>>>(
        &self,
        batch: &Arc<Batch>,
        settlement: &mut Settlement,
        lost: &Signal,
        start: impl Fn(usize) -> R,
    ) -> Count {
        let mut count = Count::default();
        let mut patience = pin!(self.patience());
        let mut told = clock::now();
        for index in 0..batch.len() {
            if self.duty.stop.is_given() || lost.is_given() {
                break;
            }
            if !settlement.wants(index) {
                continue;
            }
            let outcome = tokio::select! {
                biased;
                outcome = caught(|| start(index)) => outcome,
                () = &mut patience => break,
            };
            // It is redelivered, so it counts as neither.
            if lost.is_given() {
                break;
            }
            count.add(&outcome);
            if let Err(error) = &outcome {
                log::handler_failed(batch, index, 1, error);
            }
            let done = outcome.is_err() && batch.is_done(index);
            self.settle(batch, settlement, index, outcome, done);
            if clock::now().duration_since(told) >= TELL_AFTER && index + 1 < batch.len() {
                for refused in self.tell(batch, settlement.done()).await {
                    settlement.lose(refused);
                }
                told = clock::now();
            }
        }
        count
    }

    async fn together(
        &self,
        batch: &Arc<Batch>,
        settlement: &mut Settlement,
        lost: &Signal,
        handling: Option<Handling>,
    ) -> Count {
        let undecoded = (0..batch.len()).filter(|&index| !settlement.is_open(index)).count() as u64;
        let mut count = Count { handled: 0, failed: undecoded };
        let Some(handling) = handling else { return count };
        let outcome = tokio::select! {
            biased;
            outcome = caught(|| handling) => outcome,
            () = self.patience() => return count,
        };
        if lost.is_given() {
            return count;
        }
        let handled: Vec<_> = (0..batch.len()).filter(|&index| settlement.wants(index)).collect();
        if let (Err(error), Some(&first)) = (&outcome, handled.first()) {
            log::handler_failed(batch, first, handled.len(), error);
        }
        let done = if outcome.is_err() { batch.done() } else { Vec::new() };
        for index in handled {
            count.add(&outcome);
            let done = done.get(index).is_some_and(|&done| done);
            self.settle(batch, settlement, index, outcome.clone(), done);
        }
        count
    }

    /// `done`: the handler acknowledged it before it failed.
    fn settle(
        &self,
        batch: &Batch,
        settlement: &mut Settlement,
        index: usize,
        outcome: Result<(), String>,
        done: bool,
    ) {
        match outcome {
            _ if batch.is_given_back(index) => settlement.release(index),
            Err(error) if !done => settlement.fail(index, error),
            Err(_) => settlement.complete(index),
            Ok(()) => {
                settlement.complete(index);
                if self.duty.options.auto_ack {
                    batch.handled(index);
                }
            }
        }
    }

    /// Completes when a stop has waited long enough for a handler.
    async fn patience(&self) {
        self.duty.stop.given().await;
        sleep(self.duty.options.stop_timeout).await;
    }

    /// Failures are only reported, because unacknowledged messages are redelivered. Returns the messages whose acknowledgement the
    /// broker refused.
    async fn tell(&self, batch: &Arc<Batch>, told: Vec<Told>) -> Vec<usize> {
        let ack = |told: Told| batch.ack(told.index, told.status, told.error);
        let acks: Vec<Ack> = told.into_iter().map(ack).collect();
        let on_error = &self.duty.options.on_error;
        let results = match ack::send(&self.duty.shared, &acks, Form::Batch, None).await {
            Ok(results) => results,
            Err(error) => {
                let first = acks.first().map_or(0, |ack| ack.envelope.index());
                on_error.tell(&error, || log::acknowledgement_failed(batch, first, acks.len(), &error));
                return Vec::new();
            }
        };
        // A refused attempt to give back means that the message is not held anymore, which is fine.
        let mut refused = acks.iter().enumerate().filter_map(|(index, ack)| {
            let error = results.refusal(index, ack).filter(|_| ack.status != Status::Retry)?;
            Some((ack.envelope.index(), error))
        });
        let Some((first, error)) = refused.next() else { return Vec::new() };
        let refused: Vec<_> = [first].into_iter().chain(refused.map(|(index, _)| index)).collect();
        on_error.tell(&error, || log::acknowledgement_failed(batch, first, refused.len(), &error));
        refused
    }
}

/// Ends the wait at the broker, and takes its response, which may contain messages.
async fn end_wait(
    shared: &Shared,
    broker: usize,
    wait_id: Uuid,
    asking: Pin<&mut impl Future<Output = Result<Answer, Error>>>,
) -> Option<Result<Answer, Error>> {
    let path = wire::path(&["/api/v1/pop/waits/", &wait_id.to_string()]);
    let none = Bytes::new();
    let ending = shared.ask(broker, &Method::DELETE, &path, &none, END_PATIENCE);
    let (_, answered) = tokio::join!(ending, timeout(END_PATIENCE, asking));
    answered.ok()
}

/// A panic of a handler counts as a failure; the consumer continues.
async fn caught<R: Future<Output = Result<(), String>>>(start: impl FnOnce() -> R) -> Result<(), String> {
    let handling = match catch_unwind(AssertUnwindSafe(start)) {
        Ok(handling) => handling,
        Err(panic) => return Err(panicked(&*panic)),
    };
    let mut handling = pin!(handling);
    std::future::poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| handling.as_mut().poll(context))) {
        Ok(poll) => poll,
        Err(panic) => Poll::Ready(Err(panicked(&*panic))),
    })
    .await
}

fn panicked(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the handler panicked: {}", text.as_deref().unwrap_or("no message"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_that_panics_has_failed_with_what_it_said() {
        let failed = |handling: fn() -> Handling| async move { caught(handling).await.unwrap_err() };
        assert_eq!(failed(|| panic!("at once")).await, "the handler panicked: at once");
        let later = || -> Handling { Box::pin(async { panic!("later {}", 7) }) };
        assert_eq!(failed(later).await, "the handler panicked: later 7");
        assert_eq!(caught(|| Box::pin(async { Ok(()) })).await, Ok(()));
    }
}

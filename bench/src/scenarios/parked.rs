//! How fast a push wakes a waiting pop, alone and with many long polls parked on another queue.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use tokio::task::JoinSet;

use super::Outcome;
use crate::client::Client;
use crate::harness::{Flow, Operation, Phase, Plan, Recorder, Worker, run_workers};
use crate::setup::{PUSH, Setup};
use crate::wire::{PushBody, Stamp, check_pushed, popped};

/// Time for a poll to reach the broker and park before the push that wakes it.
const PARK_TIME: Duration = Duration::from_millis(20);
/// The same for all long polls; generous, because the broker checks the queue once for each.
const PARK_ALL_TIME: Duration = Duration::from_secs(1);
/// Additional time per this many polls.
const PARKED_A_SECOND: u32 = 4_000;

pub async fn run(setup: &Setup, queue: &str, name: &str) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    outcome.add(&format!("{name}-0"), &measure(setup, queue).await?);

    let idle_queue = setup.create_queue("idle").await?;
    let parked = setup.options.parked();
    let mut polls = park(setup, &idle_queue, parked).await?;
    let phase = measure(setup, queue).await?;
    while let Some(ended) = polls.try_join_next() {
        let ended = ended?;
        outcome.violations.push(format!("{name}: a poll of an idle queue ended early: {ended:?}"));
    }
    drop(polls);
    setup.delete_queue(&idle_queue).await?;
    outcome.add(&format!("{name}-{parked}"), &phase);
    Ok(outcome)
}

async fn measure(setup: &Setup, queue: &str) -> Result<Phase> {
    let waker = Waker {
        push_client: setup.client(),
        pop: format!("/api/v1/pop/queue/{queue}?wait=true&timeout=10000&autoAck=true"),
        body: PushBody::new(queue, setup.options.payload),
        seq: 0,
    };
    let plan = Plan::timed(setup.options.warmup(), setup.options.measured());
    run_workers(setup, vec![waker], plan).await
}

/// Long polls that outlast the measurement, one connection each.
pub async fn park(setup: &Setup, queue: &str, count: u32) -> Result<JoinSet<Result<u16>>> {
    let options = &setup.options;
    let timeout = options.warmup() + options.measured() + Duration::from_secs(60);
    let pop = format!("/api/v1/pop/queue/{queue}?wait=true&timeout={}", timeout.as_millis());
    let mut polls = JoinSet::new();
    for _ in 0..count {
        let mut client = setup.client();
        client.answer_timeout = timeout;
        client.connect().await?;
        let pop = pop.clone();
        polls.spawn(async move { Ok(client.get(&pop).await?.status) });
    }
    let time = PARK_ALL_TIME * (1 + count / PARKED_A_SECOND);
    tokio::time::sleep(options.scale(time, time / 4)).await;
    Ok(polls)
}

/// Waits for a message on one connection while pushing it on another.
struct Waker {
    push_client: Client,
    pop: String,
    body: PushBody,
    seq: u32,
}

impl Worker for Waker {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        if recorder.window().is_over() {
            return Ok(Flow::Done);
        }
        self.seq += 1;
        self.body.add(Stamp { producer: 0, partition: 0, seq: self.seq, sent: 0 });
        let body = self.body.finish();
        let wait = async {
            let reply = client.get(&self.pop).await?;
            Ok((reply, Instant::now()))
        };
        let push = async {
            tokio::time::sleep(PARK_TIME).await;
            let started = Instant::now();
            let reply = self.push_client.post(PUSH, body).await?;
            check_pushed(&reply, 1)?;
            Ok::<_, anyhow::Error>(started)
        };
        let ((reply, received), sent) = tokio::try_join!(wait, push)?;
        let messages = popped(&reply)?;
        let seqs: Vec<_> = messages.iter().map(|message| message.stamp().map(|stamp| stamp.seq)).collect();
        if seqs != [Some(self.seq)] {
            bail!("waited for message {}, got {seqs:?}", self.seq);
        }
        recorder.record(Operation::Delivery, sent, received, 1);
        Ok(Flow::Continue)
    }
}

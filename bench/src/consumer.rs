//! A consumer that checks its messages: pop, check, acknowledge, until everything was received.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::client::Client;
use crate::harness::{Flow, Operation, Recorder, Worker};
use crate::setup::{ACK, SharedChecker, with_checker};
use crate::wire::{ack_body, check_acked, group_query, popped};

/// Pause after an empty pop that did not wait: other workers hold the rest.
const EMPTY_PAUSE: Duration = Duration::from_millis(2);

pub struct Consumer {
    pop: String,
    group: Option<String>,
    checker: SharedChecker,
    timing: Timing,
    stall: Duration,
    /// Number of messages received by all consumers, and when it last changed.
    progress: (u64, Instant),
}

#[derive(Clone, Copy)]
pub enum Timing {
    /// Each pop that returns messages.
    Pop,
    /// Each message, from its `sent` time since this instant.
    Delivery(Instant),
}

impl Consumer {
    /// `query` follows `/api/v1/pop/queue/QUEUE?`.
    pub fn new(
        queue: &str,
        query: &str,
        group: Option<&str>,
        checker: &SharedChecker,
        timing: Timing,
        stall: Duration,
    ) -> Consumer {
        let group_query = group.map(group_query).unwrap_or_default();
        Consumer {
            pop: format!("/api/v1/pop/queue/{queue}?{query}{group_query}"),
            group: group.map(str::to_owned),
            checker: checker.clone(),
            timing,
            stall,
            progress: (0, Instant::now()),
        }
    }

    /// Whether everything was received, or there was no progress for so long that the rest counts as lost.
    fn is_finished(&mut self) -> bool {
        let (complete, producers_done, received) = with_checker(&self.checker, |checker| {
            (checker.complete(), checker.producers_done(), checker.received())
        });
        if received != self.progress.0 {
            self.progress = (received, Instant::now());
        }
        complete || producers_done && self.progress.1.elapsed() > self.stall
    }
}

impl Worker for Consumer {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        if self.is_finished() {
            return Ok(Flow::Done);
        }
        let started = Instant::now();
        let reply = client.get(&self.pop).await?;
        let received = Instant::now();
        let messages = popped(&reply)?;
        if messages.is_empty() {
            if received - started < EMPTY_PAUSE {
                tokio::time::sleep(EMPTY_PAUSE).await;
            }
            return Ok(Flow::Continue);
        }
        let stamps: Vec<_> = messages.iter().map(|message| (message.partition, message.stamp())).collect();
        with_checker(&self.checker, |checker| {
            for (partition, stamp) in &stamps {
                checker.receive(partition, *stamp);
            }
        });
        match self.timing {
            Timing::Pop => recorder.record(Operation::Pop, started, received, messages.len()),
            Timing::Delivery(epoch) => {
                for stamp in stamps.iter().filter_map(|(_, stamp)| stamp.as_ref()) {
                    let sent = epoch + Duration::from_nanos(stamp.sent);
                    recorder.record(Operation::Delivery, sent, received, 1);
                }
            }
        }
        drop(stamps);
        let started = Instant::now();
        let reply = client.post(ACK, &ack_body(&messages, self.group.as_deref())).await?;
        recorder.record(Operation::Ack, started, Instant::now(), messages.len());
        check_acked(&reply, messages.len())?;
        Ok(Flow::Continue)
    }
}

/// Pops once more after everything was received, to find messages that are repeated or made up.
pub async fn check_nothing_left(
    client: &mut Client,
    queue: &str,
    group: Option<&str>,
    checker: &SharedChecker,
) -> Result<()> {
    let group = group.map(group_query).unwrap_or_default();
    let pop = format!("/api/v1/pop/queue/{queue}?batch=100&partitions=10{group}");
    let reply = client.get(&pop).await?;
    let messages = popped(&reply)?;
    with_checker(checker, |checker| {
        for message in &messages {
            checker.receive(message.partition, message.stamp());
        }
    });
    Ok(())
}

//! Many specific pops at the same moment, compared with the same pops in sequence.
//!
//! The burst runs first, so that it does not benefit from warm caches. Responses are checked afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::Outcome;
use crate::client::{Client, Reply};
use crate::harness::{Clock, Operation, Tally};
use crate::measure::Cost;
use crate::report::Row;
use crate::setup::Setup;
use crate::wire::{group_query, partition_name, popped};

/// The row of the sequential pops.
pub const LOOP: &str = "burst-loop";

const BATCH: usize = 10;

pub async fn run(setup: &Setup, queue: &str, name: &str) -> Result<Outcome> {
    let options = &setup.options;
    let partitions = options.scale(500, 50);
    setup.preload(queue, partitions, options.scale(100, 20), None).await?;
    let pops = |group: &str| -> Vec<String> {
        let pop = |partition| {
            let partition = partition_name(partition);
            let group = group_query(group);
            format!("/api/v1/pop/queue/{queue}/partition/{partition}?batch={BATCH}{group}")
        };
        (0..partitions).map(pop).collect()
    };
    let connections = options.burst_connections().min(partitions);
    let mut outcome = Outcome::default();
    let burst_seconds = measure(setup, name, pops("burst"), connections, &mut outcome).await?;
    let loop_seconds = measure(setup, LOOP, pops("loop"), 1, &mut outcome).await?;
    outcome.notes.push(format!(
        "{name}: {partitions} pops took {:.1} ms at once over {connections} connections, {:.1} ms in sequence: {:.1}x",
        burst_seconds * 1e3,
        loop_seconds * 1e3,
        loop_seconds / burst_seconds
    ));
    Ok(outcome)
}

/// Sends all pops over the connections, starting on all of them at once. Returns the seconds it took.
async fn measure(
    setup: &Setup,
    name: &str,
    pops: Vec<String>,
    connections: u32,
    outcome: &mut Outcome,
) -> Result<f64> {
    let mut shares = vec![Vec::new(); connections as usize];
    for (index, pop) in pops.into_iter().enumerate() {
        shares[index % connections as usize].push(pop);
    }
    let start = Arc::new(Barrier::new(connections as usize + 1));
    let mut tasks = JoinSet::new();
    for share in shares {
        let mut client = setup.client();
        // A first response shows that the broker has accepted the connection.
        client.get("/health").await?;
        tasks.spawn(pop_all(client, share, Arc::clone(&start)));
    }
    let before = setup.meter.begin().await?;
    start.wait().await;
    let started = Instant::now();
    let answers = tasks.join_all().await;
    let seconds = started.elapsed().as_secs_f64();
    let usage = setup.meter.end(before).await?;

    let mut tally = Tally::default();
    let mut errors = 0;
    for (latency, reply) in answers.into_iter().flatten() {
        tally.latency(latency);
        tally.requests += 1;
        match reply.and_then(|reply| check_answer(&reply)) {
            Ok(messages) => tally.messages += messages as u64,
            Err(error) => {
                errors += 1;
                outcome.error_texts.push(format!("{name}: {error:#}"));
            }
        }
    }
    outcome.error_texts.truncate(5);
    tally.metered_messages = tally.messages;
    let mut row = Row::new(name, Operation::Pop, Clock::Service, seconds, &tally);
    row.errors = errors;
    row.cost = Some(Cost::of(&usage, tally.metered_messages));
    outcome.rows.push(row);
    Ok(seconds)
}

async fn pop_all(
    mut client: Client,
    pops: Vec<String>,
    start: Arc<Barrier>,
) -> Vec<(Duration, Result<Reply>)> {
    let mut answers = Vec::with_capacity(pops.len());
    start.wait().await;
    for pop in &pops {
        let started = Instant::now();
        let reply = client.get(pop).await;
        answers.push((started.elapsed(), reply));
    }
    answers
}

/// Every partition was full, so each pop returns the first messages in order.
fn check_answer(reply: &Reply) -> Result<usize> {
    let messages = popped(reply)?;
    let seqs: Option<Vec<u32>> = messages.iter().map(|message| Some(message.stamp()?.seq)).collect();
    match seqs {
        Some(seqs) if seqs.iter().copied().eq(0..BATCH as u32) => Ok(messages.len()),
        seqs => Err(anyhow!("expected the first {BATCH} messages in order, got {seqs:?}")),
    }
}

//! The queries of an operator, one kind after the other, each repeated without a pause.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use serde::de::IgnoredAny;

use crate::client::Client;
use crate::harness::Tally;
use crate::setup::Setup;
use crate::wire::expect_status;

/// Figures of a route.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RouteFigures {
    pub name: &'static str,
    pub asked: u64,
    pub p50_us: u64,
    pub p99_us: u64,
    pub max_us: u64,
    /// Size of the last response.
    pub bytes: usize,
    /// The first error. Nothing is requested after it.
    pub error: Option<String>,
}

impl RouteFigures {
    pub fn violation(&self) -> Option<String> {
        self.error.as_ref().map(|error| format!("{}: {error}", self.name))
    }
}

/// With the names used in the table, which omit the bench's own queue.
fn routes(queue: &str, group: &str) -> [(&'static str, String); 9] {
    [
        ("resources/overview", "resources/overview".to_owned()),
        ("resources/queues", "resources/queues".to_owned()),
        ("resources/queues/{queue}", format!("resources/queues/{queue}")),
        ("resources/queues/{queue}/depth", format!("resources/queues/{queue}/depth?group={group}")),
        ("resources/partitions", format!("resources/partitions?queue={queue}")),
        ("resources/namespaces", "resources/namespaces".to_owned()),
        ("consumer-groups", "consumer-groups".to_owned()),
        // Nothing is an hour old yet, which is the default threshold.
        ("consumer-groups/lagging", "consumer-groups/lagging?minLagSeconds=1".to_owned()),
        ("consumer-groups/{group}", format!("consumer-groups/{group}")),
    ]
}

pub async fn ask_all(setup: &Setup, queue: &str, group: &str, each: Duration) -> Result<Vec<RouteFigures>> {
    let mut client = setup.client();
    client.connect().await?;
    let mut all = Vec::new();
    for (name, path) in routes(queue, group) {
        eprintln!("asking: {name}");
        all.push(ask(&mut client, name, &format!("/api/v1/{path}"), each).await);
    }
    Ok(all)
}

async fn ask(client: &mut Client, name: &'static str, path: &str, time: Duration) -> RouteFigures {
    let mut tally = Tally::default();
    let mut figures = RouteFigures { name, ..RouteFigures::default() };
    let until = Instant::now() + time;
    while Instant::now() < until && figures.error.is_none() {
        let started = Instant::now();
        let answer = answer(client, name, path).await;
        tally.latency(started.elapsed());
        match answer {
            Ok(bytes) => figures.bytes = bytes,
            Err(error) => figures.error = Some(format!("{error:#}")),
        }
    }
    figures.asked = tally.latency_us.len();
    figures.p50_us = tally.latency_us.value_at_quantile(0.5);
    figures.p99_us = tally.latency_us.value_at_quantile(0.99);
    figures.max_us = tally.latency_us.max();
    figures
}

/// Size of a response that must be JSON.
async fn answer(client: &mut Client, name: &str, path: &str) -> Result<usize> {
    let reply = client.get(path).await?;
    expect_status(name, &reply, 200)?;
    serde_json::from_slice::<IgnoredAny>(&reply.body).context("the response is not JSON")?;
    Ok(reply.body.len())
}

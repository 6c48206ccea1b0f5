//! PostgreSQL alone: closed loops of the broker's calls on a few connections, each with its own partitions.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio_postgres::Config;

use super::work::Work;
use crate::direct::{Claim, Connection, FrameWriter, Place};
use crate::options::Options;
use crate::wire::partition_name;

/// The fastest one counts, because this is a ceiling.
pub const CONNECTIONS: [usize; 3] = [1, 2, 4];
/// The pops' group; to PostgreSQL all groups are alike.
const GROUP: &str = "ceiling";
/// As a preload over HTTP writes them.
const SEGMENT_MESSAGES: u32 = 100;
/// Batches per partition. After the last one it is read again from the start, which costs an extra statement; with this many, at
/// most one in a hundred. A lease only looks at heads and cursors, so the messages need not be new.
const BATCHES: u32 = 80;
const MESSAGES_MIN: u32 = 2_000;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rate {
    pub connections: usize,
    pub calls_per_second: f64,
    pub messages_per_second: f64,
}

/// For each number of connections. `fetch`: pops read their messages as well.
pub async fn rates(database: &Config, work: &Work, options: &Options, fetch: bool) -> Result<Vec<Rate>> {
    let mut rates = Vec::new();
    for connections in CONNECTIONS {
        let rate = measure(database, work, options, fetch, connections).await;
        rates.push(rate.with_context(|| format!("on {connections} connections"))?);
    }
    Ok(rates)
}

async fn measure(
    database: &Config,
    work: &Work,
    options: &Options,
    fetch: bool,
    connections: usize,
) -> Result<Rate> {
    let mut first = Connection::open(database).await?;
    let queue = format!("ceiling-{}", uuid::Uuid::new_v4().simple());
    let partitions = (connections * work.rows()).max(options.partitions as usize);
    let names: Vec<String> = (0..partitions as u32).map(partition_name).collect();
    let mut places = first.partitions(&queue, &names).await?;
    if let Work::Pop { batch, .. } = *work {
        let each = batch * options.scale(BATCHES, 5);
        let each = each.max(options.scale(MESSAGES_MIN, 1));
        first.fill(&mut places, each, SEGMENT_MESSAGES, &mut FrameWriter::new(options.payload)).await?;
    }
    let mut crew = Vec::new();
    for share in places.chunks_exact(partitions / connections).take(connections) {
        crew.push(Caller {
            connection: Connection::open(database).await?,
            places: share.to_vec(),
            next: 0,
            writer: FrameWriter::new(options.payload),
            fetch,
            rounds: 0,
        });
    }
    let from = Instant::now() + options.warmup();
    let until = from + options.measured();
    let mut tasks = JoinSet::new();
    for caller in crew {
        tasks.spawn(caller.call_until(work.clone(), from, until));
    }
    let (mut calls, mut messages) = (0, 0);
    while let Some(done) = tasks.join_next().await {
        let done = done??;
        calls += done.calls;
        messages += done.messages;
        let group = matches!(work, Work::Pop { .. }).then_some(GROUP);
        first.check(&done.places, group).await?;
    }
    let seconds = Duration::as_secs_f64(&options.measured());
    Ok(Rate {
        connections,
        calls_per_second: calls as f64 / seconds,
        messages_per_second: messages as f64 / seconds,
    })
}

/// One connection with its own partitions.
struct Caller {
    connection: Connection,
    places: Vec<Place>,
    /// Index in `places` of the next call.
    next: usize,
    writer: FrameWriter,
    fetch: bool,
    rounds: usize,
}

struct Done {
    calls: u64,
    messages: u64,
    places: Vec<Place>,
}

impl Caller {
    /// Counts calls that end between the two times.
    async fn call_until(mut self, work: Work, from: Instant, until: Instant) -> Result<Done> {
        let (mut calls, mut messages) = (0, 0);
        while Instant::now() < until {
            let step = self.step(&work).await?;
            let now = Instant::now();
            if now >= from && now <= until {
                calls += step.0;
                messages += step.1;
            }
        }
        Ok(Done { calls, messages, places: self.places })
    }

    /// Returns calls and messages.
    async fn step(&mut self, work: &Work) -> Result<(u64, u64)> {
        if self.next + work.rows() > self.places.len() {
            self.next = 0;
            self.rounds += 1;
        }
        let places = &mut self.places[self.next..self.next + work.rows()];
        self.next += work.rows();
        match *work {
            Work::Push(ref counts) => Ok((1, self.connection.push(places, counts, &mut self.writer).await?)),
            Work::Pop { batch, auto, .. } => {
                if places[0].unread() == 0 {
                    self.connection.rewind(places, GROUP).await?;
                }
                let claim = Claim { group: GROUP, batch, auto, readers: self.rounds == 0 };
                let leases = self.connection.lease(places, claim).await?;
                let messages = leases.iter().map(|lease| (lease.last - lease.first).cast_unsigned()).sum();
                if self.fetch {
                    self.connection.fetch(places, &leases).await?;
                }
                if !auto {
                    self.connection.ack(places, GROUP, &leases).await?;
                }
                Ok((1 + u64::from(self.fetch) + u64::from(!auto), messages))
            }
        }
    }
}

//! Pushes, pops and acknowledgements on one queue, on a schedule or as fast as possible, and a ledger of their results.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use queen_testkit::Random;
use serde::Serialize;

use crate::client::Client;
use crate::harness::{Flow, Operation, Phase, Plan, Recorder, Worker, run_workers};
use crate::pacer::Pacer;
use crate::report::thousands;
use crate::setup::{ACK, PUSH, Setup};
use crate::wire::{PushBody, Stamp, ack_body, check_acked, check_pushed, group_query, popped};

/// Messages per scheduled request.
const BATCH: u32 = 10;
/// Enough workers to keep the rate while some requests are slow.
const WORKERS: u32 = 8;
/// Workers of each kind in a closed loop.
const FAST_WORKERS: u32 = 8;
/// Pause after an empty pop.
const EMPTY_PAUSE: Duration = Duration::from_millis(2);

/// What the broker has confirmed since its queue was empty.
pub struct Ledger {
    pushed: AtomicU64,
    acked: Vec<(String, AtomicU64)>,
}

impl Ledger {
    pub fn new(groups: &[&str]) -> Ledger {
        let acked = groups.iter().map(|&group| (group.to_owned(), AtomicU64::new(0))).collect();
        Ledger { pushed: AtomicU64::new(0), acked }
    }

    pub fn add_pushed(&self, messages: u64) {
        self.pushed.fetch_add(messages, Ordering::Relaxed);
    }

    pub fn pushed(&self) -> u64 {
        self.pushed.load(Ordering::Relaxed)
    }

    /// Unread messages per group.
    pub fn pending(&self) -> impl Iterator<Item = (&str, u64)> {
        self.acked
            .iter()
            .map(|(group, acked)| (&**group, self.pushed().saturating_sub(acked.load(Ordering::Relaxed))))
    }

    fn acked(&self, group: &str) -> u64 {
        self.find(group).map_or(0, |acked| acked.load(Ordering::Relaxed))
    }

    fn add_acked(&self, group: &str, messages: u64) {
        if let Some(acked) = self.find(group) {
            acked.fetch_add(messages, Ordering::Relaxed);
        }
    }

    fn find(&self, group: &str) -> Option<&AtomicU64> {
        self.acked.iter().find(|(name, _)| name == group).map(|(_, acked)| acked)
    }
}

/// Target of the traffic.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub queue: &'a str,
    /// Number of partitions to push to, from the first.
    pub partitions: u32,
    pub ledger: &'a Arc<Ledger>,
}

/// Rates of the scheduled traffic during the queries.
#[derive(Debug, Serialize)]
pub struct Steady {
    pub seconds: f64,
    /// Messages pushed per second, and delivered to each group per second.
    pub rate: u32,
    pub groups: usize,
    pub pushed_per_second: f64,
    pub acked_per_second: f64,
    pub push_p50_us: u64,
    pub push_p99_us: u64,
    pub pop_p50_us: u64,
    pub pop_p99_us: u64,
    #[serde(skip)]
    pub error_texts: Vec<String>,
}

impl Place<'_> {
    /// Runs scheduled traffic until `questions` is done.
    pub async fn beside<T>(
        &self,
        setup: &Setup,
        rate: u32,
        groups: &[&str],
        questions: impl Future<Output = Result<T>>,
    ) -> Result<(Steady, T)> {
        let over = Arc::new(AtomicBool::new(false));
        let per_second = (rate / BATCH).max(1);
        let mut roles = Vec::new();
        let pacer = Arc::new(Pacer::new(per_second)?);
        for _ in 0..WORKERS {
            roles.push(Role::Pusher(self.pusher(setup, Some(&pacer), &over)));
        }
        for group in groups {
            let pacer = Arc::new(Pacer::new(per_second)?);
            for _ in 0..WORKERS {
                let pop = format!("batch={BATCH}{}", group_query(group));
                roles.push(Role::Reader(self.reader(&pop, group, Some(&pacer), &over)));
            }
        }
        let asked = async {
            let asked = questions.await;
            over.store(true, Ordering::Relaxed);
            asked
        };
        let plan = Plan::until_done().unmetered();
        let (phase, asked) = tokio::join!(run_workers(setup, roles, plan), asked);
        Ok((Steady::of(&phase?, rate, groups.len()), asked?))
    }

    /// Reads as fast as possible, until the group has acknowledged this many existing messages.
    pub async fn consume(&self, setup: &Setup, group: &str, messages: u64) -> Result<()> {
        let reader = |_| {
            let pop = format!("batch=100&partitions=10{}", group_query(group));
            let reader = self.reader(&pop, group, None, &Arc::default());
            Role::Reader(Reader { until: messages, ..reader })
        };
        let roles = (0..FAST_WORKERS).map(reader).collect();
        let phase = run_workers(setup, roles, Plan::until_done().unmetered()).await?;
        match phase.error_texts.first() {
            Some(error) => bail!("{group} reads {messages} messages: {error}"),
            None => Ok(()),
        }
    }

    /// Pushes and pops as fast as possible. The group reads what is pushed after its first pop.
    pub async fn at_full_speed(&self, setup: &Setup, group: &str, plan: Plan) -> Result<Phase> {
        let over = Arc::default();
        let pop = format!(
            "batch=100&partitions=10&wait=true&timeout=200&consumerGroup={group}&subscriptionMode=new"
        );
        let pushers = (0..FAST_WORKERS).map(|_| Role::Pusher(self.pusher(setup, None, &over)));
        let readers = (0..FAST_WORKERS).map(|_| Role::Reader(self.reader(&pop, group, None, &over)));
        run_workers(setup, pushers.chain(readers).collect(), plan).await
    }

    fn pusher(&self, setup: &Setup, pacer: Option<&Arc<Pacer>>, over: &Arc<AtomicBool>) -> Pusher {
        Pusher {
            body: PushBody::new(self.queue, setup.options.payload),
            random: Random::from_entropy(),
            partitions: self.partitions,
            seq: 0,
            pacer: pacer.cloned(),
            over: Arc::clone(over),
            ledger: Arc::clone(self.ledger),
        }
    }

    fn reader(&self, query: &str, group: &str, pacer: Option<&Arc<Pacer>>, over: &Arc<AtomicBool>) -> Reader {
        Reader {
            pop: format!("/api/v1/pop/queue/{}?{query}", self.queue),
            group: group.to_owned(),
            until: u64::MAX,
            pacer: pacer.cloned(),
            over: Arc::clone(over),
            ledger: Arc::clone(self.ledger),
        }
    }
}

impl Steady {
    fn of(phase: &Phase, rate: u32, groups: usize) -> Steady {
        let per_second = |operation| phase.tally(operation).messages as f64 / phase.seconds.max(0.001);
        let quantile = |operation, quantile| phase.tally(operation).latency_us.value_at_quantile(quantile);
        Steady {
            seconds: phase.seconds,
            rate,
            groups,
            pushed_per_second: per_second(Operation::Push),
            acked_per_second: per_second(Operation::Ack),
            push_p50_us: quantile(Operation::Push, 0.5),
            push_p99_us: quantile(Operation::Push, 0.99),
            pop_p50_us: quantile(Operation::Pop, 0.5),
            pop_p99_us: quantile(Operation::Pop, 0.99),
            error_texts: phase.error_texts.clone(),
        }
    }
}

impl fmt::Display for Steady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Steady { seconds, groups, push_p99_us, pop_p99_us, .. } = self;
        let [pushed, acked] = [self.pushed_per_second, self.acked_per_second].map(thousands);
        let [push, pop] = [push_p99_us, pop_p99_us].map(|&us| us as f64 / 1e3);
        write!(
            f,
            "Traffic meanwhile, for {seconds:.0} s: {pushed} messages pushed and {acked} acknowledged per second, by \
             {groups} groups; p99 of a push {push:.1} ms, of a pop {pop:.1} ms."
        )
    }
}

enum Role {
    Pusher(Pusher),
    Reader(Reader),
}

impl Worker for Role {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        match self {
            Role::Pusher(pusher) => pusher.step(client, recorder).await,
            Role::Reader(reader) => reader.step(client, recorder).await,
        }
    }
}

struct Pusher {
    body: PushBody,
    random: Random,
    partitions: u32,
    seq: u32,
    pacer: Option<Arc<Pacer>>,
    over: Arc<AtomicBool>,
    ledger: Arc<Ledger>,
}

impl Pusher {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        if self.over.load(Ordering::Relaxed) || recorder.window().is_over() {
            return Ok(Flow::Done);
        }
        if let Some(pacer) = &self.pacer {
            pacer.next(None).await?;
        }
        let partition = self.random.below(self.partitions);
        for _ in 0..BATCH {
            self.body.add(Stamp { producer: 1, partition, seq: self.seq, sent: 0 });
            self.seq += 1;
        }
        let started = Instant::now();
        let reply = client.post(PUSH, self.body.finish()).await?;
        let finished = Instant::now();
        check_pushed(&reply, BATCH as usize)?;
        self.ledger.add_pushed(BATCH.into());
        recorder.record(Operation::Push, started, finished, BATCH as usize);
        Ok(Flow::Continue)
    }
}

struct Reader {
    pop: String,
    group: String,
    /// Ends once the group has acknowledged this many.
    until: u64,
    pacer: Option<Arc<Pacer>>,
    over: Arc<AtomicBool>,
    ledger: Arc<Ledger>,
}

impl Reader {
    async fn step(&mut self, client: &mut Client, recorder: &mut Recorder) -> Result<Flow> {
        let enough = self.ledger.acked(&self.group) >= self.until;
        if enough || self.over.load(Ordering::Relaxed) || recorder.window().is_over() {
            return Ok(Flow::Done);
        }
        if let Some(pacer) = &self.pacer {
            pacer.next(None).await?;
        }
        let started = Instant::now();
        let reply = client.get(&self.pop).await?;
        let finished = Instant::now();
        let messages = popped(&reply)?;
        if messages.is_empty() {
            if finished - started < EMPTY_PAUSE {
                tokio::time::sleep(EMPTY_PAUSE).await;
            }
            return Ok(Flow::Continue);
        }
        recorder.record(Operation::Pop, started, finished, messages.len());
        let started = Instant::now();
        let reply = client.post(ACK, &ack_body(&messages, Some(&self.group))).await?;
        let finished = Instant::now();
        check_acked(&reply, messages.len())?;
        self.ledger.add_acked(&self.group, messages.len() as u64);
        recorder.record(Operation::Ack, started, finished, messages.len());
        Ok(Flow::Continue)
    }
}

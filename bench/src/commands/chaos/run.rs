//! One run: setup, workers, faults, a quiet end, and the checks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use tokio::task::JoinSet;

use super::admin::{self, Admin, note_dead_letters};
use super::caller::{PATIENCE, Phase, Run};
use super::checker::{self, Findings, Rule, Violation};
use super::consumers::Consumer;
use super::failover::{self, Took};
use super::hangups::HangUps;
use super::history::{FLEETING, FRAIL, GROUPS, Manner, Outcome, REPEATS, SINK, SOURCE, Span};
use super::nemesis::{Fault, Kind, Plan};
use super::producers::Producer;
use super::stage::Stage;
use super::statuses::Statuses;
use super::transactors::Transactor;
use super::{faults, pin};
use crate::options::ChaosOptions;

const PRODUCERS: u16 = 6;
const LANES_EACH: u16 = 4;
const CONSUMERS: u64 = 4;
const TRANSACTORS: u16 = 4;
/// Lanes of each of the smaller queues, with one producer for all of them.
const LANES_SMALL: u16 = 3;
/// After this long without deliveries, which is longer than a lease lasts, the run has settled.
const QUIET: Duration = Duration::from_millis(3_000);
/// Limit of the time without an owed delivery. Deferred operations and spools have to be executed first.
const DRAIN_PATIENCE: Duration = Duration::from_secs(45);
/// Limit of everything after the last fault, on a slow machine.
const DRAIN_MAX: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(50);
/// How long pushes are spooled in a failover.
const SPOOLING: Duration = Duration::from_secs(2);

/// The parameters of a run, apart from its seed.
pub struct Shape {
    pub load: Duration,
    pub short: bool,
    pub failover: bool,
    /// The previous release.
    pub upgrade_from: Option<PathBuf>,
    pub keep_logs: bool,
}

impl Shape {
    pub fn of(options: &ChaosOptions) -> Shape {
        let once = options.failover || options.upgrade_from.is_some();
        let seconds = match (once, options.quick) {
            (false, false) => 60,
            (false, true) => 14,
            (true, false) => 20,
            (true, true) => 6,
        };
        let load = options.seconds.unwrap_or(Duration::from_secs(seconds));
        Shape {
            load,
            short: options.quick,
            failover: options.failover,
            upgrade_from: options.upgrade_from.clone(),
            keep_logs: options.keep_logs,
        }
    }

    fn is_thorough(&self) -> bool {
        !self.short && !self.failover && self.upgrade_from.is_none()
    }

    /// Whether the database is away for so long that producers have to use the spools.
    fn must_spool(&self) -> bool {
        self.failover && !self.short
    }

    /// Whether to use only features that the previous release implements correctly as well.
    fn is_plain(&self) -> bool {
        self.upgrade_from.is_some()
    }

    pub fn words(&self) -> String {
        let what = match (self.failover, &self.upgrade_from) {
            (true, _) => "a failover to a synchronous standby",
            (_, Some(_)) => "an upgrade of both brokers",
            _ => "faults",
        };
        format!("{what} in {} s of load", self.load.as_secs_f64())
    }

    pub fn replay(&self, queen: &Path, seed: u64) -> String {
        let failover = match (self.failover, &self.upgrade_from) {
            (true, _) => " --failover".to_owned(),
            (_, Some(from)) => format!(" --upgrade-from {}", from.display()),
            _ => String::new(),
        };
        let quick = if self.short { " --quick" } else { "" };
        let seconds = self.load.as_secs_f64();
        format!(
            "queen-bench chaos --queen {} --seed {seed} --seconds {seconds}{failover}{quick}",
            queen.display()
        )
    }
}

pub struct RunResult {
    pub seed: u64,
    /// Whether the run was long enough, and had enough faults, to exercise every rule.
    pub thorough: bool,
    /// Whether the database was away for so long that producers had to use the spools.
    pub must_spool: bool,
    pub findings: Findings,
    pub faults: Vec<&'static str>,
    pub failover: Option<Took>,
    pub counts: Counts,
    /// Calls that got no response, by route.
    pub hang_ups: BTreeMap<String, u64>,
    pub statuses: Statuses,
}

/// What was checked.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub accepted: u64,
    pub buffered: u64,
    pub deliveries: u64,
    pub unknown: u64,
    pub lost_pops: u64,
    pub transactions: u64,
    /// Messages removed by retention during the faults.
    pub removed: u64,
}

pub async fn run(queen: &Path, seed: u64, shape: &Shape) -> Result<RunResult> {
    let first = shape.upgrade_from.as_deref().unwrap_or(queen);
    let mut stage = Stage::open(first, shape.failover, shape.is_plain()).await?;
    let run = Run::new(stage.targets()?);
    let mut workers = start(&run, seed, shape.is_plain());
    let mut result = RunResult {
        seed,
        thorough: shape.is_thorough(),
        must_spool: shape.must_spool(),
        findings: Findings::default(),
        faults: Vec::new(),
        failover: None,
        counts: Counts::default(),
        hang_ups: BTreeMap::new(),
        statuses: Statuses::default(),
    };
    let torn = tokio::select! {
        torn = tear(&mut stage, &run, queen, seed, shape, &mut result) => torn,
        failed = first_failure(&mut workers) => Err(failed),
    };
    if torn.is_ok() {
        result.counts.removed = removed(&stage).await?;
    }
    let drained = match torn {
        Ok(()) => {
            tokio::select! {
                drained = drain(&stage, &run) => Ok(drained),
                failed = first_failure(&mut workers) => Err(failed),
            }
        }
        Err(error) => Err(error),
    };
    run.enter(Phase::Over);
    let open = match drained {
        Ok(open) => open,
        Err(error) => {
            let logs = stage.keep_logs().unwrap_or_default();
            return Err(error.context(format!("seed {seed}; the logs are in {}", logs.display())));
        }
    };
    while let Some(ended) = workers.join_next().await {
        ended.context("a worker panicked")??;
    }
    note_dead_letters(&run, &stage.postgres.inside().await?).await?;
    let history = run.history();
    result.findings = checker::check(&history);
    if let Some(open) = open {
        let text = format!("it does not settle after the last fault: {open}");
        result.findings.violations.push(Violation { rule: Rule::Lost, text });
    }
    result.counts = count(&history, result.counts);
    result.hang_ups = history.hang_ups.clone();
    result.statuses.merge(&run.statuses());
    if (shape.keep_logs || !result.findings.violations.is_empty())
        && let Some(logs) = stage.keep_logs()
    {
        std::fs::write(logs.join("history.txt"), history.lines())?;
        println!("the logs are in {}", logs.display());
    }
    Ok(result)
}

fn start(run: &Arc<Run>, seed: u64, plain: bool) -> JoinSet<Result<()>> {
    let mut workers = JoinSet::new();
    // Different for each worker, and for the nemesis.
    let mut seeds = (1..).map(|worker: u64| seed.wrapping_mul(0x9E37_79B9).wrapping_add(worker << 32));
    let mut seed = || seeds.next().unwrap_or_default();
    for place in 0..PRODUCERS {
        let lanes = (place * LANES_EACH..(place + 1) * LANES_EACH).collect();
        workers.spawn(Producer::new(run, seed(), SOURCE, lanes).work());
    }
    let small = [REPEATS, FRAIL, FLEETING];
    for queue in small.into_iter().filter(|_| !plain) {
        workers.spawn(Producer::new(run, seed(), queue, (0..LANES_SMALL).collect()).work());
    }
    let numbers = Arc::new(AtomicU32::new(0));
    for place in 0..TRANSACTORS {
        workers.spawn(Transactor::new(run, seed(), place, Arc::clone(&numbers)).work());
    }
    for (group, (_, queue, manner)) in GROUPS.iter().enumerate() {
        let manner = match manner {
            // The previous release does not guarantee this.
            Manner::Dozes if plain => Manner::Mixed,
            &manner => manner,
        };
        let lanes = match *queue {
            SOURCE => PRODUCERS * LANES_EACH,
            SINK => TRANSACTORS * 2,
            _ => LANES_SMALL,
        };
        let consumers = match manner {
            Manner::Mixed => CONSUMERS,
            Manner::Moves => 0,
            Manner::Waits | Manner::Rewound | Manner::Fleeting => 1,
            Manner::Dozes | Manner::Away | Manner::AutoAck | Manner::GivesUp => 2,
        };
        for _ in 0..consumers {
            workers.spawn(Consumer::new(run, seed(), group, manner, lanes).work());
        }
    }
    if !plain {
        workers.spawn(Admin::new(run, seed()).work());
        workers.spawn(HangUps::new(run, seed()).work());
    }
    workers
}

/// Pending while there is no error.
async fn first_failure(workers: &mut JoinSet<Result<()>>) -> anyhow::Error {
    while let Some(ended) = workers.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return error.context("an invalid response"),
            Err(error) => return anyhow::Error::new(error).context("a worker panicked"),
        }
    }
    std::future::pending().await
}

async fn tear(
    stage: &mut Stage,
    run: &Run,
    queen: &Path,
    seed: u64,
    shape: &Shape,
    result: &mut RunResult,
) -> Result<()> {
    if shape.failover {
        return fail_over(stage, run, shape, result).await;
    }
    if shape.upgrade_from.is_some() {
        return upgrade(stage, run, queen, shape, result).await;
    }
    let port = stage.postgres.port;
    say(run, "pin", "postgres", shape.load, "a transaction is held open all the time");
    result.faults.push("pin");
    tokio::select! {
        pinned = pin::hold(port) => pinned,
        torn = inflict_all(stage, run, seed, shape, result) => torn,
    }
}

/// One broker after the other, with a while in which both releases run.
async fn upgrade(
    stage: &mut Stage,
    run: &Run,
    queen: &Path,
    shape: &Shape,
    result: &mut RunResult,
) -> Result<()> {
    let pause = shape.load / (stage.brokers.len() as u32 + 1);
    for number in 0..stage.brokers.len() {
        tokio::time::sleep(pause).await;
        let began = run.now();
        stage.brokers[number].replace(queen).await?;
        run.history().faults.push(Span { from: began, until: run.now() });
        say_at(began, "upgrade", &format!("broker {number}"), run.now() - began, "stopped, and started anew");
        result.faults.push("upgrade");
    }
    tokio::time::sleep(shape.load.saturating_sub(run.now())).await;
    Ok(())
}

async fn inflict_all(
    stage: &mut Stage,
    run: &Run,
    seed: u64,
    shape: &Shape,
    result: &mut RunResult,
) -> Result<()> {
    for fault in Plan::new(seed, shape.short) {
        let Fault { kind, gap, hold, .. } = fault;
        let left = shape.load.saturating_sub(run.now());
        if left < gap + hold {
            tokio::time::sleep(left).await;
            return Ok(());
        }
        tokio::time::sleep(gap).await;
        let began = run.now();
        let done = faults::inflict(stage, &fault).await.with_context(|| format!("{fault:?}"))?;
        let span = Span { from: began, until: run.now() };
        run.history().faults.push(span);
        if kind == Kind::JumpDatabaseClock {
            run.history().clock_jumps.push(span);
        }
        for done in done {
            say_at(began, done.kind.name(), &done.whom, span.until - began, &done.remark);
            if done.inflicted {
                result.faults.push(done.kind.name());
            }
        }
    }
    Ok(())
}

async fn fail_over(stage: &mut Stage, run: &Run, shape: &Shape, result: &mut RunResult) -> Result<()> {
    tokio::time::sleep(shape.load * 2 / 5).await;
    let began = run.now();
    // Producers that wait for consumers would have nothing to spool.
    run.hurry(true);
    // A push that was sent before is not spooled. Its producer abandons it, and then sends it to the other broker.
    let pause = if shape.short { shape.load / 5 } else { PATIENCE + SPOOLING };
    let took = failover::fail_over(stage, pause).await?;
    run.hurry(false);
    run.history().faults.push(Span { from: began, until: run.now() });
    let remark = format!(
        "{} waits for the standby cancelled, kill -9 of the primary; promoted in {:.2} s, brokers ready {:.2} s after its death",
        took.cancelled,
        took.promotion.as_secs_f64(),
        took.service.as_secs_f64()
    );
    say_at(began, "failover", "postgres", run.now() - began, &remark);
    result.faults.push("failover");
    result.failover = Some(took);
    tokio::time::sleep(shape.load.saturating_sub(run.now())).await;
    Ok(())
}

fn say(run: &Run, what: &str, whom: &str, long: Duration, remark: &str) {
    say_at(run.now(), what, whom, long, remark);
}

/// One line per fault.
fn say_at(at: Duration, what: &str, whom: &str, long: Duration, remark: &str) {
    println!("{:6.1} s  {what:<14}  {whom:<24}  {:4.1} s  {remark}", at.as_secs_f64(), long.as_secs_f64());
}

/// Waits until everything has settled: no active writers, no owed deliveries, no further deliveries, and no unread messages in the
/// database. Otherwise returns what is open.
async fn drain(stage: &Stage, run: &Run) -> Option<String> {
    run.enter(Phase::Drain);
    let began = run.now();
    let mut owed = usize::MAX;
    let mut progress = began;
    loop {
        let now = run.now();
        // Checked first: a finished writer has recorded its results.
        let writers = run.writers();
        let (missing, last) = {
            let history = run.history();
            (history.missing(), history.last_delivery())
        };
        let quiet = writers == 0 && missing == 0 && now.saturating_sub(last.max(began)) > QUIET;
        if quiet && unread(stage).await.is_ok_and(|lines| lines.is_empty()) {
            return None;
        }
        if missing < owed {
            (owed, progress) = (missing, now);
        }
        if now - progress > DRAIN_PATIENCE || now - began > DRAIN_MAX {
            let unread = match unread(stage).await {
                Ok(lines) => {
                    lines.iter().for_each(|line| println!("unread: {line}"));
                    format!("{} cursors are behind", lines.len())
                }
                Err(error) => format!("the database cannot be asked: {error:#}"),
            };
            return Some(format!("{missing} deliveries are owed, {writers} writers are at it, {unread}"));
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The database may still be recovering from the last fault.
async fn removed(stage: &Stage) -> Result<u64> {
    let began = Instant::now();
    loop {
        let asked = async { admin::removed(&stage.postgres.inside().await?).await };
        match asked.await {
            Ok(removed) => return Ok(removed),
            Err(error) if began.elapsed() > DRAIN_PATIENCE => return Err(error),
            Err(_) => tokio::time::sleep(POLL).await,
        }
    }
}

/// Information about unread messages in the database, for debugging.
async fn unread(stage: &Stage) -> Result<Vec<String>> {
    let link = stage.postgres.inside().await?;
    let query = "select format('%s %s: head %s, %s at %s, lease %s for %s, deferred %s and %s', q.name, p.name, h.head,
            c.consumer_group, c.cursor, c.lease_id, c.lease_until - clock_timestamp(), h.deferred_pending, c.deferred_pending)
        from queen.partitions p join queen.queues q on q.id = p.queue_id
        cross join lateral queen.head_of(p.id) h cross join lateral queen.readers_of(p.id) c
        where c.cursor < h.head and q.name <> 'bait'
        union all select 'redrive ' || id from queen.redrives where finished_at is null and queue_name <> 'bait' order by 1";
    let rows = link.client.query(query, &[]).await?;
    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
}

fn count(history: &super::history::History, counts: Counts) -> Counts {
    use super::history::Receipt;
    let mut counts = Counts { lost_pops: history.lost_pops, ..counts };
    for push in &history.pushes {
        match &push.outcome {
            Outcome::Unknown => counts.unknown += 1,
            Outcome::Answered(receipts) => {
                counts.accepted += receipts.iter().filter(|&&one| one != Receipt::Failed).count() as u64;
                let buffered = |one: &&Receipt| matches!(one, Receipt::Buffered(_));
                counts.buffered += receipts.iter().filter(buffered).count() as u64;
            }
        }
    }
    counts.unknown += history.settles.iter().filter(|one| one.outcome == Outcome::Unknown).count() as u64;
    counts.unknown +=
        history.transactions.iter().filter(|one| one.outcome == Outcome::Unknown).count() as u64;
    counts.deliveries = history.pops.iter().map(|pop| pop.messages.len() as u64).sum();
    let committed = |one: &&super::history::Transaction| one.outcome == Outcome::Answered(true);
    counts.transactions = history.transactions.iter().filter(committed).count() as u64;
    counts
}

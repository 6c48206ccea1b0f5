//! Executes each fault. Afterwards everything is restored, except for the damage done meanwhile.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use queen_testkit::Proxy;
use rustix::process::Signal;

use super::nemesis::{Fault, Kind, Side};
use super::postgres::send;
use super::stage::{BROKERS, Stage};

/// A report of a fault: its target, and a remark.
pub struct Done {
    pub kind: Kind,
    pub whom: String,
    pub remark: String,
    /// Whether anything was done.
    pub inflicted: bool,
}

impl Done {
    fn to(whom: impl Into<String>, remark: impl Into<String>) -> Result<Done> {
        Ok(Done { kind: Kind::Cut, whom: whom.into(), remark: remark.into(), inflicted: true })
    }

    fn nothing(whom: impl Into<String>, why: impl Into<String>) -> Result<Done> {
        let remark = format!("NOT DONE: {}", why.into());
        Ok(Done { inflicted: false, ..Done::to(whom, remark)? })
    }

    /// Counts if there was anything to do.
    fn times(count: usize, whom: impl Into<String>, remark: impl Into<String>) -> Result<Done> {
        if count == 0 { Done::nothing(whom, remark) } else { Done::to(whom, remark) }
    }
}

/// Executes the fault, and a concurrent one if there is one.
pub async fn inflict(stage: &mut Stage, fault: &Fault) -> Result<Vec<Done>> {
    // A fault starts with a working PostgreSQL: after the last one, it may still be recovering.
    revive_postgres(stage).await?;
    let beside = fault.beside.filter(|&kind| kind != fault.kind).map(|kind| {
        let beside = Fault { kind, both: !fault.both, side: fault.side.other(), ..fault.clone() };
        (Network::of(stage, &beside), beside)
    });
    let network = async {
        match &beside {
            Some((network, beside)) => {
                let done = network.inflict(beside).await?;
                anyhow::Ok(Some(Done { kind: beside.kind, ..done }))
            }
            None => Ok(None),
        }
    };
    let (done, beside) = tokio::join!(inflict_one(stage, fault), network);
    let mut all = vec![Done { kind: fault.kind, ..done? }];
    all.extend(beside?);
    Ok(all)
}

async fn inflict_one(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    match fault.kind {
        Kind::Cut | Kind::BlackHole | Kind::Slow => Network::of(stage, fault).inflict(fault).await,
        Kind::LateStatements => {
            let late = Fault { side: Side::Postgres, ..fault.clone() };
            let network = Network::of(stage, &late);
            network.black_hole(fault.hold).await;
            Done::to(between(&late), "statements arrive after their deadline")
        }
        Kind::KillBroker => kill_brokers(stage, fault).await,
        Kind::CrashPostgres => crash_postgres(stage, fault).await,
        Kind::KillBackend => kill_backends(stage, fault).await,
        Kind::EndSessions => end_sessions(stage, fault).await,
        Kind::PauseBroker => {
            let hit = hit(fault);
            hit.iter().for_each(|&at| stage.brokers[at].signal(Signal::STOP));
            tokio::time::sleep(fault.hold).await;
            hit.iter().for_each(|&at| stage.brokers[at].signal(Signal::CONT));
            Done::to(brokers(fault), "SIGSTOP past the lease, SIGCONT")
        }
        Kind::PausePostgres => pause_postgres(stage, fault).await,
        Kind::FillDisk => fill_disk(stage, fault).await,
        Kind::LosePower => lose_power(stage, fault).await,
        Kind::JumpClock => jump_clock(stage, fault).await,
        Kind::JumpDatabaseClock => jump_database_clock(stage, fault).await,
        Kind::ExhaustPool => exhaust_pool(stage, fault).await,
        Kind::LockStorm => lock_storm(stage, fault).await,
    }
}

/// The target of a network fault.
struct Network(Vec<Arc<Proxy>>);

impl Network {
    fn of(stage: &Stage, fault: &Fault) -> Network {
        let proxies = match fault.side {
            Side::Postgres => &stage.to_postgres,
            Side::Clients => &stage.to_brokers,
        };
        Network(hit(fault).into_iter().filter_map(|at| proxies.get(at).cloned()).collect())
    }

    async fn inflict(&self, fault: &Fault) -> Result<Done> {
        match fault.kind {
            Kind::BlackHole => {
                self.black_hole(fault.hold).await;
                Done::to(between(fault), "nothing gets through")
            }
            Kind::Slow => {
                let delay = Duration::from_millis(u64::from(20 + fault.choice % 180));
                self.0.iter().for_each(|proxy| proxy.delay(delay));
                tokio::time::sleep(fault.hold).await;
                self.0.iter().for_each(|proxy| proxy.delay(Duration::ZERO));
                Done::to(between(fault), format!("{} ms each way", delay.as_millis()))
            }
            _ => self.cut(fault).await,
        }
    }

    /// Data that was held back arrives afterwards, even from a client that has hung up by then.
    async fn black_hole(&self, hold: Duration) {
        self.0.iter().for_each(|proxy| proxy.black_hole(true));
        tokio::time::sleep(hold).await;
        self.0.iter().for_each(|proxy| proxy.black_hole(false));
    }

    async fn cut(&self, fault: &Fault) -> Result<Done> {
        let cuts = 1 + fault.choice % 5;
        let refuse = fault.choice & 64 != 0;
        self.0.iter().for_each(|proxy| proxy.refuse(refuse));
        for _ in 0..cuts {
            self.0.iter().for_each(|proxy| proxy.cut());
            tokio::time::sleep(fault.hold / cuts).await;
        }
        self.0.iter().for_each(|proxy| proxy.refuse(false));
        let then = if refuse { ", and no new connections" } else { "" };
        Done::to(between(fault), format!("{cuts} times{then}"))
    }
}

fn hit(fault: &Fault) -> Vec<usize> {
    if fault.both { (0..BROKERS).collect() } else { vec![fault.broker] }
}

fn brokers(fault: &Fault) -> String {
    if fault.both { "both brokers".to_owned() } else { format!("broker {}", fault.broker) }
}

fn between(fault: &Fault) -> String {
    let other = match fault.side {
        Side::Postgres => "postgres",
        Side::Clients => "clients",
    };
    format!("{} – {other}", brokers(fault))
}

async fn kill_brokers(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    for at in hit(fault) {
        stage.brokers[at].kill().await?;
    }
    tokio::time::sleep(fault.hold).await;
    for at in hit(fault) {
        stage.brokers[at].start().await?;
    }
    Done::to(brokers(fault), "kill -9, started on the same spool")
}

async fn crash_postgres(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    let power = fault.choice.is_multiple_of(3);
    match power {
        true => stage.postgres.kill().await?,
        false => stage.postgres.crash().await?,
    }
    tokio::time::sleep(fault.hold).await;
    stage.postgres.start().await?;
    let how = if power { "kill -9 of all its processes" } else { "immediate shutdown" };
    Done::to("postgres", format!("{how}, crash recovery"))
}

/// Kills one backend. The postmaster then ends all others and recovers.
async fn kill_backends(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    let session = stage.postgres.session().await?;
    let query = "select pid from pg_stat_activity where usename = 'queen' order by pid";
    let rows = session.client.query(query, &[]).await?;
    let Some(row) = rows.get(fault.choice as usize % rows.len().max(1)) else {
        return Done::nothing("postgres", "no backend to kill");
    };
    send(row.try_get::<_, i32>(0)?.cast_unsigned(), Signal::KILL);
    tokio::time::sleep(fault.hold).await;
    revive_postgres(stage).await?;
    Done::to("postgres", "kill -9 of a backend, crash recovery")
}

async fn end_sessions(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    let rounds = 1 + fault.choice % 4;
    let session = stage.postgres.session().await?;
    let mut ended = 0;
    for _ in 0..rounds {
        ended += end_broker_sessions(&session).await?;
        tokio::time::sleep(fault.hold / rounds).await;
    }
    Done::times(ended, "postgres", format!("pg_terminate_backend, {ended} times"))
}

async fn end_broker_sessions(session: &crate::direct::Link) -> Result<usize> {
    let query = "select count(pg_terminate_backend(pid)) from pg_stat_activity where usename = 'queen'";
    let ended: i64 = session.client.query_one(query, &[]).await?.try_get(0)?;
    Ok(usize::try_from(ended)?)
}

async fn pause_postgres(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    stage.postgres.signal_all(Signal::STOP);
    tokio::time::sleep(fault.hold).await;
    stage.postgres.signal_all(Signal::CONT);
    Done::to("postgres", "SIGSTOP of all its processes, SIGCONT")
}

async fn fill_disk(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    if let Some(why) = stage.disk.whole() {
        return Done::nothing(
            "disk",
            format!("cannot mount one of our own ({why}); only the spool's own limit is reached"),
        );
    }
    stage.disk.fill();
    // Keeps PostgreSQL from living on the rest of the current WAL segment.
    if let Ok(session) = stage.postgres.session().await {
        let _ = session.client.batch_execute("select pg_switch_wal()").await;
    }
    tokio::time::sleep(fault.hold).await;
    let survived = stage.postgres.is_running();
    stage.disk.free();
    revive_postgres(stage).await?;
    let what =
        if survived { "postgres and spools without room" } else { "postgres exited and was restarted" };
    Done::to("disk", what)
}

/// PostgreSQL and the affected brokers end at once, and unsynced data is lost.
async fn lose_power(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    if let Some(why) = stage.disk.whole() {
        return Done::nothing("all processes", format!("cannot mount a disk of our own ({why})"));
    }
    // They share the disk: a broker that kept running would find its spool without unsynced data.
    for broker in &mut stage.brokers {
        broker.kill().await?;
    }
    stage.postgres.kill().await?;
    let lost = stage.disk.lose_power();
    tokio::time::sleep(fault.hold).await;
    stage.postgres.start().await?;
    for broker in &mut stage.brokers {
        broker.start().await?;
    }
    Done::to(
        "all processes",
        format!("kill -9 of all; {lost} files and folders are as they were synced last"),
    )
}

/// Makes sure that PostgreSQL runs. It may be exiting, or recovering by itself.
async fn revive_postgres(stage: &mut Stage) -> Result<()> {
    for _ in 0..100 {
        if !stage.postgres.is_running() {
            return stage.postgres.start().await;
        }
        if stage.postgres.session().await.is_ok() {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // It is stuck: neither gone nor reachable.
    stage.postgres.kill().await?;
    stage.postgres.start().await
}

async fn jump_clock(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    let broker = &stage.brokers[fault.broker];
    if !broker.can_jump() {
        return Done::nothing(format!("broker {}", fault.broker), "libfaketime is not installed");
    }
    let seconds = if fault.choice.is_multiple_of(2) { 3_600 } else { -3_600 };
    broker.jump(seconds)?;
    tokio::time::sleep(fault.hold).await;
    broker.jump(0)?;
    Done::to(format!("broker {}", fault.broker), format!("its clock jumps by {seconds:+} s and back"))
}

/// Forward, so that leases end early, or backward, so that they last longer.
async fn jump_database_clock(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    if !stage.postgres.clock.is_available() {
        return Done::nothing("postgres", "libfaketime is not installed");
    }
    let seconds = if fault.choice.is_multiple_of(2) { 4 } else { -4 };
    stage.postgres.clock.set(seconds)?;
    tokio::time::sleep(fault.hold).await;
    stage.postgres.clock.set(0)?;
    Done::to("postgres", format!("its clock jumps by {seconds:+} s and back"))
}

/// Takes all free connections, and then those that the brokers lose.
async fn exhaust_pool(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    let session = stage.postgres.session().await?;
    let mut taken = Vec::new();
    for round in 0..2 {
        while let Ok(link) = stage.postgres.as_broker().await {
            taken.push(link);
        }
        if round == 0 {
            // Our sessions have no name.
            let query = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                where usename = 'queen' and application_name = 'queen'";
            session.client.query_one(query, &[]).await.context("cannot end the brokers' sessions")?;
        }
    }
    tokio::time::sleep(fault.hold).await;
    Done::times(taken.len(), "postgres", format!("{} connections taken, none left", taken.len()))
}

async fn lock_storm(stage: &mut Stage, fault: &Fault) -> Result<Done> {
    let link = stage.postgres.inside().await?;
    let table = ["heads", "consumers", "partitions", "segments"][fault.choice as usize % 4];
    let lock = match fault.choice & 8 == 0 || table == "segments" {
        true => format!("lock table queen.{table} in exclusive mode"),
        false => format!("select count(*) from (select 1 from queen.{table} for update) l"),
    };
    link.client.batch_execute("begin; set local statement_timeout = 0").await?;
    // Waiting in vain for the lock is a storm as well.
    let had = link.client.batch_execute(&lock).await.is_ok();
    tokio::time::sleep(fault.hold).await;
    let _ = link.client.batch_execute("rollback").await;
    let remark = if had { "locked" } else { "timed out waiting for the lock" };
    Done::to(format!("queen.{table}"), format!("{remark}: {}", lock.split(' ').next().unwrap_or("")))
}

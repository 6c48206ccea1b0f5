//! A primary with a synchronous standby, and the failover when the primary dies.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use queen_testkit::Proxy;

use super::postgres::Postgres;
use super::stage::{Stage, port};
use crate::client::Client;

const NAME: &str = "standby";
const PATIENCE: Duration = Duration::from_secs(30);
const CANCELS: u32 = 5;
/// Generous for a slow machine.
const CANCELS_MAX: u32 = 100;
const CANCEL_PAUSE: Duration = Duration::from_millis(150);
const POLL: Duration = Duration::from_millis(20);

pub struct Standby {
    pub server: Postgres,
    /// The network path from the primary.
    link: Proxy,
}

/// Starts it; from then on every commit waits for it.
pub async fn standby_of(primary: &Postgres, folder: &Path, disk: &Path) -> Result<Standby> {
    let link = Proxy::to_postgres(&format!("host=127.0.0.1 port={} user=nobody", primary.port)).await;
    let mut server = Postgres::standby(folder, disk.join("standby"), port(&link)?, NAME).await?;
    server.start().await?;
    let session = primary.session().await?;
    // Only in the primary: the standby has no other server to wait for once it is promoted.
    for command in
        [&*format!("alter system set synchronous_standby_names = '{NAME}'"), "select pg_reload_conf()"]
    {
        session.client.batch_execute(command).await?;
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let query = "select coalesce(bool_or(sync_state = 'sync'), false) from pg_stat_replication";
        if session.client.query_one(query, &[]).await?.try_get(0)? {
            return Ok(Standby { server, link });
        }
        if Instant::now() > deadline {
            bail!("the standby is not synchronous");
        }
        tokio::time::sleep(POLL).await;
    }
}

/// Results of a failover.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Commits whose wait for the standby was canceled before.
    pub cancelled: i64,
    pub promotion: Duration,
    /// From the death of the primary until all brokers are ready again.
    pub service: Duration,
}

/// Kills the primary and promotes the standby, which then replaces it as the server.
///
/// Before that, the network between them breaks, and every commit that waits for the standby is canceled: PostgreSQL then reports
/// success with only a warning, although the standby does not have it.
pub async fn fail_over(stage: &mut Stage, pause: Duration) -> Result<Took> {
    let standby = stage.standby.take().context("there is no standby")?;
    standby.link.refuse(true);
    standby.link.cut();
    let cancelled = cancel_waits(&stage.postgres).await?;
    let started = Instant::now();
    stage.postgres.kill().await?;
    stage.postgres = standby.server;
    // Deciding on a promotion takes a while.
    tokio::time::sleep(pause).await;
    let promoting = Instant::now();
    stage.postgres.promote().await?;
    let promotion = promoting.elapsed();
    for target in stage.targets()? {
        let mut client = Client::new(target);
        client.answer_timeout = Duration::from_secs(2);
        loop {
            if client.get("/health/ready").await.is_ok_and(|reply| reply.status == 200) {
                break;
            }
            if started.elapsed() > PATIENCE {
                bail!("a broker does not find the promoted server");
            }
            tokio::time::sleep(POLL).await;
        }
    }
    Ok(Took { cancelled, promotion, service: started.elapsed() })
}

async fn cancel_waits(primary: &Postgres) -> Result<i64> {
    let session = primary.session().await?;
    let mut cancelled = 0;
    for round in 1..=CANCELS_MAX {
        tokio::time::sleep(CANCEL_PAUSE).await;
        let query = "select count(pg_cancel_backend(pid)) from pg_stat_activity where wait_event = 'SyncRep'";
        cancelled += session.client.query_one(query, &[]).await?.try_get::<_, i64>(0)?;
        if round >= CANCELS && cancelled > 0 {
            return Ok(cancelled);
        }
    }
    bail!("no commit waits for the standby")
}

//! One end-to-end run and its effect on the tables, with or without an open transaction.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde::Serialize;

use crate::direct::Link;
use crate::environment::{Site, Source};
use crate::harness::TENTHS;
use crate::options::Options;
use crate::scenarios::{self, Scenario};
use crate::setup::Setup;

/// An idle backend reports its updates ten seconds after its last statement.
const SETTLE_TIME: Duration = Duration::from_secs(11);

#[derive(Clone, Debug, Default, Serialize)]
pub struct Half {
    pub messages_per_second: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    pub messages_per_second_by_tenth: [f64; TENTHS],
    /// Messages of the whole run, including warm-up and end.
    pub messages: i64,
    /// By size, largest first.
    pub tables: Vec<TableState>,
    pub notes: Vec<String>,
    pub violations: Vec<String>,
}

/// A table of the broker, or the whole log.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TableState {
    pub name: String,
    /// With its indexes.
    pub megabytes: f64,
    /// Row versions that became dead.
    pub died: i64,
    /// Dead row versions that were not removed.
    pub dead: i64,
}

pub async fn run(source: &Source, options: &Options, held: bool) -> Result<Half> {
    let site = Site::open(source).await?;
    let setup = Setup::at(&site, options, false).await?;
    let queue = setup.create_queue("pinned").await?;
    let holder = if held { Some(Holder::begin(&site).await?) } else { None };
    let outcome = scenarios::run_on(&setup, &queue, Scenario::EndToEnd).await?;
    if let Some(holder) = &holder {
        holder.check().await?;
    }
    let row = outcome.rows.first().context("nothing was measured")?;
    let tenth_seconds = options.measured().as_secs_f64() / TENTHS as f64;
    let mut half = Half {
        messages_per_second: row.messages_per_second,
        p50_us: row.p50_us as f64,
        p99_us: row.p99_us as f64,
        messages_per_second_by_tenth: row.messages_by_tenth.map(|messages| messages as f64 / tenth_seconds),
        notes: outcome.notes,
        violations: outcome.violations.into_iter().chain(outcome.error_texts).collect(),
        ..Half::default()
    };
    tokio::time::sleep(options.scale(SETTLE_TIME, Duration::ZERO)).await;
    let observer = Link::open(&site.database()?).await?;
    half.messages = messages(&observer).await?;
    half.tables = tables(&observer).await?;
    drop(holder);
    site.close().await?;
    Ok(half)
}

/// A transaction that has written and read, and is idle. While it is open, dead rows of other
/// sessions cannot be removed.
pub struct Holder {
    link: Link,
    transaction: i64,
}

impl Holder {
    pub async fn begin(site: &Site) -> Result<Holder> {
        let link = Link::open(&site.database()?).await?;
        link.client.batch_execute("begin").await?;
        let row = link.client.query_one("select txid_current()", &[]).await?;
        link.client.query_one("select count(*) from queen.partitions", &[]).await?;
        Ok(Holder { link, transaction: row.try_get(0)? })
    }

    /// Fails unless the transaction was open all the time.
    pub async fn check(&self) -> Result<()> {
        let row = self.link.client.query_one("select txid_current_if_assigned()", &[]).await?;
        let transaction: Option<i64> = row.try_get(0)?;
        ensure!(transaction == Some(self.transaction), "the transaction was not held open");
        Ok(())
    }
}

async fn messages(observer: &Link) -> Result<i64> {
    let query = "select coalesce(sum(head), 0)::bigint from queen.heads";
    Ok(observer.client.query_one(query, &[]).await?.try_get(0)?)
}

pub async fn tables(observer: &Link) -> Result<Vec<TableState>> {
    let query = "select case when relname like 'segments%' then 'segments' else relname::text end,
            (sum(pg_total_relation_size(relid)) / 1048576)::float8, sum(n_tup_upd + n_tup_del)::bigint,
            sum(n_dead_tup)::bigint
        from pg_stat_user_tables where schemaname = 'queen' group by 1 order by 2 desc, 1";
    let rows = observer.client.query(query, &[]).await?;
    let state = |row: &tokio_postgres::Row| {
        Ok(TableState {
            name: row.try_get(0)?,
            megabytes: row.try_get(1)?,
            died: row.try_get(2)?,
            dead: row.try_get(3)?,
        })
    };
    rows.iter().map(state).collect()
}

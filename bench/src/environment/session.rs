//! A session of our own on the cluster, to read counters of PostgreSQL that the broker does not report.

use anyhow::{Context, Result};
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use super::cluster::{BROKER, OBSERVER};
use crate::measure::{AtOnce, Settling};

pub struct Session {
    client: Client,
    _driver: JoinSet<()>,
}

impl Session {
    pub async fn open(port: u16, user: &str) -> Result<Session> {
        let config = format!("host=127.0.0.1 port={port} user={user} dbname={OBSERVER}");
        let (client, connection) = tokio_postgres::connect(&config, NoTls).await?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // The user of the client sees the failure there.
            let _ = connection.await;
        });
        Ok(Session { client, _driver: driver })
    }

    /// With an owner of the same name that is a superuser: brokers create extensions and set parameters.
    pub async fn create_database(&self, name: &str) -> Result<()> {
        let role = format!("create role {name} superuser login password '{name}'");
        self.client.batch_execute(&role).await?;
        self.client.batch_execute(&format!("create database {name} owner {name}")).await?;
        self.client.batch_execute("create extension pg_stat_statements").await?;
        Ok(())
    }

    pub async fn server_version(&self) -> Result<String> {
        Ok(self.client.query_one("select current_setting('server_version')", &[]).await?.try_get(0)?)
    }

    /// Counters that are exact at any moment. They exclude the observer: its statements by name, and it writes nothing.
    pub async fn at_once(&self) -> Result<AtOnce> {
        let query = "select (select coalesce(sum(calls), 0)::bigint from pg_stat_statements(false)
                      where userid = (select oid from pg_roles where rolname = $1)),
                pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
                pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint";
        let row = self.client.query_one(query, &[&BROKER]).await.context("cannot read the counters")?;
        Ok(AtOnce {
            statements: row.try_get(0)?,
            writing_transactions: row.try_get(1)?,
            wal_bytes: row.try_get(2)?,
        })
    }

    /// Counters that each backend reports at most once a second, and at the latest ten seconds after its last statement.
    pub async fn settling(&self) -> Result<Settling> {
        let query = "select xact_commit, tup_updated + tup_deleted from pg_stat_database where datname = $1";
        let row = self.client.query_one(query, &[&BROKER]).await.context("cannot read the counters")?;
        Ok(Settling { commits: row.try_get(0)?, dead_tuples: row.try_get(1)? })
    }

    /// Total milliseconds of calls of these procedures since the cluster was started.
    pub async fn milliseconds_of(&self, procedures: &[&str]) -> Result<f64> {
        let query = "select coalesce(sum(s.total_exec_time), 0)::float8 from pg_stat_statements s
            where exists (select 1 from unnest($1::text[]) p (name) where starts_with(s.query, 'select ' || p.name || '('))";
        let row = self.client.query_one(query, &[&procedures]).await.context("cannot read the counters")?;
        Ok(row.try_get(0)?)
    }
}

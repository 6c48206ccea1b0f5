//! Statements about the server itself: which incarnation it is, which process serves a connection, and how a
//! transaction ended.

use std::time::SystemTime;

use tokio_postgres::Client;

use super::backend::{Backend, ENDS_WITHIN};
use super::{Connector, Error};

/// The status of a transaction that `backend` had begun (`committed`, `aborted` or `in progress`), and the incarnation
/// of the server that reports it. Uses a connection of its own: the caller still holds the broken one, and that may be
/// the only one.
///
/// It writes a little, so that its own commit waits for the synchronous standby, and with it for everything committed
/// before: the wait of the transaction in question may have been cut short.
pub async fn transaction_status(
    connector: &Connector,
    number: &str,
    backend: Backend,
) -> Result<(Option<String>, String), Error> {
    let client = connector.client().await?;
    let incarnation = incarnation(&client).await?;
    let ended = end_backends(&client, &[backend]).await;
    ended.map_err(|error| Error::from_postgres("pg_terminate_backend", error))?;
    let sql = "select pg_xact_status($1::text::xid8), pg_logical_emit_message(true, 'queen', '')::text";
    let row = client.query_one(sql, &[&number]).await;
    row.map(|row| (row.get(0), incarnation)).map_err(|error| Error::from_postgres("pg_xact_status", error))
}

/// Differs after every crash and every promotion of a standby. The statistics start over with a crash, and each server
/// has its own; resetting them by hand only looks like a crash.
pub async fn incarnation(client: &Client) -> Result<String, Error> {
    let sql = "select left(pg_walfile_name(pg_current_wal_insert_lsn()), 8) || ' ' ||
        coalesce((select extract(epoch from b.stats_reset)::text from pg_stat_bgwriter b), '')";
    let row = client.query_one(sql, &[]).await;
    row.map(|row| row.get(0)).map_err(|error| Error::from_postgres("incarnation", error))
}

/// The process that serves this client.
pub async fn backend(client: &Client) -> Result<Backend, Error> {
    let sql = "select a.pid, a.backend_start from pg_stat_activity a where a.pid = pg_backend_pid()";
    let row = client.query_one(sql, &[]).await;
    row.map(|row| Backend { pid: row.get(0), started: row.get(1) })
        .map_err(|error| Error::from_postgres("pg_stat_activity", error))
}

/// Returns whether all of them have ended; a process that no longer exists has.
pub async fn end_backends(client: &Client, backends: &[Backend]) -> Result<bool, tokio_postgres::Error> {
    let pids: Vec<i32> = backends.iter().map(|backend| backend.pid).collect();
    let started: Vec<SystemTime> = backends.iter().map(|backend| backend.started).collect();
    let wait_ms = i64::try_from(ENDS_WITHIN.as_millis()).unwrap_or(i64::MAX);
    let sql = "select coalesce(bool_and(pg_terminate_backend(a.pid, $3)), true)
               from unnest($1::int[], $2::timestamptz[]) b (pid, started)
               join pg_stat_activity a on a.pid = b.pid and a.backend_start = b.started";
    Ok(client.query_one(sql, &[&pids, &started, &wait_ms]).await?.get(0))
}

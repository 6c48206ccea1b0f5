//! Brings the schema to what this binary knows. Brokers may race: one does the work, the others see it done.

use tokio_postgres::Client;
use tracing::info;

use super::connect::error_chain;
use crate::error::StartError;

struct File {
    name: &'static str,
    sql: &'static str,
}

macro_rules! files {
    ($folder:literal: $($name:literal),* $(,)?) => {
        &[$(File { name: $name, sql: include_str!(concat!("../../sql/", $folder, "/", $name, ".sql")) }),*]
    };
}

/// Applied once, in order. Frozen once released.
const SCHEMA: &[File] = files!("schema": "0001_init", "0002_answers_as_arrays", "0003_generations", "0004_deferred", "0005_statistics", "0006_messages", "0007_inbox", "0008_life", "0009_history");

/// The present truth, replaced when a text differs from what is installed. Callees come before their callers.
const PROCEDURES: &[File] = files!("procedures":
    "message_id", "frame", "newest", "deferred", "pulse", "spool", "diagnose", "views", "statistics", "resources", "find_transactions", "open", "push", "readers", "skips", "lease", "fetch", "release", "complete", "ack", "locate", "hold",
    "renew", "subscribe", "seed", "discover", "queues", "groups", "dead_letters", "messages", "redrive", "traces", "life", "retention", "extents", "inbox", "compatible", "history", "analytics", "postgres_stats",
);

/// At every start, because it has nothing to do but for what is new.
const PRIVILEGES: &str = include_str!("../../sql/privileges.sql");

/// Any number: the same for every broker.
const LOCK: i64 = 0x7175_6565_6e00_0001;

pub const SCHEMA_VERSION: i32 = SCHEMA.len() as i32;

pub async fn migrate(client: &mut Client) -> Result<(), StartError> {
    // A broker may wait here for another's migration; the message plane's short limits do not fit.
    statement(client, "set statement_timeout = 0; set lock_timeout = 0").await?;
    statement(client, &format!("select pg_advisory_lock({LOCK})")).await?;
    let result = migrate_locked(client).await;
    statement(client, &format!("select pg_advisory_unlock({LOCK})")).await?;
    result
}

async fn migrate_locked(client: &mut Client) -> Result<(), StartError> {
    let refused = |error: tokio_postgres::Error| StartError::Statement(error_chain(&error));
    // Asked first, because even "if not exists" wants the right to create.
    let row =
        client.query_one("select to_regclass('queen.procedures') is null", &[]).await.map_err(refused)?;
    if row.get(0) {
        statement(
            client,
            "create schema if not exists queen;
             create table if not exists queen.migrations (
                 version int primary key, name text not null, checksum text not null,
                 applied_at timestamptz not null default now());
             create table if not exists queen.procedures (
                 name text primary key, checksum text not null, applied_at timestamptz not null default now())",
        )
        .await?;
    }
    let row = client
        .query_one("select coalesce(max(version), 0) from queen.migrations", &[])
        .await
        .map_err(refused)?;
    let found: i32 = row.get(0);
    if found > SCHEMA_VERSION {
        return Err(StartError::SchemaNewer { found, known: SCHEMA_VERSION });
    }
    for (version, file) in (1..).zip(SCHEMA).skip(found as usize) {
        let record = "insert into queen.migrations (version, name, checksum) values ($1, $2, $3)";
        apply(client, file, record, &[&version, &file.name, &checksum(file.sql)]).await?;
        info!(migration.name = file.name, "schema migrated");
    }
    let rows = client.query("select name, checksum from queen.procedures", &[]).await.map_err(refused)?;
    let installed: std::collections::HashMap<String, String> =
        rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for file in PROCEDURES {
        let checksum = checksum(file.sql);
        if installed.get(file.name) == Some(&checksum) {
            continue;
        }
        let record = "insert into queen.procedures (name, checksum) values ($1, $2)
                      on conflict (name) do update set checksum = excluded.checksum, applied_at = now()";
        apply(client, file, record, &[&file.name, &checksum]).await?;
    }
    statement(client, PRIVILEGES).await
}

async fn apply(
    client: &mut Client,
    file: &File,
    record: &str,
    parameters: &[&(dyn tokio_postgres::types::ToSql + Sync)],
) -> Result<(), StartError> {
    let applied = async {
        let transaction = client.transaction().await?;
        transaction.batch_execute(file.sql).await?;
        transaction.execute(record, parameters).await?;
        transaction.commit().await
    };
    applied.await.map_err(|error: tokio_postgres::Error| StartError::Migration {
        name: file.name.to_owned(),
        cause: error_chain(&error),
    })
}

async fn statement(client: &Client, sql: &str) -> Result<(), StartError> {
    client.batch_execute(sql).await.map_err(|error| StartError::Statement(error_chain(&error)))
}

fn checksum(sql: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(sql).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

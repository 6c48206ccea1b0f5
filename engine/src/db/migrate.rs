//! Brings the schema up to what this binary knows, while brokers of the previous release keep serving. Brokers may
//! race: one does the work, and the others find it done. A broker of the previous release that starts afterwards
//! changes nothing.

use std::collections::HashMap;
use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error};
use tracing::{info, warn};

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
const SCHEMA: &[File] = files!("schema": "0001_init", "0002_answers_as_arrays", "0003_generations", "0004_deferred", "0005_statistics", "0006_messages", "0007_inbox", "0008_life", "0009_history", "0010_keys", "0011_shapes", "0012_groups_by_partition", "0013_search_path", "0014_own_failures", "0015_two_phase_commit", "0016_group_modes");

/// The current definitions, replaced when a text differs from what is installed. Callees come before their callers.
const PROCEDURES: &[File] = files!("procedures":
    "message_id", "frame", "newest", "deferred", "defer", "pulse", "spool", "diagnose", "views", "statistics", "resources", "find_transactions", "open", "push", "readers", "skips", "lease", "fetch", "release", "complete", "settle", "ack", "locate", "hold",
    "renew", "subscribe", "seed", "discover", "queues", "groups", "letters", "dead_letters", "messages", "redrive", "purge", "traces", "life", "retention", "extents", "inbox", "compatible", "history", "analytics", "postgres_stats", "keys", "owners", "roles",
);

/// Run at every start, because it only affects what is new.
const PRIVILEGES: &str = include_str!("../../sql/privileges.sql");

/// Any number: the same for every broker.
const LOCK: i64 = 0x7175_6565_6e00_0001;

pub const SCHEMA_VERSION: i32 = SCHEMA.len() as i32;

/// The oldest schema whose brokers can work with ours. Raise it only to what the previous release knew: procedures
/// keep their signatures and tables their columns for one release after the last call to them is gone.
const READABLE_FROM: i32 = 9;

/// Later sessions queue up behind a waiting lock request, so each wait is too short to notice, and is repeated.
const LOCK_SLICE: Duration = Duration::from_millis(500);
const LOCK_PAUSE: Duration = Duration::from_secs(1);
/// With the pauses, about half an hour.
const LOCK_ATTEMPTS_MAX: u32 = 1_200;

pub async fn migrate(client: &mut Client) -> Result<(), StartError> {
    // A broker may wait here for another's migration, longer than the message plane's limits allow.
    statement(client, "set statement_timeout = 0; set lock_timeout = 0").await?;
    statement(client, &format!("select pg_advisory_lock({LOCK})")).await?;
    let result = migrate_locked(client).await;
    statement(client, &format!("select pg_advisory_unlock({LOCK})")).await?;
    result
}

async fn migrate_locked(client: &mut Client) -> Result<(), StartError> {
    let refused = |error: Error| StartError::Statement(error_chain(&error));
    // Checked first, because even "if not exists" requires the right to create.
    let row = client.query_one("select to_regclass('queen.releases') is null", &[]).await.map_err(refused)?;
    if row.get(0) {
        statement(
            client,
            "create schema if not exists queen;
             create table if not exists queen.migrations (
                 version int primary key, name text not null, checksum text not null,
                 applied_at timestamptz not null default now());
             create table if not exists queen.procedures (
                 name text primary key, checksum text not null, applied_at timestamptz not null default now());
             create table if not exists queen.releases (
                 number int primary key, schema_version int not null, readable_from int not null,
                 installed_at timestamptz not null default now())",
        )
        .await?;
    }
    let row = client
        .query_one("select coalesce(max(version), 0) from queen.migrations", &[])
        .await
        .map_err(refused)?;
    let found: i32 = row.get(0);
    let newer = "select coalesce(max(readable_from), 0) from queen.releases where number > $1";
    let row = client.query_one(newer, &[&release(env!("CARGO_PKG_VERSION"))]).await.map_err(refused)?;
    match standing(found, row.get(0)) {
        Standing::Ours => install(client, found).await,
        Standing::Later => {
            warn!(
                schema.found = found,
                schema.known = SCHEMA_VERSION,
                "a later release has been here; serving beside it"
            );
            Ok(())
        }
        Standing::Strange => Err(StartError::SchemaNewer { found, known: SCHEMA_VERSION }),
    }
}

/// What a start finds in the database.
#[derive(Debug, PartialEq, Eq)]
enum Standing {
    /// Nothing, an earlier release, or this one.
    Ours,
    /// A later release that is compatible with this one.
    Later,
    Strange,
}

/// `found`: the schema. `needed`: the schema that brokers must know according to later releases; 0 = there was none.
fn standing(found: i32, needed: i32) -> Standing {
    match needed {
        0 if found <= SCHEMA_VERSION => Standing::Ours,
        1..=SCHEMA_VERSION => Standing::Later,
        _ => Standing::Strange,
    }
}

/// Later releases have higher numbers.
fn release(version: &str) -> i32 {
    let parts = version.split(['.', '-', '+']).take(3).map(|part| part.parse().unwrap_or(0));
    let number = parts.fold(0, |number, part: i32| number * 1_000 + part);
    // A release candidate comes before its release.
    number * 2 + i32::from(!version.contains('-'))
}

async fn install(client: &mut Client, found: i32) -> Result<(), StartError> {
    for (version, file) in (1..).zip(SCHEMA).skip(found as usize) {
        let record = "insert into queen.migrations (version, name, checksum) values ($1, $2, $3)";
        apply(client, file, record, &[&version, &file.name, &checksum(file.sql)]).await?;
        info!(migration.name = file.name, "schema migrated");
    }
    let refused = |error: Error| StartError::Statement(error_chain(&error));
    let rows = client.query("select name, checksum from queen.procedures", &[]).await.map_err(refused)?;
    let installed: HashMap<String, String> = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    for file in PROCEDURES {
        let checksum = checksum(file.sql);
        if installed.get(file.name) == Some(&checksum) {
            continue;
        }
        let record = "insert into queen.procedures (name, checksum) values ($1, $2)
                      on conflict (name) do update set checksum = excluded.checksum, applied_at = now()";
        apply(client, file, record, &[&file.name, &checksum]).await?;
    }
    let record = "insert into queen.releases (number, schema_version, readable_from) values ($1, $2, $3)
                  on conflict (number) do update
                  set schema_version = excluded.schema_version, readable_from = excluded.readable_from
                  where (releases.schema_version, releases.readable_from)
                      is distinct from (excluded.schema_version, excluded.readable_from)";
    let number = release(env!("CARGO_PKG_VERSION"));
    client.execute(record, &[&number, &SCHEMA_VERSION, &READABLE_FROM]).await.map_err(refused)?;
    statement(client, PRIVILEGES).await
}

/// Applies a file as a whole or not at all, and retries while another session holds a lock that it needs.
async fn apply(
    client: &mut Client,
    file: &File,
    record: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<(), StartError> {
    for attempt in 1.. {
        let Err(error) = attempt_once(client, file, record, parameters).await else { break };
        if !is_contended(&error) || attempt == LOCK_ATTEMPTS_MAX {
            return Err(StartError::Migration { name: file.name.to_owned(), cause: error_chain(&error) });
        }
        if attempt % 10 == 1 {
            warn!(migration.name = file.name, attempt, %error, "waiting for a lock on a table in use");
        }
        tokio::time::sleep(LOCK_PAUSE).await;
    }
    Ok(())
}

async fn attempt_once(
    client: &mut Client,
    file: &File,
    record: &str,
    parameters: &[&(dyn ToSql + Sync)],
) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    let slice = LOCK_SLICE.as_millis();
    transaction.batch_execute(&format!("set local lock_timeout = {slice}")).await?;
    transaction.batch_execute(file.sql).await?;
    transaction.execute(record, parameters).await?;
    transaction.commit().await
}

fn is_contended(error: &Error) -> bool {
    error
        .code()
        .is_some_and(|code| [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED].contains(code))
}

async fn statement(client: &Client, sql: &str) -> Result<(), StartError> {
    client.batch_execute(sql).await.map_err(|error| StartError::Statement(error_chain(&error)))
}

fn checksum(sql: &str) -> String {
    use sha2::Digest;
    sha2::Sha256::digest(sql).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_release_is_accepted_if_it_has_left_what_we_need() {
        assert_eq!(standing(0, 0), Standing::Ours);
        assert_eq!(standing(SCHEMA_VERSION, 0), Standing::Ours);
        assert_eq!(standing(SCHEMA_VERSION + 1, SCHEMA_VERSION), Standing::Later);
        assert_eq!(standing(SCHEMA_VERSION + 2, SCHEMA_VERSION + 1), Standing::Strange);
        assert_eq!(standing(SCHEMA_VERSION + 1, 0), Standing::Strange, "nobody vouches for it");
        assert_eq!(
            standing(SCHEMA_VERSION, SCHEMA_VERSION),
            Standing::Later,
            "only its procedures are newer"
        );
    }

    #[test]
    fn releases_are_in_the_order_of_their_versions() {
        let versions = ["0.1.0", "0.2.0-rc.1", "0.2.0", "0.2.1", "0.10.0", "1.0.0", "1.0.10"];
        assert!(versions.map(release).is_sorted_by(|a, b| a < b), "{:?}", versions.map(release));
    }
}

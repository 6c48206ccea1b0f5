//! One typed function per procedure about API keys and about the owners of partitions.

use std::time::SystemTime;

use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};
use uuid::Uuid;

use super::control::many;
use super::{Connections, Error, error_chain};
use crate::clock;

/// Neither `Debug` nor `Serialize`, so that the hash does not leak.
#[derive(Clone)]
pub struct ApiKey {
    pub id: String,
    pub name: String,
    pub role: String,
    /// JSON; `None` = all queues.
    pub grants: Option<String>,
    /// SHA-256 of the secret.
    pub hash: Vec<u8>,
    /// Microseconds since 1970, like all times here.
    pub created_at: i64,
    pub expires_at: Option<i64>,
    pub revoked_at: Option<i64>,
}

pub struct NewKey<'a> {
    pub id: &'a str,
    pub name: &'a str,
    pub role: &'a str,
    pub grants: Option<&'a str>,
    pub hash: &'a [u8],
    /// `None`: never expires.
    pub seconds: Option<i64>,
}

/// The keys that are valid now.
pub async fn live(connections: &Connections) -> Result<Vec<ApiKey>, Error> {
    let rows = many(connections, "queen.keys", "select * from queen.keys(true)", &[]).await?;
    Ok(rows.iter().map(key).collect())
}

/// All keys ever created.
pub async fn all(client: &Client) -> Result<Vec<ApiKey>, String> {
    let rows = client.query("select * from queen.keys(false)", &[]).await;
    Ok(rows.map_err(|error| error_chain(&error))?.iter().map(key).collect())
}

/// Returns when the key expires.
pub async fn create(client: &Client, new: &NewKey<'_>) -> Result<Option<i64>, String> {
    let sql = "select queen.create_key($1, $2, $3, $4::text::jsonb, $5, $6)";
    let parameters: [&(dyn ToSql + Sync); 6] =
        [&new.id, &new.name, &new.role, &new.grants, &new.hash, &new.seconds];
    let row = client.query_one(sql, &parameters).await.map_err(|error| error_chain(&error))?;
    Ok(row.get::<_, Option<SystemTime>>(0).map(clock::micros))
}

pub async fn revoke(client: &Client, id: &str) -> Result<bool, String> {
    let row = client.query_one("select queen.revoke_key($1)", &[&id]).await;
    Ok(row.map_err(|error| error_chain(&error))?.get(0))
}

/// Whether the schema of this database knows keys.
pub async fn known(client: &Client) -> Result<bool, String> {
    let row = client.query_one("select to_regprocedure('queen.keys(boolean)') is not null", &[]).await;
    Ok(row.map_err(|error| error_chain(&error))?.get(0))
}

pub async fn owners(
    connections: &Connections,
    partitions: &[Uuid],
    numbers: &[i64],
) -> Result<Vec<(Uuid, i64, String)>, Error> {
    let sql = "select * from queen.owners($1, $2)";
    let rows = many(connections, "queen.owners", sql, &[&partitions, &numbers]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect())
}

/// Live leases of these (partition, group) pairs, each with the index of its pair.
pub async fn live_leases(
    connections: &Connections,
    partitions: &[Uuid],
    groups: &[&str],
) -> Result<Vec<(usize, Uuid)>, Error> {
    let sql = "select * from queen.live_leases($1, $2)";
    let rows = many(connections, "queen.live_leases", sql, &[&partitions, &groups]).await?;
    Ok(rows.iter().map(|row| (row.get::<_, i32>(0) as usize - 1, row.get(1))).collect())
}

fn key(row: &Row) -> ApiKey {
    let time = |column: &str| row.get::<_, Option<SystemTime>>(column).map(clock::micros);
    ApiKey {
        id: row.get("id"),
        name: row.get("name"),
        role: row.get("role"),
        grants: row.get("grants"),
        hash: row.get("hash"),
        created_at: clock::micros(row.get("created_at")),
        expires_at: time("expires_at"),
        revoked_at: time("revoked_at"),
    }
}

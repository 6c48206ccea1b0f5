//! Detects a pooler in transaction mode between Queen and PostgreSQL. Two connections are enough: while one is in a
//! transaction, a pooler has to give the other a different session than before.

use std::time::Duration;

use tokio_postgres::Client;

use crate::db::{Connector, Error};

/// A pooler with a single session makes the second client wait, which shows it as well.
const PATIENCE: Duration = Duration::from_secs(2);
/// Limit of the whole test.
const PATIENCE_MAX: Duration = Duration::from_secs(10);

/// `None` if the test failed.
pub async fn detect(connector: &Connector) -> Option<bool> {
    tokio::time::timeout(PATIENCE_MAX, try_out(connector)).await.ok()?
}

async fn try_out(connector: &Connector) -> Option<bool> {
    let (first, second) = (connector.bare().await.ok()?, connector.bare().await.ok()?);
    let before = session(&first).await?;
    // A pooler assigns the session that was used last, which is the one just seen.
    second.batch_execute("begin").await.ok()?;
    session(&second).await?;
    let after = tokio::time::timeout(PATIENCE, session(&first)).await;
    let _ = second.batch_execute("rollback").await;
    match after {
        Ok(after) => Some(after? != before),
        Err(_) => Some(true),
    }
}

/// The server process behind the connection, by a simple query because prepared statements may already fail.
async fn session(client: &Client) -> Option<i32> {
    let messages = client.simple_query("select pg_backend_pid()").await.ok()?;
    messages.iter().find_map(|message| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0)?.parse().ok(),
        _ => None,
    })
}

impl Connector {
    /// A connection with its driver running, without our session settings.
    async fn bare(&self) -> Result<Client, Error> {
        let (client, mut driver) = self.raw().await?;
        self.tasks.spawn_driver(async move {
            while let Some(Ok(_)) = futures_util::StreamExt::next(&mut driver).await {}
        });
        Ok(client)
    }
}

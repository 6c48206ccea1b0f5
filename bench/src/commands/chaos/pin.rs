//! A transaction that is held open, so that dead rows cannot be removed during the whole run.

use std::time::Duration;

use anyhow::Result;
use tokio_postgres::{Config, NoTls};

const POLL: Duration = Duration::from_millis(50);

/// Runs forever. A crash of PostgreSQL ends the transaction too, and then the next one begins.
pub async fn hold(port: u16) -> Result<()> {
    let mut config = Config::new();
    config.host("127.0.0.1").port(port).user("postgres").dbname("queen").application_name("pin");
    config.connect_timeout(Duration::from_secs(2));
    loop {
        if let Ok((client, connection)) = config.connect(NoTls).await {
            let transaction = async {
                let begun = "begin isolation level repeatable read; select txid_current()";
                if client.batch_execute(begun).await.is_ok() {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                _ = connection => {}
                () = transaction => {}
            }
        }
        tokio::time::sleep(POLL).await;
    }
}

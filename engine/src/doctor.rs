//! Doctor: asks the database what keeps it from keeping up. Needs no running engine.

use crate::config::Config;
use crate::db::{Connector, error_chain};
use crate::error::StartError;
use crate::start::explain;
use crate::tasks::Tasks;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Somebody should act.
    pub problem: bool,
    pub text: String,
}

/// The likeliest cause first; nothing if nothing is wrong.
pub async fn diagnose(config: &Config) -> Result<Vec<Finding>, StartError> {
    let connector = Connector::new(config, Tasks::default())?;
    let (client, mut driver) = connector.connect().await.map_err(|error| explain(&connector, error))?;
    connector.tasks.spawn_driver(async move {
        while let Some(Ok(_)) = futures_util::StreamExt::next(&mut driver).await {}
    });
    let refused = |error: tokio_postgres::Error| StartError::Statement(error_chain(&error));
    client.batch_execute("set application_name = 'queen doctor'").await.map_err(refused)?;
    let rows = client.query("select * from queen.diagnose()", &[]).await.map_err(refused)?;
    Ok(rows.iter().map(|row| Finding { problem: row.get(0), text: row.get(1) }).collect())
}

//! API keys: reading them in a broker, and creating, listing and revoking them with or without a running broker. What
//! a key permits is decided elsewhere.

use tokio_postgres::Client;

use crate::Engine;
use crate::config::Config;
use crate::db::Connector;
use crate::db::keys::{self, ApiKey, NewKey};
use crate::doctor::opened;
use crate::error::{Error, StartError};
use crate::tasks::Tasks;

impl Engine {
    /// The keys that are valid now.
    pub async fn live_keys(&self) -> Result<Vec<ApiKey>, Error> {
        Ok(keys::live(&self.shared.connections).await?)
    }
}

/// Returns when the key expires, in microseconds since 1970.
pub async fn create_key(config: &Config, new: &NewKey<'_>) -> Result<Option<i64>, StartError> {
    let client = desk(config).await?;
    keys::create(&client, new).await.map_err(StartError::Statement)
}

/// All keys ever created, oldest first.
pub async fn list_keys(config: &Config) -> Result<Vec<ApiKey>, StartError> {
    let client = desk(config).await?;
    keys::all(&client).await.map_err(StartError::Statement)
}

/// False if there is no such key, or it was already revoked.
pub async fn revoke_key(config: &Config, id: &str) -> Result<bool, StartError> {
    let client = desk(config).await?;
    keys::revoke(&client, id).await.map_err(StartError::Statement)
}

async fn desk(config: &Config) -> Result<Client, StartError> {
    let connector = Connector::new(config, Tasks::default())?;
    let client = opened(&connector).await?;
    match keys::known(&client).await.map_err(StartError::Statement)? {
        true => Ok(client),
        false => Err(StartError::NoSchema),
    }
}

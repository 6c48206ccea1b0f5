//! `queen migrate`: updates the schema before brokers start. Brokers do this by themselves as well.

use anyhow::Result;

use crate::config::Settings;

pub fn migrate(settings: &Settings) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(queen_engine::migrate(&settings.desk()?))?;
    Ok(())
}

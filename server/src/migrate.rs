//! `queen migrate`: brings the schema up to date, for who wants that done before brokers start. They do the same by
//! themselves.

use anyhow::Result;

use crate::config::Settings;

pub fn migrate(settings: &Settings) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(queen_engine::migrate(&settings.desk()?))?;
    Ok(())
}

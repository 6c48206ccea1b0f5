//! `queen psql`: runs psql on the broker's database. It needs a running broker only if the database is the embedded one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;

use anyhow::{Error, Result};

use crate::config::Settings;

/// Returns only when it fails.
pub fn open(settings: &Settings, arguments: &[OsString]) -> Result<()> {
    let mut psql = settings.psql()?;
    let failed = psql.args(arguments).exec();
    Err(Error::new(failed).context("cannot run psql; install it with PostgreSQL's client programs"))
}

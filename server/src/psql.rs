//! `queen psql`: becomes psql on the broker's database. Needs no running broker unless the database is its own.

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

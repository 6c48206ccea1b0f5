//! `queen doctor`: says in words what keeps the database from keeping up. Needs no running broker unless the database is
//! its own.

use std::io::{self, Write};

use anyhow::{Context, Result, bail};
use queen_engine::Tls;

use crate::config::{Database, Settings};

pub fn examine(settings: &Settings) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (connection, tls) = match settings.database() {
        Database::External { connection, tls } => (connection, tls),
        Database::Embedded { data_dir, .. } => {
            let running = queen_postgres::describe(&data_dir).context("start it with `queen serve`")?;
            (running.url(), Tls::Off)
        }
    };
    let config = settings.engine(connection, tls);
    let findings = runtime.block_on(queen_engine::diagnose(&config))?;
    let mut out = io::stdout().lock();
    for finding in &findings {
        writeln!(out, "{} {}", if finding.problem { "!" } else { "-" }, finding.text)?;
    }
    match findings.iter().filter(|finding| finding.problem).count() {
        0 if findings.is_empty() => {
            writeln!(out, "nothing keeps this database from keeping up").map_err(Into::into)
        }
        0 => Ok(()),
        problems => bail!("{problems} problem(s) found"),
    }
}

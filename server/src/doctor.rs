//! `queen doctor`: says in words what is wrong with the database. Needs no running broker unless the database is its own.

use std::io::{self, Write};

use anyhow::{Context, Result, bail};
use queen_engine::{Examination, Severity, Tls};

use crate::config::{Database, Settings};
use crate::http::doctor::Report;

pub fn examine(settings: &Settings, json: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (connection, tls) = match settings.database() {
        Database::External { connection } => settings.reach(&connection)?,
        Database::Embedded { data_dir, .. } => {
            let running = queen_postgres::describe(&data_dir).context("start it with `queen serve`")?;
            (running.url(), Tls::OFF)
        }
    };
    let config = settings.engine(connection, tls)?;
    let examination = runtime.block_on(queen_engine::diagnose(&config))?;
    let mut out = io::stdout().lock();
    match json {
        true => writeln!(out, "{}", serde_json::to_string_pretty(&Report::of(&examination))?)?,
        false => out.write_all(text(&examination).as_bytes())?,
    }
    match examination.findings.iter().filter(|finding| finding.severity == Severity::Problem).count() {
        0 => Ok(()),
        problems => bail!("{problems} problem(s) found"),
    }
}

fn text(examination: &Examination) -> String {
    if examination.findings.is_empty() {
        return "nothing is wrong with this database\n".to_owned();
    }
    let mark = |severity| match severity {
        Severity::Problem => "!",
        Severity::Warning => "?",
        Severity::Info => "-",
    };
    let lines = examination.findings.iter();
    lines.map(|finding| format!("{} {}: {}\n", mark(finding.severity), finding.code, finding.text)).collect()
}

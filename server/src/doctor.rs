//! `queen doctor`: examines the database and prints problems with their remedies. It needs a running broker only if the database
//! is the embedded one.

use std::io::{self, Write};

use anyhow::{Result, bail};
use queen_engine::{Examination, Severity};

use crate::config::Settings;
use crate::http::doctor::Report;

pub fn examine(settings: &Settings, json: bool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let config = settings.desk()?;
    let examination = runtime.block_on(queen_engine::examine(&config))?;
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

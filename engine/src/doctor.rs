//! The doctor: finds problems of the database and says what to do about them. One call collects the facts, this module
//! evaluates them; it changes nothing.

mod contents;
mod facts;
mod pooler;
mod server;

use std::time::{Duration, Instant};

use tokio_postgres::Client;

pub use facts::{Facts, Holder, Table};
pub use pooler::detect as is_pooled;

use crate::clock;
use crate::config::Config;
use crate::db::migrate::SCHEMA_VERSION;
use crate::db::{Connector, control, error_chain};
use crate::error::{StartError, UnreadableMessage};
use crate::start::{explain, pool_size};
use crate::tasks::Tasks;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Needs action now or soon.
    Problem,
    /// Costs performance or space, or may become a problem.
    Warning,
    /// Worth knowing.
    Info,
}

impl Severity {
    pub const ALL: [Self; 3] = [Self::Problem, Self::Warning, Self::Info];

    pub fn word(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub severity: Severity,
    /// Stable across releases.
    pub code: &'static str,
    /// The cause, with numbers, and what to do.
    pub text: String,
}

/// The result of one examination of the database.
#[derive(Debug, Clone)]
pub struct Examination {
    /// Most severe first; empty if nothing is wrong.
    pub findings: Vec<Finding>,
    /// `None` if the database has no Queen schema.
    pub facts: Option<Facts>,
    /// How far this machine's clock is ahead of the database's.
    pub clock_offset_seconds: f64,
    pub at: Instant,
    pub took: Duration,
}

/// What the checks need besides the facts.
#[derive(Debug, Clone)]
pub struct Circumstances {
    /// Connections per broker.
    pub pool: usize,
    /// The schema version of this program.
    pub schema: i32,
    pub clock_offset_seconds: f64,
    /// Whether a pooler in transaction mode is in between; `None` if unknown.
    pub pooled: Option<bool>,
    /// Whether an encryption key is set.
    pub can_seal: bool,
    /// Messages that consumers of this broker met and that it cannot decrypt.
    pub unreadable: Vec<UnreadableMessage>,
}

impl Examination {
    pub fn age(&self) -> Duration {
        clock::now() - self.at
    }

    pub fn has_problem(&self) -> bool {
        self.findings.iter().any(|finding| finding.severity == Severity::Problem)
    }
}

/// Examines a database without a running engine. May take long, unlike the examination in the background.
pub async fn examine(config: &Config) -> Result<Examination, StartError> {
    let connector = Connector::new(config, Tasks::default())?;
    let client = opened(&connector).await?;
    let refused = |error: tokio_postgres::Error| StartError::Statement(error_chain(&error));
    client.batch_execute("set application_name = 'queen doctor'").await.map_err(refused)?;
    let pooled = pooler::detect(&connector).await;
    let begun = clock::now();
    let row = client.query_one("select to_regprocedure('queen.diagnose(boolean)') is null", &[]).await;
    if row.map_err(refused)?.get(0) {
        return Ok(without_schema(begun, pooled));
    }
    let sent = clock::wall_seconds();
    let facts = control::doctor_facts_alone(&client, true).await.map_err(StartError::Statement)?;
    let here = Circumstances {
        pool: pool_size(config.connections, facts.settings.max_connections.unsigned_abs() as usize),
        schema: SCHEMA_VERSION,
        clock_offset_seconds: offset(sent, clock::wall_seconds(), facts.now),
        pooled,
        can_seal: config.keys.can_seal(),
        unreadable: Vec::new(),
    };
    Ok(examined(facts, &here, begun))
}

pub fn examined(facts: Facts, here: &Circumstances, begun: Instant) -> Examination {
    Examination {
        findings: judge(&facts, here),
        clock_offset_seconds: here.clock_offset_seconds,
        facts: Some(facts),
        at: begun,
        took: clock::now() - begun,
    }
}

/// How far this machine's clock is ahead, assuming that the database read its own halfway between the two times.
pub fn offset(sent: f64, received: f64, theirs: f64) -> f64 {
    let (early, late) = (sent - theirs, received - theirs);
    // A smaller difference may be the latency of the call.
    if early <= 0.0 && late >= 0.0 { 0.0 } else { (early + late) / 2.0 }
}

/// Most severe first, otherwise in the order of the checks.
pub fn judge(facts: &Facts, here: &Circumstances) -> Vec<Finding> {
    let mut found = Findings::default();
    server::judge(facts, here, &mut found);
    contents::judge(facts, here, &mut found);
    found.0.sort_by_key(|finding| finding.severity);
    found.0
}

pub async fn opened(connector: &Connector) -> Result<Client, StartError> {
    let (client, mut driver) = connector.connect().await.map_err(|error| explain(connector, error))?;
    connector.tasks.spawn_driver(async move {
        while let Some(Ok(_)) = futures_util::StreamExt::next(&mut driver).await {}
    });
    Ok(client)
}

fn without_schema(begun: Instant, pooled: Option<bool>) -> Examination {
    let mut found = Findings::default();
    let text = "this database has no Queen schema, or one of another release; start a broker on it, or correct \
                the connection settings";
    found.problem("schema_missing", text);
    if pooled == Some(true) {
        found.problem("transaction_pooler", "a pooler in transaction mode is between Queen and the database");
    }
    Examination {
        findings: found.0,
        facts: None,
        clock_offset_seconds: 0.0,
        at: begun,
        took: clock::now() - begun,
    }
}

#[derive(Default)]
pub struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, severity: Severity, code: &'static str, text: impl Into<String>) {
        self.0.push(Finding { severity, code, text: text.into() });
    }

    fn problem(&mut self, code: &'static str, text: impl Into<String>) {
        self.add(Severity::Problem, code, text);
    }

    fn warning(&mut self, code: &'static str, text: impl Into<String>) {
        self.add(Severity::Warning, code, text);
    }

    fn info(&mut self, code: &'static str, text: impl Into<String>) {
        self.add(Severity::Info, code, text);
    }
}

/// A duration, rounded for people.
fn span(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} h", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

fn size(bytes: i64) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        mib if mib < 1.0 => format!("{} kB", bytes / 1024),
        mib if mib < 1024.0 => format!("{mib:.0} MB"),
        mib => format!("{:.1} GB", mib / 1024.0),
    }
}

#[cfg(test)]
mod tests;

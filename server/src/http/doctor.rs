//! `/api/v1/system/doctor`: the findings of the last examination of the database.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use queen_engine::Examination;
use serde::Serialize;
use utoipa::ToSchema;

use super::answer;
use super::error::{ApiError, Failures};
use super::request::Query;
use crate::app::App;

#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = DoctorReport, example = json!({
    "healthy": false, "reachable": true, "ageSeconds": 12.5,
    "findings": [{"severity": "problem", "code": "fsync_off", "message": "fsync is off: a crash …"}],
    "holders": [{"kind": "session", "name": "report", "pid": 4711, "state": "idle in transaction", "seconds": 3.5,
        "transactions": 12, "query": "select 1"}],
}))]
pub struct Report<'a> {
    /// The database is reachable, and no finding is a problem.
    healthy: bool,
    /// The last attempt to reach the database succeeded.
    reachable: bool,
    /// Age of the examination in seconds; null before the first one.
    age_seconds: Option<f64>,
    /// Most severe first.
    findings: Vec<Found<'a>>,
    /// Transactions that keep old row versions from being removed, oldest first.
    holders: Vec<Keeper<'a>>,
}

#[derive(Serialize, ToSchema)]
#[schema(as = DoctorFinding)]
pub struct Found<'a> {
    /// `problem`, `warning` or `info`.
    severity: &'static str,
    /// Stable across versions.
    code: &'static str,
    /// The cause, with numbers, and the remedy.
    message: &'a str,
}

/// Something that keeps old row versions from being removed, as every open transaction does.
#[derive(Serialize, ToSchema)]
#[schema(as = DoctorHolder)]
pub struct Keeper<'a> {
    /// `session`, `standby` or `prepared`.
    kind: &'a str,
    /// Name of the program, the standby or the prepared transaction.
    name: &'a str,
    pid: Option<i32>,
    state: Option<&'a str>,
    /// How long it has been open, if known.
    seconds: Option<f64>,
    /// Transactions that began since.
    transactions: Option<i64>,
    query: Option<&'a str>,
}

/// Examines the database: problems, their causes and remedies.
///
/// Brokers examine it once a minute (`QUEEN_DOCTOR_SECONDS`); `fresh=true` examines it now.
#[utoipa::path(get, path = "/api/v1/system/doctor", operation_id = "doctor", tag = "broker",
    params(("fresh" = Option<bool>, Query, description = "Examine the database now instead of returning the last findings")),
    responses((status = 200, description = "The findings", body = Report<'static>), Failures))]
pub async fn doctor(State(app): State<App>, query: Query) -> Result<Response, ApiError> {
    let examination = match query.flag("fresh", false) {
        true => Some(app.engine.examine().await?),
        false => app.engine.findings(),
    };
    let none = Report {
        healthy: true,
        reachable: true,
        age_seconds: None,
        findings: Vec::new(),
        holders: Vec::new(),
    };
    let mut report = examination.as_deref().map_or(none, Report::of);
    report.reachable = app.engine.reaches_database();
    report.healthy &= report.reachable;
    answer::json(StatusCode::OK, &report)
}

impl<'a> Report<'a> {
    pub fn of(examination: &'a Examination) -> Self {
        let finding = |finding: &'a queen_engine::Finding| Found {
            severity: finding.severity.word(),
            code: finding.code,
            message: &finding.text,
        };
        Self {
            healthy: !examination.has_problem(),
            reachable: true,
            age_seconds: Some(examination.age().as_secs_f64()),
            findings: examination.findings.iter().map(finding).collect(),
            holders: examination.facts.iter().flat_map(|facts| &facts.holders).map(Keeper::of).collect(),
        }
    }
}

impl<'a> Keeper<'a> {
    fn of(holder: &'a queen_engine::Holder) -> Self {
        Self {
            kind: &holder.kind,
            name: &holder.name,
            pid: holder.pid,
            state: holder.state.as_deref(),
            seconds: holder.seconds,
            transactions: holder.transactions,
            query: holder.query.as_deref(),
        }
    }
}

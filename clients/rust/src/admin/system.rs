//! The brokers: health, maintenance and metrics.

use bytes::Bytes;
use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Admin, Counts, Get};
use crate::brokers::Route;
use crate::control::Control;
use crate::dead_letters::RedriveState;
use crate::error::{Error, ErrorKind};
use crate::wire::{self, Query};

/// Totals of the whole installation.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Overview {
    /// Number of queues.
    pub queues: u64,
    /// Number of partitions.
    pub partitions: u64,
    /// Number of namespaces.
    pub namespaces: u64,
    /// Number of tasks.
    pub tasks: u64,
    /// Messages over all queues.
    pub messages: Counts,
    /// Lag, throughput and other fields of the response.
    #[serde(flatten)]
    pub other: serde_json::Map<String, Value>,
}

/// The maintenance switches.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Maintenance {
    /// Brokers write pushes to their spools.
    pub maintenance_mode: bool,
    /// Pops return no messages.
    pub pop_maintenance_mode: bool,
    /// Messages in the spool of the responding broker.
    pub buffered_messages: u64,
}

/// Problems of the database, and what to do about them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Doctor {
    /// True if there are no problems.
    pub healthy: bool,
    /// Whether the database is reachable.
    pub reachable: bool,
    /// The problems found.
    pub findings: Vec<Finding>,
}

/// A problem.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Finding {
    /// Severity.
    pub severity: String,
    /// Stable code of the problem.
    pub code: String,
    /// What is wrong, and what to do.
    pub message: String,
}

/// Health of a broker.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Health {
    /// `healthy`
    pub status: String,
    /// `connected`
    pub database: String,
    /// `host:port` of the broker.
    pub server: String,
    /// Version of the broker.
    pub version: String,
}

impl Admin {
    /// Checks a broker's health, with a single attempt.
    pub async fn health(&self) -> Result<Health, Error> {
        let shared = &self.queen.shared;
        shared.check_open()?;
        let broker = shared.brokers().choose(Route::First, crate::clock::now());
        let time = self.deadline.map_or(shared.timeout, |deadline| deadline.min(shared.timeout));
        let answer = shared.ask(broker, &Method::GET, "/health", &Bytes::new(), time).await;
        wire::object(&answer.map_err(|error| error.with_attempts(1))?.body)
    }

    /// Gets totals of the whole installation.
    pub fn overview(&self) -> Get<Overview> {
        self.get("/api/v1/resources/overview")
    }

    /// Gets a status overview, in the broker's format.
    pub fn status(&self) -> Get<Value> {
        self.get("/api/v1/status")
    }

    /// Gets a broker's metrics, in the broker's format.
    pub fn metrics(&self) -> Get<Value> {
        self.get("/metrics")
    }

    /// Gets a broker's metrics in Prometheus format.
    pub async fn prometheus(&self) -> Result<String, Error> {
        let path = "/metrics/prometheus".to_owned();
        let shared = &self.queen.shared;
        let call = shared.usual(Method::GET, path, Bytes::new(), Route::First, self.deadline);
        let answer = shared.call(call).await?;
        String::from_utf8(answer.body.into())
            .map_err(|error| Error::new(ErrorKind::Decode, error.to_string()))
    }

    /// Examines the database for problems.
    pub fn doctor(&self) -> Get<Doctor> {
        self.get("/api/v1/system/doctor")
    }

    /// Gets the maintenance switches.
    pub fn maintenance(&self) -> Get<Maintenance> {
        self.get("/api/v1/system/maintenance")
    }

    /// Turns spooling of pushes on or off.
    pub async fn set_maintenance(&self, enabled: bool) -> Result<Maintenance, Error> {
        self.ask(Control::post("/api/v1/system/maintenance", &json!({"enabled": enabled}))).await
    }

    /// Turns empty pops on or off.
    pub async fn set_pop_maintenance(&self, enabled: bool) -> Result<Maintenance, Error> {
        self.ask(Control::post("/api/v1/system/maintenance/pop", &json!({"enabled": enabled}))).await
    }

    /// Lists redrives, newest first.
    pub async fn redrives(&self, limit: u32, offset: u64) -> Result<Vec<RedriveState>, Error> {
        #[derive(Deserialize)]
        struct Redrives {
            redrives: Vec<RedriveState>,
        }
        let mut query = Query::new("/api/v1/dlq/redrives");
        query.add("limit", limit.to_string());
        query.add("offset", offset.to_string());
        let list: Redrives = self.ask(Control::get(query.into_text())).await?;
        Ok(list.redrives.into_iter().map(|state| state.attach(&self.queen)).collect())
    }

    /// Gets the progress of a redrive.
    pub async fn redrive(&self, id: &str) -> Result<RedriveState, Error> {
        RedriveState::read(&self.queen, id, self.deadline).await
    }
}

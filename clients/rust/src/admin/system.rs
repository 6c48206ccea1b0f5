//! The brokers themselves: health, maintenance, numbers.

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

/// The whole installation in numbers.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Overview {
    /// How many there are.
    pub queues: u64,
    /// How many there are.
    pub partitions: u64,
    /// How many there are.
    pub namespaces: u64,
    /// How many there are.
    pub tasks: u64,
    /// Over all queues.
    pub messages: Counts,
    /// Lag, throughput and what else the broker tells.
    #[serde(flatten)]
    pub other: serde_json::Map<String, Value>,
}

/// Which switches are on.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[non_exhaustive]
pub struct Maintenance {
    /// Pushes go to the spools of the brokers.
    pub maintenance_mode: bool,
    /// Pops find nothing.
    pub pop_maintenance_mode: bool,
    /// Messages in the spool of the broker that was asked.
    pub buffered_messages: u64,
}

/// What is wrong, and what to do about it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Doctor {
    /// Nothing is.
    pub healthy: bool,
    /// The database answers.
    pub reachable: bool,
    /// What is.
    pub findings: Vec<Finding>,
}

/// Something that is wrong.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Finding {
    /// How bad it is.
    pub severity: String,
    /// The word for it.
    pub code: String,
    /// What it is, and what to do.
    pub message: String,
}

/// How a broker is.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Health {
    /// `healthy`
    pub status: String,
    /// `connected`
    pub database: String,
    /// Which broker it is.
    pub server: String,
    /// Its release.
    pub version: String,
}

impl Admin {
    /// Whether a broker is well. One attempt: who asks wants to know now.
    pub async fn health(&self) -> Result<Health, Error> {
        let shared = &self.queen.shared;
        shared.check_open()?;
        let broker = shared.brokers().choose(Route::First, crate::clock::now());
        let time = self.deadline.map_or(shared.timeout, |deadline| deadline.min(shared.timeout));
        let answer = shared.ask(broker, &Method::GET, "/health", &Bytes::new(), time).await;
        wire::object(&answer.map_err(|error| error.with_attempts(1))?.body)
    }

    /// The whole installation in numbers.
    pub fn overview(&self) -> Get<Overview> {
        self.get("/api/v1/resources/overview")
    }

    /// How everything is, on one page, as the broker tells it.
    pub fn status(&self) -> Get<Value> {
        self.get("/api/v1/status")
    }

    /// What a broker counts about itself, as it tells it.
    pub fn metrics(&self) -> Get<Value> {
        self.get("/metrics")
    }

    /// The same for Prometheus.
    pub async fn prometheus(&self) -> Result<String, Error> {
        let path = "/metrics/prometheus".to_owned();
        let shared = &self.queen.shared;
        let call = shared.usual(Method::GET, path, Bytes::new(), Route::First, self.deadline);
        let answer = shared.call(call).await?;
        String::from_utf8(answer.body.into())
            .map_err(|error| Error::new(ErrorKind::Decode, error.to_string()))
    }

    /// What is wrong with the database, and what to do about it.
    pub fn doctor(&self) -> Get<Doctor> {
        self.get("/api/v1/system/doctor")
    }

    /// Which switches are on.
    pub fn maintenance(&self) -> Get<Maintenance> {
        self.get("/api/v1/system/maintenance")
    }

    /// Sends pushes to the spools of the brokers, or lets them through again.
    pub async fn set_maintenance(&self, enabled: bool) -> Result<Maintenance, Error> {
        self.ask(Control::post("/api/v1/system/maintenance", &json!({"enabled": enabled}))).await
    }

    /// Lets pops find nothing, or messages again.
    pub async fn set_pop_maintenance(&self, enabled: bool) -> Result<Maintenance, Error> {
        self.ask(Control::post("/api/v1/system/maintenance/pop", &json!({"enabled": enabled}))).await
    }

    /// Lists redrives, the newest first.
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

    /// How far a redrive is.
    pub async fn redrive(&self, id: &str) -> Result<RedriveState, Error> {
        RedriveState::read(&self.queen, id, self.deadline).await
    }
}

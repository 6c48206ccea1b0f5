//! Fetches one sample of all brokers and of the database they share. It compares nothing.

use std::time::{Duration, Instant};

use anyhow::Result;
use queen_client::Queen;
use queen_client::admin::{GroupSummary, QueueInfo};
use serde_json::Value;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::super::exit::{Exit, Refused};
use super::super::pages;

/// Limit of a sample; one that takes longer is useless.
const LOOK_MAX: Duration = Duration::from_secs(5);
/// Limit of a list of several pages.
const LIST_MAX: Duration = Duration::from_secs(10);

/// The lanes of a broker, by the broker's names.
pub const LANES: [&str; 5] = ["push", "pop", "ack", "transaction", "renew_lease"];

#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Seconds since the first sample.
    pub at: f64,
    pub brokers: Vec<Broker>,
    pub all: Shared,
    pub groups: Vec<Group>,
    pub queues: Vec<Queue>,
}

#[derive(Debug, Clone)]
pub struct Broker {
    pub url: String,
    /// `Err`: why it does not respond.
    pub state: Result<State, String>,
}

/// Counted since the broker's start, except where noted.
#[derive(Debug, Clone, Default)]
pub struct State {
    pub server: String,
    pub version: String,
    pub uptime: f64,
    pub requests: u64,
    pub cpu_us: u64,
    /// Current value.
    pub memory: u64,
    /// Current value.
    pub connections: u64,
    /// Current value.
    pub connections_busy: u64,
    /// Requests waiting for a flight now.
    pub waiting: u64,
    /// Whether the latest attempt to reach the database succeeded.
    pub database: bool,
    pub lanes: [Lane; LANES.len()],
}

#[derive(Debug, Clone, Copy, Default)]
pub struct Lane {
    pub flights: u64,
    pub items: u64,
    /// Time spent in the database.
    pub busy_ms: f64,
}

/// What all brokers share.
#[derive(Debug, Clone, Default)]
pub struct Shared {
    pub queues: u64,
    pub partitions: u64,
    pub stored: u64,
    pub pending: u64,
    pub leased: u64,
    pub dead_letters: u64,
    pub deferred: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Group {
    pub name: String,
    pub queue: String,
    pub unread: u64,
    pub waiting_seconds: f64,
    pub state: String,
}

#[derive(Debug, Clone, Default)]
pub struct Queue {
    pub name: String,
    pub partitions: u64,
    pub stored: u64,
    pub pending: u64,
    pub leased: u64,
}

pub struct Sampler {
    each: Vec<(String, Queen)>,
    all: Queen,
    began: Instant,
}

impl Sampler {
    pub fn new(each: Vec<(String, Queen)>, all: Queen) -> Self {
        Self { each, all, began: Instant::now() }
    }

    pub async fn look(&self) -> Result<Sample> {
        let mut looks = JoinSet::new();
        for (index, (url, queen)) in self.each.iter().cloned().enumerate() {
            looks.spawn(async move { (index, look_at(url, &queen).await) });
        }
        let admin = self.all.admin();
        // All pages, because the most important entries may be on any of them.
        let groups = async |limit, offset| {
            anyhow::Ok(admin.groups().limit(limit).offset(offset).deadline(LOOK_MAX).await?)
        };
        let queues = async |limit, offset| {
            anyhow::Ok(admin.queues().limit(limit).offset(offset).deadline(LOOK_MAX).await?.queues)
        };
        let overview = async { anyhow::Ok(admin.overview().deadline(LOOK_MAX).await?) };
        let operations = async { anyhow::Ok(admin.operation_stats().deadline(LOOK_MAX).await?) };
        let (overview, operations, groups, queues) =
            tokio::try_join!(overview, operations, whole("groups", groups), whole("queues", queues))?;
        let mut brokers = looks.join_all().await;
        brokers.sort_by_key(|(index, _)| *index);
        let group = |group: GroupSummary| Group {
            unread: group.total_lag.unwrap_or_default().max(0).cast_unsigned(),
            name: group.name,
            queue: group.queue_name,
            waiting_seconds: group.max_time_lag,
            state: group.state,
        };
        let queue = |queue: QueueInfo| Queue {
            name: queue.name,
            partitions: queue.partitions,
            stored: queue.messages.total,
            pending: queue.messages.pending,
            leased: queue.messages.processing,
        };
        Ok(Sample {
            at: self.began.elapsed().as_secs_f64(),
            brokers: brokers.into_iter().map(|(_, broker)| broker).collect(),
            all: Shared {
                queues: overview.queues,
                partitions: overview.partitions,
                stored: overview.messages.total,
                pending: overview.messages.pending,
                leased: overview.messages.processing,
                dead_letters: overview.messages.dead_letter,
                deferred: operations.system_health.queue_depth,
            },
            groups: groups.into_iter().map(group).collect(),
            queues: queues.into_iter().map(queue).collect(),
        })
    }
}

/// Reads a whole list, unless that takes too long.
async fn whole<T>(what: &str, page: impl AsyncFnMut(u32, u64) -> Result<Vec<T>>) -> Result<Vec<T>> {
    match timeout(LIST_MAX, pages::all(page)).await {
        Ok(list) => list,
        Err(_) => {
            let text = format!("reading the list of {what} took longer than {LIST_MAX:?}");
            Err(Refused::error(Exit::Unreachable, text))
        }
    }
}

async fn look_at(url: String, queen: &Queen) -> Broker {
    let admin = queen.admin();
    let (metrics, health) = tokio::join!(admin.metrics().into_future(), admin.health());
    let state = metrics.map_err(|error| error.text().to_owned()).map(|metrics| {
        let (server, version) = health.map(|health| (health.server, health.version)).unwrap_or_default();
        State { server, version, ..State::read(&metrics) }
    });
    Broker { url, state }
}

impl State {
    /// From `/metrics`. A missing value counts as 0.
    fn read(metrics: &Value) -> Self {
        let number = |path: &str| metrics.pointer(path).and_then(Value::as_u64).unwrap_or_default();
        let real = |path: &str| metrics.pointer(path).and_then(Value::as_f64).unwrap_or_default();
        let lane = |name: &str| {
            let flights = number(&format!("/sidecar/operations/{name}/count"));
            Lane {
                flights,
                items: number(&format!("/sidecar/operations/{name}/items")),
                busy_ms: real(&format!("/sidecar/operations/{name}/avg_ms")) * flights as f64,
            }
        };
        Self {
            uptime: real("/uptime"),
            requests: number("/requests/total"),
            cpu_us: number("/cpu/user") + number("/cpu/system"),
            memory: number("/memory/rss"),
            connections: number("/sidecar/connections/total"),
            connections_busy: number("/sidecar/connections/busy"),
            waiting: number("/sidecar/queue/pending"),
            database: metrics.pointer("/database/connected").and_then(Value::as_bool).unwrap_or_default(),
            lanes: LANES.map(lane),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_broker_is_read_from_what_it_tells_and_a_word_it_does_not_say_is_nothing() {
        let state = State::read(&json!({
            "uptime": 12.5, "requests": {"total": 100}, "cpu": {"user": 3, "system": 4}, "memory": {"rss": 5},
            "database": {"connected": true},
            "sidecar": {"connections": {"total": 8, "busy": 2}, "queue": {"pending": 1},
                        "operations": {"push": {"count": 10, "avg_ms": 2.0, "items": 500}}},
        }));
        assert_eq!((state.requests, state.cpu_us, state.memory, state.connections_busy), (100, 7, 5, 2));
        let push = state.lanes[0];
        assert_eq!((push.flights, push.items, push.busy_ms, state.database), (10, 500, 20.0, true));
        assert_eq!(state.lanes[4].flights, 0);
    }
}

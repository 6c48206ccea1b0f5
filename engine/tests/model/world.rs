//! Two engines on one database, one of them behind a network that breaks, and the shadow that observes both.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use queen_engine::{Config, Deferring, Engine, Keepalive, Keys, Slots, Tls};
use queen_protocol::Configure;
use queen_testkit::{Database, Proxy, database};
use serde_json::json;

use crate::shadow::{Checked, Shadow, Violation};
use crate::words::{LEASE_SECONDS, QUEUE, RETRY_LIMIT, Via};

pub struct World {
    seed: u64,
    pub healthy: Engine,
    pub broken: Engine,
    pub proxy: Proxy,
    pub database: Database,
    shadow: Mutex<Shadow>,
    tally: Mutex<BTreeMap<String, usize>>,
}

impl World {
    pub async fn start(seed: u64) -> Self {
        let database = database().await;
        let healthy = Engine::start(config(database.url())).await.expect("the healthy engine starts");
        let options = json!({"leaseTime": LEASE_SECONDS, "retryLimit": RETRY_LIMIT});
        let configure = json!({"queue": QUEUE, "options": options}).to_string();
        let configure = Configure::parse(configure.as_bytes()).expect("good options");
        healthy.configure(&configure).await.expect("the queue is configured");
        let proxy = Proxy::to_postgres(database.url()).await;
        // The broken engine gives up early, so that its callers see errors as well.
        let short = Config {
            retry_for: Duration::from_millis(300),
            connect_timeout: Duration::from_secs(1),
            ..config(proxy.url())
        };
        let broken = Engine::start(short).await.expect("the broken engine starts, for now");
        let (shadow, tally) = (Mutex::default(), Mutex::default());
        Self { seed, healthy, broken, proxy, database, shadow, tally }
    }

    pub fn engine(&self, via: Via) -> &Engine {
        match via {
            Via::Healthy => &self.healthy,
            Via::Broken => &self.broken,
        }
    }

    /// Calls the shadow.
    pub fn tell<T>(&self, what: impl FnOnce(&mut Shadow) -> T) -> T {
        what(&mut self.shadow.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Like [`World::tell`], and panics if a guarantee was not kept.
    pub fn check<T>(&self, what: impl FnOnce(&mut Shadow) -> Checked<T>) -> T {
        let explained = self.tell(|shadow| what(shadow).map_err(|violation| shadow.explain(&violation)));
        explained.unwrap_or_else(|text| panic!("QUEEN_MODEL_SEED={}: {text}", self.seed))
    }

    pub fn demand(&self, kept: bool, broken: impl FnOnce() -> Violation) {
        self.check(|_| if kept { Ok(()) } else { Err(broken()) });
    }

    pub fn count(&self, what: impl Into<String>) {
        *self.tally.lock().unwrap_or_else(PoisonError::into_inner).entry(what.into()).or_default() += 1;
    }

    pub fn tally(&self) -> BTreeMap<String, usize> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Background jobs do not run.
fn config(url: &str) -> Config {
    Config {
        database: url.to_owned(),
        tls: Tls::OFF,
        keepalive: Keepalive {
            idle: Duration::from_secs(60),
            interval: Duration::from_secs(10),
            count: 3,
            user_timeout: Duration::from_secs(30),
        },
        keys: Keys::default(),
        encryption_required: false,
        connections: 6,
        flights: 2,
        connect_timeout: Duration::from_secs(5),
        statement_timeout: Duration::from_secs(10),
        read_timeout: Duration::from_secs(10),
        lock_timeout: Duration::from_secs(5),
        retry_for: Duration::from_secs(10),
        linger: Duration::ZERO,
        flight_items_max: 500,
        flight_bytes_max: 4 << 20,
        waiting_max: 100_000,
        own_server: false,
        partitions_max: 0,
        queues_max: 0,
        auto_create: true,
        slots: Slots { push: 4, pop: 4, ack: 4, renew: 2, transaction: 4 },
        // Small, so that some of what is popped has to be fetched, and some of what was written is evicted.
        segment_cache_bytes: 8 << 10,
        dedup_cache_bytes: 4 << 10,
        pop_bytes_max: 16 << 20,
        retention_interval: Duration::from_secs(3600),
        eviction_interval: Duration::from_secs(3600),
        retention_batch: 100,
        partition_cleanup: Duration::from_secs(30 * 86_400),
        history_retention: Duration::from_secs(30 * 86_400),
        extent_bytes: 256 << 20,
        extent_age: Duration::from_secs(3600),
        statistics_interval: Duration::from_millis(100),
        statistics_reconcile: Duration::from_secs(120),
        doctor_interval: Duration::ZERO,
        deferring: Deferring {
            enabled: true,
            push_utilisation: 0.7,
            ack_utilisation: 0.8,
            push_depth_max: 10_000,
            ack_depth_max: 50_000,
            // The model does not cover deferred operations, so a slow machine must not cause them.
            patience: Duration::from_secs(3600),
            interval: Duration::from_millis(100),
            claim_limit: 50,
            timeout: Duration::from_secs(30),
            retries_max: 3,
            retention: Duration::from_secs(3600),
        },
        name: "test:1".to_owned(),
        metrics_sample: Duration::from_secs(1),
        metrics_aggregate: Duration::from_secs(3600),
        spool: None,
    }
}

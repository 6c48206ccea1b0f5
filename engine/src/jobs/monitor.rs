//! The load monitor: looks at connections and lanes several times a second, and decides whether requests are executed, deferred
//! or rejected until the next look.

use std::sync::Arc;
use std::time::Duration;

use tracing::{info, warn};

use crate::clock;
use crate::lanes::Lanes;
use crate::load::{Decision, KINDS, Kind, Pressure, Reading};
use crate::shared::Shared;

/// How often the load is measured.
const LOOK_EVERY: Duration = Duration::from_millis(50);

pub fn start(shared: &Arc<Shared>, lanes: &Arc<Lanes>) {
    if !shared.config.deferring.enabled {
        return;
    }
    let (shared, lanes) = (shared.clone(), lanes.clone());
    shared.clone().tasks.spawn_until_stop(async move {
        let mut pressures = KINDS.map(|kind| Pressure::new(shared.load.thresholds(kind)));
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let now = clock::now();
            let connections = &shared.connections;
            let pool = connections.busy() as f64 / connections.size() as f64;
            for (kind, pressure) in KINDS.into_iter().zip(&mut pressures) {
                // Deferred operations wait for a lane too. Without them, deferring would look like idleness.
                let ways = match kind {
                    Kind::Push => [lanes.push.pressure(now), lanes.defer.pressure(now)],
                    Kind::Ack => [lanes.consume.pressure(now), lanes.defer_ack.pressure(now)],
                };
                let reading = Reading {
                    pool,
                    lane: ways.iter().map(|way| way.flights).fold(0.0, f64::max),
                    waiting: ways.iter().map(|way| way.waiting).sum(),
                    oldest: ways.iter().map(|way| way.oldest).max().unwrap_or_default(),
                    depth: shared.load.depth(),
                };
                let decision = pressure.observe(now, &reading);
                if shared.load.decision(kind) != decision {
                    tell(kind, decision, &reading);
                }
                shared.load.decide(kind, decision);
            }
        }
    });
}

fn tell(kind: Kind, decision: Decision, reading: &Reading) {
    let Reading { pool, lane, waiting, depth, .. } = *reading;
    let oldest_ms = reading.oldest.as_millis() as u64;
    match decision {
        Decision::Execute => info!(?kind, "load is back to normal; executing operations again"),
        Decision::Defer => {
            warn!(
                ?kind,
                pool, lane, waiting, oldest_ms, depth, "the database cannot keep up; deferring operations"
            );
        }
        Decision::Reject => warn!(?kind, depth, "the deferred queue is full; rejecting requests"),
    }
}

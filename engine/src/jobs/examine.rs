//! The doctor in the background: examines the database at an interval, keeps the result, and logs new findings.

use std::collections::HashSet;
use std::sync::Arc;

use tracing::{debug, warn};

use crate::Engine;
use crate::clock;
use crate::db::migrate::SCHEMA_VERSION;
use crate::db::{self, control};
use crate::doctor::{self, Circumstances, Examination, Severity};
use crate::error::Error;
use crate::shared::Shared;

pub fn start(shared: &Arc<Shared>) {
    if shared.config.doctor_interval.is_zero() {
        return;
    }
    let shared = shared.clone();
    shared.clone().tasks.spawn_until_stop(async move {
        // A pooler does not appear while the broker runs, so one test is enough.
        if let Some(pooled) = doctor::is_pooled(shared.connections.connector()).await {
            let _ = shared.pooled.set(pooled);
        }
        let mut told = HashSet::new();
        loop {
            match examine(&shared).await {
                Ok(examination) => told = tell(&examination, &told),
                Err(error) => debug!(%error, "cannot examine the database; will retry"),
            }
            tokio::time::sleep(shared.config.doctor_interval).await;
        }
    });
}

impl Engine {
    /// The result of the latest examination; `None` before the first. Does not query the database.
    pub fn findings(&self) -> Option<Arc<Examination>> {
        self.shared.examination()
    }

    /// Examines the database now.
    pub async fn examine(&self) -> Result<Arc<Examination>, Error> {
        Ok(examine(&self.shared).await?)
    }
}

async fn examine(shared: &Shared) -> Result<Arc<Examination>, db::Error> {
    let (begun, sent) = (clock::now(), clock::wall_seconds());
    let facts = control::doctor_facts(&shared.connections, false).await?;
    let here = Circumstances {
        pool: shared.connections.size(),
        schema: SCHEMA_VERSION,
        clock_offset_seconds: doctor::offset(sent, clock::wall_seconds(), facts.now),
        pooled: shared.pooled.get().copied(),
        can_seal: shared.config.keys.can_seal(),
        unreadable: shared.troubles.unread(),
    };
    let examination = Arc::new(doctor::examined(facts, &here, begun));
    shared.examined(examination.clone());
    Ok(examination)
}

/// Logs new findings and returns the codes of all, so that each is logged once while it lasts.
fn tell(examination: &Examination, told: &HashSet<&'static str>) -> HashSet<&'static str> {
    let serious = examination.findings.iter().filter(|finding| finding.severity != Severity::Info);
    let codes = serious.clone().map(|finding| finding.code).collect();
    for finding in serious.filter(|finding| !told.contains(finding.code)) {
        warn!(code = finding.code, severity = finding.severity.word(), "doctor: {}", finding.text);
    }
    codes
}

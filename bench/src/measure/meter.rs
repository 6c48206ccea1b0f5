//! Reads all counters before and after a window.

use std::time::Duration;

use anyhow::Result;

use super::cost::{AtOnce, Settling, Usage};
use super::cpu::{CpuSeconds, CpuWatch};
use crate::client::Target;
use crate::environment::Session;

/// An idle backend reports its commits and tuples ten seconds after its last statement, and it is not visible from outside whether
/// it still has something to report.
const SETTLE_TIME: Duration = Duration::from_secs(11);

pub struct Meter {
    pub watch: CpuWatch,
    pub target: Target,
    /// None if the database is not accessible.
    pub session: Option<Session>,
    /// Waits before and after a window until late counters have arrived.
    pub settles: bool,
}

pub struct Reading {
    cpu: CpuSeconds,
    requests: u64,
    at_once: Option<AtOnce>,
    settling: Option<Settling>,
}

impl Meter {
    pub async fn begin(&self) -> Result<Reading> {
        let settling = self.settling().await?;
        let at_once = self.at_once().await?;
        Ok(Reading { cpu: self.cpu_seconds().await?, requests: self.target.requests(), at_once, settling })
    }

    pub async fn end(&self, before: Reading) -> Result<Usage> {
        let cpu = self.cpu_seconds().await?.since(before.cpu);
        let requests = self.target.requests() - before.requests;
        let at_once = self.at_once().await?;
        let settling = self.settling().await?;
        Ok(Usage {
            cpu,
            requests,
            at_once: at_once.zip(before.at_once).map(|(after, before)| after.since(before)),
            settling: settling.zip(before.settling).map(|(after, before)| after.since(before)),
        })
    }

    async fn at_once(&self) -> Result<Option<AtOnce>> {
        match &self.session {
            Some(session) => Ok(Some(session.at_once().await?)),
            None => Ok(None),
        }
    }

    async fn settling(&self) -> Result<Option<Settling>> {
        match &self.session {
            Some(session) if self.settles => {
                tokio::time::sleep(SETTLE_TIME).await;
                Ok(Some(session.settling().await?))
            }
            _ => Ok(None),
        }
    }

    async fn cpu_seconds(&self) -> Result<CpuSeconds> {
        let watch = self.watch;
        Ok(tokio::task::spawn_blocking(move || watch.sample()).await?)
    }
}

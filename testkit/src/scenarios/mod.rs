//! The environment of the clients' scenario suite (`clients/scenarios`): two real brokers on one database, a proxy in front of
//! each that can break single requests, and a control server for the runner.

#[cfg(test)]
mod check;
mod control;
mod deferral;
mod door;
mod faults;
#[cfg(test)]
mod format;
mod proxy;
mod stage;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep};

use self::door::Door;
use self::faults::{Armed, Fault};
use self::proxy::FaultProxy;
use self::stage::Stage;
use crate::{Broker, Database, database};

const BROKERS: usize = 2;
const HEALTH_PATIENCE: Duration = Duration::from_secs(30);
const HEALTH_PAUSE: Duration = Duration::from_millis(20);

/// Set this to run scenarios other than those of this repository.
const DIR: &str = "QUEEN_SCENARIOS_DIR";

/// A running environment. Everything ends when it is dropped.
#[derive(Debug)]
pub struct Scenarios {
    brokers: Arc<Brokers>,
    control: Door,
}

#[derive(Debug)]
struct Brokers {
    stage: Arc<Stage>,
    sites: Vec<Site>,
    binary: PathBuf,
    /// The last field, so that it is dropped after the brokers.
    database: Database,
}

#[derive(Debug)]
struct Site {
    /// `None` if it was killed.
    broker: Mutex<Option<Broker>>,
    proxy: FaultProxy,
}

impl Scenarios {
    /// Runs this program as the broker.
    pub async fn start(binary: &Path) -> Result<Self> {
        let stage = Arc::new(Stage::new());
        let sites = (0..BROKERS).map(|number| {
            Ok(Site { broker: Mutex::default(), proxy: FaultProxy::new(number, stage.clone())? })
        });
        let sites = sites.collect::<Result<_>>()?;
        let brokers =
            Arc::new(Brokers { stage, sites, binary: binary.to_owned(), database: database().await });
        brokers.reset().await?;
        let control = Door::new()?;
        let inside = brokers.clone();
        control.open(move |stream| control::serve(stream, inside.clone())).await?;
        Ok(Self { brokers, control })
    }

    pub fn urls(&self) -> Vec<String> {
        self.brokers.sites.iter().map(|site| site.proxy.url()).collect()
    }

    pub fn control(&self) -> String {
        format!("http://{}", self.control.address())
    }

    /// Returns when brokers and database are gone.
    pub async fn stop(self) {
        // Its connections keep the brokers busy.
        let _ = self.control.close().await;
    }

    /// The environment variables for a runner.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        let ours = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("clients").join("scenarios");
        let dir = std::env::var_os(DIR).map_or(ours, PathBuf::from);
        [
            ("QUEEN_SCENARIOS_URLS", self.urls().join(",")),
            ("QUEEN_SCENARIOS_CONTROL", self.control()),
            (DIR, dir.to_string_lossy().into_owned()),
        ]
    }
}

impl Brokers {
    /// Restores the initial state, except for the contents of the database.
    async fn reset(&self) -> Result<()> {
        self.stage.reset();
        let (first, second) = tokio::join!(self.start(0), self.start(1));
        first.and(second)
    }

    async fn arm(&self, fault: Armed) -> Result<()> {
        match (&fault.fault, fault.broker) {
            (Fault::Refuse, Some(broker)) => self.site(broker)?.proxy.close().await,
            (Fault::Refuse, None) => bail!("`broker` is required for refuse"),
            _ => {
                self.stage.arm(fault);
                Ok(())
            }
        }
    }

    async fn kill(&self, broker: usize) -> Result<()> {
        let site = self.site(broker)?;
        let running = site.broker.lock().await.take();
        if let Some(mut running) = running {
            running.kill9().await;
        }
        site.proxy.close().await
    }

    /// Starts the broker if it is not running, and waits until it is healthy.
    async fn start(&self, broker: usize) -> Result<()> {
        let site = self.site(broker)?;
        let mut running = site.broker.lock().await;
        if running.is_none() {
            let args = ["--database-url", self.database.url()];
            let started = Broker::start(&self.binary, &args, &[]).await?;
            site.proxy.stand_before(address(started.url())?);
            *running = Some(started);
        }
        let deadline = Instant::now() + HEALTH_PATIENCE;
        while !matches!(site.proxy.get("/health").await, Ok(status) if status.is_success()) {
            if Instant::now() > deadline {
                let said = running.as_ref().map(Broker::output).unwrap_or_default();
                bail!("broker {broker} is not healthy:\n{said}");
            }
            sleep(HEALTH_PAUSE).await;
        }
        site.proxy.open().await
    }

    fn site(&self, broker: usize) -> Result<&Site> {
        self.sites.get(broker).with_context(|| format!("no broker {broker}"))
    }
}

fn address(url: &str) -> Result<SocketAddr> {
    url.trim_start_matches("http://").parse().with_context(|| format!("{url} is not an address"))
}

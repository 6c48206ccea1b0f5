//! The environment of a run: PostgreSQL, two brokers, and a network between them that can break.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use queen_testkit::Proxy;
use tempfile::TempDir;
use tokio_postgres::Config;

use super::admin;
use super::broker::Broker;
use super::disk::Disk;
use super::failover::{Standby, standby_of};
use super::history::QUEUES;
use super::postgres::{BROKER, Postgres};
use crate::client::{Client, Target};

pub const BROKERS: usize = 2;

/// Fields are dropped in order: brokers before their database, the disk last.
pub struct Stage {
    pub brokers: Vec<Broker>,
    /// Between each broker and PostgreSQL.
    pub to_postgres: Vec<Arc<Proxy>>,
    /// Between clients and each broker.
    pub to_brokers: Vec<Arc<Proxy>>,
    pub postgres: Postgres,
    /// For a run with a failover.
    pub standby: Option<Standby>,
    pub disk: Disk,
    folder: Option<TempDir>,
}

impl Stage {
    pub async fn open(program: &Path, failover: bool, plain: bool) -> Result<Stage> {
        let folder = tempfile::Builder::new().prefix("queen-chaos-").tempdir()?;
        let path = folder.path().to_owned();
        // PostgreSQL runs as another user, who must be able to enter this folder.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        let disk = Disk::mount(path.join("disk"))?;
        let mut postgres = Postgres::create(&path, disk.folder().join("data")).await?;
        postgres.start().await?;
        postgres.create_database().await?;
        let standby = match failover {
            true => Some(standby_of(&postgres, &path, disk.folder()).await?),
            false => None,
        };
        let mut stage = Stage {
            brokers: Vec::new(),
            to_postgres: Vec::new(),
            to_brokers: Vec::new(),
            postgres,
            standby,
            disk,
            folder: Some(folder),
        };
        for number in 0..BROKERS {
            let database = stage.database().await;
            let mut broker = Broker::new(program, number, database, &path, stage.disk.folder())?;
            broker.start().await?;
            let proxy = Proxy::to_postgres(&format!("host=127.0.0.1 port={} user=nobody", broker.port)).await;
            stage.to_brokers.push(Arc::new(proxy));
            stage.brokers.push(broker);
        }
        stage.configure(plain).await?;
        // The cluster was created without waiting for the disk.
        stage.disk.sync();
        Ok(stage)
    }

    /// For the next broker: through its own proxy, or to both servers.
    async fn database(&mut self) -> String {
        let of =
            |hosts: &str, ports: &str| format!("host={hosts} port={ports} user={BROKER} dbname={BROKER}");
        match &self.standby {
            Some(standby) => {
                let ports = format!("{},{}", self.postgres.port, standby.server.port);
                of("127.0.0.1,127.0.0.1", &ports) + " target_session_attrs=read-write"
            }
            None => {
                let proxy = Proxy::to_postgres(&of("127.0.0.1", &self.postgres.port.to_string())).await;
                let url = proxy.url().to_owned();
                self.to_postgres.push(Arc::new(proxy));
                url
            }
        }
    }

    /// Clients reach the brokers through their proxies.
    pub fn targets(&self) -> Result<Vec<Target>> {
        self.to_brokers
            .iter()
            .map(|proxy| Target::from_url(&format!("http://127.0.0.1:{}", port(proxy)?)))
            .collect()
    }

    async fn configure(&self, plain: bool) -> Result<()> {
        let mut client = Client::new(self.targets()?.swap_remove(0));
        for (number, queue) in QUEUES.iter().enumerate() {
            let body = admin::configuration(u8::try_from(number)?, plain).to_string();
            let reply = client.post("/api/v1/configure", body.as_bytes()).await?;
            if reply.status >= 300 {
                bail!("cannot configure {queue}: {}", String::from_utf8_lossy(&reply.body));
            }
        }
        Ok(())
    }

    /// Keeps the logs of the brokers and of PostgreSQL.
    pub fn keep_logs(&mut self) -> Option<std::path::PathBuf> {
        self.folder.take().map(TempDir::keep)
    }
}

/// Its port.
pub fn port(proxy: &Proxy) -> Result<u16> {
    let config: Config = proxy.url().parse()?;
    config.get_ports().first().copied().context("a proxy has a port")
}

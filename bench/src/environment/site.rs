//! The environment of one series, from the start of the cluster to the stop of the broker.

use std::fmt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use tokio_postgres::Config;

use super::broker::Broker;
use super::cluster::Cluster;
use super::session::Session;
use crate::client::{Client, Target};
use crate::measure::{CpuWatch, Memory};

/// Where a broker comes from.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Started on a cluster of its own: program and arguments.
    Command(Vec<String>),
    /// Already running, on a database that is not accessible here.
    Url(String),
}

impl Source {
    pub fn queen(program: &Path) -> Source {
        Source::Command(vec![program.display().to_string(), "serve".to_owned()])
    }

    /// A URL, or a command split at whitespace.
    pub fn parse(text: &str) -> Source {
        match text.starts_with("http://") {
            true => Source::Url(text.to_owned()),
            false => Source::Command(text.split_whitespace().map(str::to_owned).collect()),
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Command(command) => write!(f, "{}", command.join(" ")),
            Source::Url(url) => write!(f, "{url}"),
        }
    }
}

pub struct Site {
    pub target: Target,
    /// The version in the `/health` response.
    pub broker_version: Option<String>,
    pub postgres_version: Option<String>,
    pub watch: CpuWatch,
    /// Of a broker that was started here.
    command: Vec<String>,
    /// Declared before the cluster: fields are dropped in order, and a broker should not outlive its database.
    broker: Option<Broker>,
    cluster: Option<Cluster>,
}

impl Site {
    pub async fn open(source: &Source) -> Result<Site> {
        let mut site = match source {
            Source::Url(url) => Site::at(Target::from_url(url)?),
            Source::Command(command) => {
                let cluster = Cluster::start().await?;
                let broker = Broker::start(command, &cluster.variables(), cluster.folder()).await?;
                Site {
                    watch: CpuWatch { broker_pid: Some(broker.pid), postgres_pid: Some(cluster.pid) },
                    postgres_version: Some(cluster.session().await?.server_version().await?),
                    target: Target::from_url(&broker.url)?,
                    broker_version: None,
                    command: command.clone(),
                    broker: Some(broker),
                    cluster: Some(cluster),
                }
            }
        };
        site.broker_version = health_version(&site.target).await?;
        Ok(site)
    }

    fn at(target: Target) -> Site {
        let watch = CpuWatch::default();
        Site {
            target,
            broker_version: None,
            postgres_version: None,
            watch,
            command: Vec::new(),
            broker: None,
            cluster: None,
        }
    }

    /// None if the database is not accessible.
    pub async fn session(&self) -> Result<Option<Session>> {
        match &self.cluster {
            Some(cluster) => Ok(Some(cluster.session().await?)),
            None => Ok(None),
        }
    }

    /// The broker's database, for direct access.
    pub fn database(&self) -> Result<Config> {
        Ok(self.cluster.as_ref().context("the broker's database is not accessible")?.broker_database())
    }

    /// Stops the broker, to use the database alone.
    pub async fn stop_broker(&mut self) -> Result<()> {
        match self.broker.take() {
            Some(broker) => broker.stop().await,
            None => Ok(()),
        }
    }

    /// Starts a new broker on the same database.
    pub async fn restart_broker(&mut self) -> Result<()> {
        self.restart_broker_with(&[]).await
    }

    /// Starts a new broker with additional arguments.
    pub async fn restart_broker_with(&mut self, arguments: &[&str]) -> Result<()> {
        self.stop_broker().await?;
        let cluster = self.cluster.as_ref().context("the broker was not started here")?;
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        let command: Vec<String> = self.command.iter().cloned().chain(arguments).collect();
        let broker = Broker::start(&command, &cluster.variables(), cluster.folder()).await?;
        self.target = Target::from_url(&broker.url)?;
        self.watch.broker_pid = Some(broker.pid);
        self.broker = Some(broker);
        Ok(())
    }

    pub fn broker_memory(&self) -> Option<Memory> {
        Memory::of(self.watch.broker_pid?)
    }

    /// An error if the broker exited early or did not stop cleanly.
    pub async fn close(mut self) -> Result<()> {
        self.stop_broker().await
    }
}

async fn health_version(target: &Target) -> Result<Option<String>> {
    #[derive(Deserialize)]
    struct Health {
        version: Option<String>,
    }
    let reply = Client::new(target.clone()).get("/health").await?;
    if reply.status != 200 {
        bail!("the broker is not healthy: {}", reply.status);
    }
    Ok(serde_json::from_slice::<Health>(&reply.body).ok().and_then(|health| health.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_a_url_or_a_command() {
        assert_eq!(Source::parse("http://127.0.0.1:1"), Source::Url("http://127.0.0.1:1".to_owned()));
        let command = Source::Command(vec!["queen".to_owned(), "serve".to_owned()]);
        assert_eq!(Source::parse(" queen  serve "), command);
        assert_eq!(Source::queen(Path::new("queen")), command);
        assert_eq!(command.to_string(), "queen serve");
    }
}

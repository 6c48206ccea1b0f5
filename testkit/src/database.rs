//! A database for one test, on the shared cluster if there is one. Knows nothing of Queen's schema.

use std::process::Stdio;
use std::thread;

use anyhow::{Context, Result, ensure};
use tokio::process::Command;
use tokio::runtime;
use tokio_postgres::{Client, Config};
use uuid::Uuid;

use crate::cluster::{Cluster, cluster};
use crate::{SHARED_CLUSTER, TEMPLATE, connect, url};

/// A copy of the template if there is one, otherwise empty.
pub async fn database() -> Database {
    match std::env::var_os(TEMPLATE) {
        Some(template) => made(&format!("template {}", template.display())).await,
        None => empty_database().await,
    }
}

pub async fn empty_database() -> Database {
    made("").await
}

/// On the shared cluster, or on a cluster of its own.
async fn made(how: &str) -> Database {
    if let Some(shared) = std::env::var_os(SHARED_CLUSTER) {
        return Database::make(shared.to_str().expect("a connection string is UTF-8"), how).await;
    }
    let cluster = cluster().await;
    let mut database = Database::create(&cluster.maintenance_url()).await;
    database.cluster = Some(cluster);
    database
}

/// Dropped on the server too, with any sessions that are still open.
#[derive(Debug)]
pub struct Database {
    name: String,
    url: String,
    maintenance_url: String,
    cluster: Option<Cluster>,
}

impl Database {
    /// On the cluster whose maintenance database this connection string names.
    pub async fn create(maintenance_url: &str) -> Self {
        Self::make(maintenance_url, "").await
    }

    async fn make(maintenance_url: &str, how: &str) -> Self {
        let name = format!("queen_test_{}", Uuid::new_v4().simple());
        let config: Config = maintenance_url.parse().expect("a connection string in keyword form");
        let maintenance = connect(maintenance_url).await.expect("the cluster takes connections");
        let create = maintenance.batch_execute(&format!("create database {name} {how}")).await;
        create.expect("a database can be created");
        let url = url::with_database(&config, &name);
        Self { name, url, maintenance_url: maintenance_url.to_owned(), cluster: None }
    }

    /// Makes this database a template: runs a command that fills it, with its address in `DATABASE_URL`, and then forbids
    /// connections.
    pub async fn into_template(self, command: &str) -> Result<String> {
        let words: Vec<&str> = command.split_whitespace().collect();
        let (program, arguments) = words.split_first().context("a template needs a command that fills it")?;
        let mut fill = Command::new(program);
        fill.args(arguments).env("DATABASE_URL", &self.url).stdin(Stdio::null());
        let status = fill.status().await.with_context(|| format!("cannot run {program}"))?;
        ensure!(status.success(), "`{command}` ended with {status}");
        let name = self.name.clone();
        // A template cannot be dropped, so it stays until the cluster is removed.
        let close = format!("alter database {name} with is_template true allow_connections false");
        connect(&self.maintenance_url).await?.batch_execute(&close).await?;
        Ok(name)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// In keyword form.
    pub fn url(&self) -> &str {
        &self.url
    }

    pub async fn client(&self) -> Client {
        connect(&self.url).await.expect("the database takes connections")
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        if self.cluster.is_some() {
            return; // The whole cluster is removed.
        }
        let (url, name) = (self.maintenance_url.clone(), self.name.clone());
        // The test's own runtime may be shutting down, so this needs another.
        let dropper = thread::spawn(move || {
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let maintenance = connect(&url).await?;
                maintenance.batch_execute(&format!("drop database if exists {name} with (force)")).await?;
                anyhow::Ok(())
            })
        });
        // A database that cannot be dropped is no reason to fail a test that passed.
        let _ = dropper.join();
    }
}

//! A private PostgreSQL that a test may stop, kill and start. It is not restarted automatically.

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use queen_postgres::{Connection, Postmaster, Settings};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio_postgres::Client;

use crate::{CLUSTER_TEMPLATE, connect};

/// Speed over safety: what these settings lose, they lose only when the machine crashes.
const EXTRA: [(&str, &str); 4] =
    [("fsync", "off"), ("full_page_writes", "off"), ("max_connections", "400"), ("shared_buffers", "128MB")];
const DROP_PATIENCE: Duration = Duration::from_secs(5);

/// Starts a private PostgreSQL.
pub async fn cluster() -> Cluster {
    cluster_with(&EXTRA).await
}

/// With these server settings, and otherwise Queen's usual ones.
pub async fn cluster_with(extra: &[(&str, &str)]) -> Cluster {
    let dir = folder();
    if let Some(template) = std::env::var_os(CLUSTER_TEMPLATE) {
        let copied = Command::new("cp").arg("-a").arg(template).arg(files(&dir)).status();
        assert!(copied.is_ok_and(|status| status.success()), "the template of clusters cannot be copied");
    }
    let extra = extra.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let settings = Settings { data_dir: dir.path().to_owned(), bin_dir: None, extra };
    let inner = queen_postgres::Cluster::open(settings).await.expect("a cluster can be created");
    let mut cluster = Cluster { postmaster: None, inner, dir };
    cluster.start().await;
    cluster
}

/// A cluster that is never started: copying it takes a fraction of the time of `initdb`. Returns the path of its files and the
/// folder that owns them.
pub async fn cluster_template() -> (TempDir, PathBuf) {
    let dir = folder();
    let settings = Settings { data_dir: dir.path().to_owned(), bin_dir: None, extra: Vec::new() };
    queen_postgres::Cluster::open(settings).await.expect("a cluster can be created");
    let files = files(&dir);
    (dir, files)
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("queen-test-").tempdir().expect("a temporary folder can be made")
}

fn files(dir: &TempDir) -> PathBuf {
    dir.path().join("postgres")
}

/// A PostgreSQL in a temporary folder. Dropping it shuts it down immediately and removes the folder.
#[derive(Debug)]
pub struct Cluster {
    postmaster: Option<Postmaster>,
    inner: queen_postgres::Cluster,
    dir: TempDir,
}

impl Cluster {
    pub fn url(&self) -> String {
        self.inner.connection().url()
    }

    /// Connection string of the maintenance database, from which others are created and dropped.
    pub fn maintenance_url(&self) -> String {
        let connection = self.inner.connection().clone();
        Connection { database: "postgres".to_owned(), ..connection }.url()
    }

    pub async fn client(&self) -> Client {
        connect(&self.url()).await.expect("the cluster takes connections")
    }

    /// The postmaster's process id.
    pub fn pid(&self) -> u32 {
        self.postmaster.as_ref().and_then(Postmaster::pid).expect("the cluster is running")
    }

    /// Switches to TLS on all TCP addresses, and accepts every user there.
    pub async fn offer_tls(&self, certificate: &str, key: &str) {
        let sql = self.client().await;
        let row = sql.query_one("show data_directory", &[]).await.expect("it has a folder");
        let dir = PathBuf::from(row.get::<_, String>(0));
        let owner = dir.metadata().expect("the folder can be seen");
        for (name, text) in [
            ("server.crt", certificate),
            ("server.key", key),
            ("pg_hba.conf", "local all all trust\nhost all all all trust\n"),
        ] {
            let path = dir.join(name);
            std::fs::write(&path, text).expect("the folder can be written");
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("the file is ours");
            chown(&path, Some(owner.uid()), Some(owner.gid())).expect("the file is ours");
        }
        let set = ["alter system set ssl = on", "select pg_reload_conf()"];
        for statement in set {
            sql.batch_execute(statement).await.expect("settings can be changed");
        }
    }

    /// A clean shutdown: sessions are ended, no recovery is needed.
    pub async fn stop(&mut self) {
        self.running().stop().await;
    }

    /// Kills the postmaster. Its sessions notice by themselves, busy ones a little later.
    pub async fn kill9(&mut self) {
        self.end(Signal::KILL).await;
    }

    /// Returns when it accepts connections again.
    pub async fn start(&mut self) {
        assert!(self.postmaster.is_none(), "the cluster is already running");
        self.postmaster = Some(self.inner.launch().await.expect("the cluster starts"));
    }

    /// An immediate shutdown, as in a crash, followed by a start with recovery.
    pub async fn restart_immediate(&mut self) {
        self.end(Signal::QUIT).await;
        self.start().await;
    }

    async fn end(&mut self, signal: Signal) {
        let mut postmaster = self.running();
        send(&postmaster, signal);
        postmaster.wait().await.expect("a child can be waited for");
    }

    fn running(&mut self) -> Postmaster {
        self.postmaster.take().expect("the cluster is running")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let Some(postmaster) = &self.postmaster else { return };
        send(postmaster, Signal::QUIT);
        // The postmaster removes this file last. Drop cannot await, and the folder is about to be removed.
        let pid_file = files(&self.dir).join("postmaster.pid");
        let deadline = Instant::now() + DROP_PATIENCE;
        while pid_file.exists() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn send(postmaster: &Postmaster, signal: Signal) {
    if let Some(pid) = postmaster.pid().and_then(|pid| Pid::from_raw(pid.cast_signed())) {
        // It may have exited already.
        let _ = kill_process(pid, signal);
    }
}

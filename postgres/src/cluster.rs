//! Prepares a data folder to run a server in, and launches that server. Does not watch it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::process::Command;
use tokio::time::{Instant, sleep};
use tracing::info;

use crate::account::Account;
use crate::binaries::Binaries;
use crate::connection::{Connection, PORT};
use crate::error::Error;
use crate::folder::Folder;
use crate::log::Log;
use crate::postmaster::Postmaster;
use crate::tuning::{self, Machine};
use crate::{Settings, create, pidfile, socket};

/// Sessions that outlive a killed postmaster notice at their next wait, usually within moments; a session in a long statement
/// may take longer.
const MEMORY_PATIENCE: Duration = Duration::from_secs(30);
const MEMORY_POLL: Duration = Duration::from_millis(100);

/// A cluster that is locked for us while this value exists.
#[derive(Debug)]
pub struct Cluster {
    folder: Folder,
    account: Account,
    binaries: Binaries,
    connection: Connection,
    extra: Vec<(String, String)>,
    machine: Machine,
}

impl Cluster {
    /// Locks the data folder, finds the programs, and creates the cluster if there is none.
    pub async fn open(settings: Settings) -> Result<Self, Error> {
        let folder = Folder::open(&settings.data_dir)?;
        let account = Account::choose(&folder.cluster())?;
        let existing = folder.cluster_version()?;
        let bin_dir = settings.bin_dir.as_deref();
        let binaries = Binaries::find(bin_dir, existing, &account, &folder.root).await?;
        if existing.is_none() {
            create::create(&binaries, &account, &folder).await?;
        }
        let connection = Connection::new(socket::choose(&folder.root, &account)?, PORT);
        let machine = Machine {
            memory_bytes: tuning::memory_bytes(),
            lz4: accepts(&binaries, &account, &folder, "wal_compression=lz4").await,
            pg_stat_statements: binaries.has_library("pg_stat_statements"),
        };
        Ok(Self { folder, account, binaries, connection, extra: settings.extra, machine })
    }

    pub fn data_dir(&self) -> &Path {
        &self.folder.root
    }

    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Starts the server and waits until it accepts connections. A server that is still running from an earlier launch is ended
    /// first.
    ///
    /// # Cancel safety
    /// A server that was launched but is not ready yet is asked to stop; the next launch waits for its end.
    pub async fn launch(&self) -> Result<Postmaster, Error> {
        self.end_leftover().await?;
        socket::clear(&self.connection.socket_dir);
        let deadline = Instant::now() + MEMORY_PATIENCE;
        loop {
            match self.launch_once().await {
                Err(Error::Exited { output, .. })
                    if output.contains("pre-existing shared memory block") && Instant::now() < deadline =>
                {
                    info!("sessions of the previous postgres are still ending; retrying");
                    sleep(MEMORY_POLL).await;
                }
                done => return done,
            }
        }
    }

    /// Ends a server that runs in this cluster without a [`Postmaster`].
    pub(crate) async fn end_leftover(&self) -> Result<(), Error> {
        pidfile::end_leftover(&self.folder.cluster()).await
    }

    async fn launch_once(&self) -> Result<Postmaster, Error> {
        let path = self.folder.root.join("postgres.log");
        let (file, log) = Log::open(&path).map_err(Error::io("open", &path))?;
        let again = file.try_clone().map_err(Error::io("open", &path))?;
        let mut command = self.command();
        command.stdout(file).stderr(again);
        let mut postmaster = Postmaster::spawn(command, &self.binaries.postgres())?;
        postmaster.ready(&self.folder.cluster(), &self.connection, &log).await?;
        info!(pid = postmaster.pid(), version = self.binaries.version, "postgres is ready");
        Ok(postmaster)
    }

    fn command(&self) -> Command {
        let cluster: PathBuf = self.folder.cluster();
        let mut command = self.account.command(&self.binaries.postgres(), &cluster);
        command.arg("-D").arg(&cluster);
        // The last value wins.
        for (name, value) in tuning::settings(self.machine) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        for (name, value) in &self.extra {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        let socket = socket::setting(&self.connection.socket_dir);
        command.arg("-c").arg(format!("unix_socket_directories={socket}"));
        command.arg("-c").arg(format!("port={PORT}"));
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Keeps its socket out of the temporary folder. Fails, as it should, if a server has its socket here.
        let _ = fs::remove_dir(&self.connection.socket_dir);
    }
}

/// Whether this build of the server supports a setting; compression methods are chosen at compile time.
async fn accepts(binaries: &Binaries, account: &Account, folder: &Folder, setting: &str) -> bool {
    let name = setting.split('=').next().unwrap_or(setting);
    let mut command = account.command(&binaries.postgres(), &folder.root);
    command.arg("-D").arg(folder.cluster()).args(["-c", setting, "-C", name]);
    command.output().await.is_ok_and(|output| output.status.success())
}

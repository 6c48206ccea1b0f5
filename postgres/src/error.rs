//! Everything that can keep the embedded server from running, with what to do about it.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "no PostgreSQL server found on this machine; install one (`apt-get install postgresql`, \
         `dnf install postgresql-server` or `brew install postgresql@16`), or set the folder that contains \
         `postgres` and `initdb` with --pg-bin-dir"
    )]
    NoBinaries,

    #[error("{} does not contain both `postgres` and `initdb`; check --pg-bin-dir", dir.display())]
    NotBinaries { dir: PathBuf },

    #[error("{} cannot be run: {reason}", program.display())]
    Broken { program: PathBuf, reason: String },

    #[error(
        "PostgreSQL {found} in {} is too old, {oldest} or later is needed; install a newer one or name \
         its folder with --pg-bin-dir", dir.display()
    )]
    TooOld { dir: PathBuf, found: u32, oldest: u32 },

    #[error(
        "the data folder was created by PostgreSQL {cluster}, but {} contains version {found}; install \
         PostgreSQL {cluster} beside it, or move the data with pg_upgrade", dir.display()
    )]
    OtherVersion { dir: PathBuf, found: u32, cluster: u32 },

    #[error("another queen is using {}{}", dir.display(), in_brackets(*pid))]
    InUse { dir: PathBuf, pid: Option<u32> },

    #[error(
        "PostgreSQL refuses to run as root, and this machine has no user `postgres` or `nobody`; \
         run queen as an ordinary user"
    )]
    NoAccount,

    #[error(
        "PostgreSQL runs as user `{user}`, which cannot access {}; allow it with `chmod o+x {}`, choose \
         another --data-dir, or run queen as an ordinary user", folder.display(), folder.display()
    )]
    NoWayIn { folder: PathBuf, user: String },

    #[error("{} belongs to user id {owner}; run queen as that user or as root", dir.display())]
    Foreign { dir: PathBuf, owner: u32 },

    #[error("{} exists but is not a PostgreSQL cluster; move it away or choose another --data-dir", dir.display())]
    NotACluster { dir: PathBuf },

    #[error("creating the PostgreSQL cluster failed:\n{output}")]
    Create { output: String },

    #[error(
        "no usable folder for the server's socket: each of {tried:?} has a too long path, is unusable, or belongs to another user"
    )]
    NoSocketDir { tried: Vec<PathBuf> },

    #[error("PostgreSQL exited during startup ({status}); the end of {}:\n{output}", log.display())]
    Exited { status: String, log: PathBuf, output: String },

    #[error("PostgreSQL was not ready after {seconds} s; see {}", log.display())]
    NotReady { seconds: u64, log: PathBuf },

    #[error("the PostgreSQL that an earlier queen left running (pid {pid}) does not stop; stop it manually")]
    Leftover { pid: i32 },

    #[error("no embedded PostgreSQL is running in {}", dir.display())]
    NotRunning { dir: PathBuf },

    #[error("cannot {doing} {}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
}

impl Error {
    /// For `map_err`: adds the failed step and the path, which an `io::Error` does not contain.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}

fn in_brackets(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (pid {pid})")).unwrap_or_default()
}

//! Parses `postmaster.pid`, and ends a server that outlived the Queen that started it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tokio::time::{Instant, sleep};
use tracing::{info, warn};

use crate::environment;
use crate::error::Error;

/// Sessions notice at their next wait that their postmaster is gone.
const SESSIONS_PATIENCE: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(20);
/// Fast shutdown first, which writes a checkpoint. An immediate one leaves recovery to the next start.
const ESCALATION: [(Signal, Duration); 2] =
    [(Signal::INT, Duration::from_secs(30)), (Signal::QUIT, Duration::from_secs(10))];

/// The lines of `postmaster.pid` that are used.
#[derive(Debug, PartialEq, Eq)]
pub struct PidFile {
    pub pid: Pid,
    pub port: u16,
    pub socket_dir: PathBuf,
    pub ready: bool,
}

/// `None` if there is no file, or one that is still being written.
pub fn read(cluster: &Path) -> Result<Option<PidFile>, Error> {
    let path = cluster.join("postmaster.pid");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(parse(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::io("read", &path)(error)),
    }
}

/// Whether this process is a server of this cluster. Pids are reused by unrelated processes.
pub fn runs_on(pid: Pid, cluster: &Path) -> bool {
    if Path::new("/proc/self/cwd").exists() {
        // A user's shell may have the same working folder.
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        // The working folder of a server is its cluster. A process that is dead but not reaped has none.
        let identity = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let theirs = identity(Path::new(&format!("/proc/{pid}/cwd")));
        let is_server = ["postgres", "postmaster"].contains(&name.trim());
        return is_server && theirs.is_some() && theirs == identity(cluster);
    }
    let mut ps = Command::new("ps");
    environment::limit(&mut ps, |_| false);
    let listed = ps.args(["-ww", "-o", "command=", "-p", &pid.to_string()]).output();
    let listed =
        listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    listed.contains("postgres") && listed.contains(&*cluster.to_string_lossy())
}

/// Ends the server that an earlier Queen left running in this cluster, if there is one. The data folder's lock must be held: it
/// proves that the server is no longer in use.
pub async fn end_leftover(cluster: &Path) -> Result<(), Error> {
    let Some(PidFile { pid, .. }) = read(cluster)? else { return Ok(()) };
    if !runs_on(pid, cluster) {
        return remove_if_stale(pid, cluster).await;
    }
    warn!(pid = pid.as_raw_pid(), "stopping the postgres that an earlier queen left running");
    for (signal, patience) in ESCALATION {
        let _ = kill_process(pid, signal);
        if within(patience, || !runs_on(pid, cluster)).await {
            info!(pid = pid.as_raw_pid(), "the postgres of the earlier queen has stopped");
            return Ok(());
        }
    }
    Err(Error::Leftover { pid: pid.as_raw_pid() })
}

/// PostgreSQL recognizes a pid without a process as stale by itself. A pid that another process has now, or that was never
/// reaped, would keep it from starting.
async fn remove_if_stale(pid: Pid, cluster: &Path) -> Result<(), Error> {
    if !is_taken(pid) {
        return Ok(());
    }
    // With this file, a new server detects sessions that outlived their postmaster, and refuses to start next to them: two
    // servers writing at once would corrupt the data. So wait for them before removing the file.
    if !within(SESSIONS_PATIENCE, || sessions(cluster).is_empty()).await {
        return Err(Error::Leftover { pid: sessions(cluster).first().map_or(0, |pid| pid.as_raw_pid()) });
    }
    let path = cluster.join("postmaster.pid");
    fs::remove_file(&path).map_err(Error::io("remove", &path))?;
    warn!(pid = pid.as_raw_pid(), "removed a stale postmaster.pid, whose pid now belongs to another process");
    Ok(())
}

async fn within(patience: Duration, done: impl Fn() -> bool) -> bool {
    let deadline = Instant::now() + patience;
    while !done() {
        if Instant::now() > deadline {
            return false;
        }
        sleep(POLL).await;
    }
    true
}

/// The server processes of this cluster; none on systems without `/proc`.
fn sessions(cluster: &Path) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
    pids.filter(|pid| runs_on(*pid, cluster)).collect()
}

fn is_taken(pid: Pid) -> bool {
    !matches!(test_kill_process(pid), Err(rustix::io::Errno::SRCH))
}

/// Lines: pid, cluster, start time, port, socket folder, address, shared memory, status.
fn parse(text: &str) -> Option<PidFile> {
    let mut lines = text.lines();
    // Negative for a single-user server.
    let pid = lines.next()?.trim().parse::<i32>().ok()?.checked_abs()?;
    let port = lines.nth(2).and_then(|line| line.trim().parse().ok()).unwrap_or_default();
    let socket_dir = lines.next().unwrap_or_default().into();
    let ready = lines.nth(2).is_some_and(|status| status.trim() == "ready");
    Some(PidFile { pid: Pid::from_raw(pid)?, port, socket_dir, ready })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pid_file_is_read_at_every_stage_of_its_life() {
        let begun = "4711\n/data/postgres\n1700000000\n5432\n/run/my queen\n\n";
        let file = parse(begun).unwrap();
        assert_eq!(file.pid.as_raw_pid(), 4711);
        assert_eq!((file.port, file.socket_dir.as_path()), (5432, Path::new("/run/my queen")));
        assert!(!file.ready);
        assert!(!parse(&format!("{begun}  1234   5\nstarting\n")).unwrap().ready);
        assert!(parse(&format!("{begun}  1234   5\nready   \n")).unwrap().ready);
        assert_eq!(parse(""), None);
    }
}

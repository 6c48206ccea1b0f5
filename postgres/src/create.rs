//! Creates the cluster and the database in it, all or nothing: it is built next to its final place and moved there when
//! complete.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Output, Stdio};

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tracing::info;

use crate::account::Account;
use crate::binaries::Binaries;
use crate::connection::NAME;
use crate::error::Error;
use crate::folder::Folder;

/// Left behind if the process is killed, and removed by the next start.
const UNFINISHED: &str = "postgres.new";

pub async fn create(binaries: &Binaries, account: &Account, folder: &Folder) -> Result<(), Error> {
    let cluster = folder.cluster();
    info!(dir = %cluster.display(), version = binaries.version, "creating a PostgreSQL cluster");
    // Characters as in Unicode, ordered by bytes: the same on every machine, and the fastest to compare. Old systems have no
    // C.UTF-8; plain C only knows ASCII letters.
    let mut unfinished = folder.fresh(UNFINISHED, account)?;
    if initdb(binaries, account, &unfinished, "C.UTF-8").await.is_err() {
        unfinished = folder.fresh(UNFINISHED, account)?;
        initdb(binaries, account, &unfinished, "C").await?;
    }
    create_database(binaries, account, &unfinished).await?;
    fs::rename(&unfinished, &cluster).map_err(Error::io("move the new cluster to", &cluster))?;
    File::open(&folder.root).and_then(|root| root.sync_all()).map_err(Error::io("sync", &folder.root))
}

async fn initdb(binaries: &Binaries, account: &Account, dir: &Path, locale: &str) -> Result<(), Error> {
    let mut command = account.command(&binaries.initdb(), dir);
    command.arg("-D").arg(dir).args(["-U", NAME, "-E", "UTF8", "--data-checksums", "--no-instructions"]);
    command.args(["--locale", locale, "--lc-collate", "C"]);
    // The private folder of the socket controls access: every process that can open the socket may connect.
    command.args(["--auth-local", "trust", "--auth-host", "reject"]);
    run(command, "").await
}

/// Uses the single-user server: no socket, no second program, and done before the cluster is in place.
async fn create_database(binaries: &Binaries, account: &Account, dir: &Path) -> Result<(), Error> {
    let mut command = account.command(&binaries.postgres(), dir);
    command.arg("--single").arg("-D").arg(dir).args(["-c", "exit_on_error=on", "postgres"]);
    run(command, &format!("create database {NAME}\n")).await
}

async fn run(mut command: Command, input: &str) -> Result<(), Error> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed = |output: String| Error::Create { output };
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // If the program exited early, its stderr says why better than a broken pipe does.
        let _ = stdin.write_all(input.as_bytes()).await;
    }
    let output = child.wait_with_output().await.map_err(|error| failed(error.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed(said(&output))) }
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text);
    format!("{}\n({})", text.trim(), output.status)
}

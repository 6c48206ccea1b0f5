//! When the server cannot start, the error says why and what to do.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use queen_postgres::{Error, Settings};
use tempfile::tempdir;

use crate::{settings, start};

async fn refusal(settings: Settings) -> (Error, String) {
    let error = queen_postgres::start(settings).await.unwrap_err();
    let text = error.to_string();
    (error, text)
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// A folder of programs that only print a version.
fn fake_binaries(dir: &Path, version: &str) {
    for program in ["postgres", "initdb"] {
        let path = dir.join(program);
        fs::write(&path, format!("#!/bin/sh\necho '{program} (PostgreSQL) {version}'\n")).unwrap();
        chmod(&path, 0o755);
    }
    chmod(dir, 0o755);
}

#[tokio::test]
async fn a_second_queen_is_refused_with_the_pid_of_the_first() {
    let dir = tempdir().unwrap();
    let embedded = start(dir.path()).await;
    let (error, text) = refusal(settings(dir.path())).await;
    assert!(matches!(error, Error::InUse { .. }));
    assert!(text.contains("another queen is using"), "{text}");
    assert!(text.ends_with(&format!("(pid {})", std::process::id())), "{text}");
    embedded.stop().await;
    start(dir.path()).await.stop().await;
}

#[tokio::test]
async fn a_folder_without_the_programs_is_named() {
    let dir = tempdir().unwrap();
    let bin = tempdir().unwrap();
    let (error, text) = refusal(Settings { bin_dir: Some(bin.path().into()), ..settings(dir.path()) }).await;
    assert!(matches!(error, Error::NotBinaries { .. }));
    assert!(text.contains("--pg-bin-dir") && text.contains(bin.path().to_str().unwrap()), "{text}");
}

#[test]
fn without_any_programs_it_says_what_to_install() {
    let text = Error::NoBinaries.to_string();
    for help in ["apt-get install postgresql", "dnf install", "brew install", "--pg-bin-dir"] {
        assert!(text.contains(help), "{text}");
    }
}

#[tokio::test]
async fn an_old_server_is_refused() {
    let dir = tempdir().unwrap();
    let bin = tempdir().unwrap();
    fake_binaries(bin.path(), "12.3");
    let (error, text) = refusal(Settings { bin_dir: Some(bin.path().into()), ..settings(dir.path()) }).await;
    assert!(matches!(error, Error::TooOld { found: 12, .. }), "{text}");
}

#[tokio::test]
async fn a_cluster_of_another_release_is_not_touched() {
    let dir = tempdir().unwrap();
    let cluster = dir.path().join("postgres");
    fs::create_dir(&cluster).unwrap();
    fs::write(cluster.join("PG_VERSION"), "9\n").unwrap();
    let (error, text) = refusal(settings(dir.path())).await;
    assert!(matches!(error, Error::OtherVersion { cluster: 9, .. }), "{text}");
}

#[tokio::test]
async fn something_else_in_the_place_of_the_cluster_is_not_touched() {
    let dir = tempdir().unwrap();
    fs::create_dir(dir.path().join("postgres")).unwrap();
    fs::write(dir.path().join("postgres/notes.txt"), "mine").unwrap();
    let (error, text) = refusal(settings(dir.path())).await;
    assert!(matches!(error, Error::NotACluster { .. }), "{text}");
    assert!(dir.path().join("postgres/notes.txt").exists());
}

#[tokio::test]
async fn a_closed_folder_on_the_way_is_named_and_left_closed() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root runs the server as another user.
    }
    let dir = tempdir().unwrap();
    let closed = fs::canonicalize(dir.path()).unwrap();
    chmod(&closed, 0o700);
    let (error, text) = refusal(settings(&dir.path().join("queen"))).await;
    assert!(matches!(&error, Error::NoWayIn { folder, .. } if *folder == closed), "{text}");
    assert!(text.contains(&format!("chmod o+x {}", closed.display())), "{text}");
    assert_eq!(fs::metadata(&closed).unwrap().permissions().mode() & 0o777, 0o700);

    // The data folder now contains something that is not ours, so it is treated like any other folder.
    let (error, text) = refusal(settings(dir.path())).await;
    assert!(matches!(&error, Error::NoWayIn { folder, .. } if *folder == closed), "{text}");
}

#[tokio::test]
async fn an_empty_data_folder_is_opened_just_enough() {
    let dir = tempdir().unwrap();
    chmod(dir.path(), 0o700);
    start(dir.path()).await.stop().await;
    let expected = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
    assert_eq!(fs::metadata(dir.path()).unwrap().permissions().mode() & 0o777, expected);
}

#[tokio::test]
async fn a_setting_the_server_rejects_is_shown_in_its_own_words() {
    let dir = tempdir().unwrap();
    let mut settings = settings(dir.path());
    settings.extra.push(("max_connections".to_owned(), "many".to_owned()));
    let (error, text) = refusal(settings).await;
    assert!(matches!(error, Error::Exited { .. }), "{text}");
    assert!(text.contains("invalid value for parameter \"max_connections\""), "{text}");
}

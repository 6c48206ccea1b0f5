//! Normal operation: first start, restart, settings, unusual paths, unprivileged users.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};

use queen_postgres::{Error, describe};
use tempfile::tempdir;

use crate::{
    assert_marked, connect, eventually, leave_mark, lives, postmaster, settings, spawn_other_queen, start,
};

#[tokio::test]
async fn the_first_start_creates_a_cluster_and_the_second_finds_its_data() {
    let dir = tempdir().unwrap();
    let data_dir = dir.path().join("a/new/folder");
    let embedded = start(&data_dir).await;
    leave_mark(&embedded.url()).await;
    assert_eq!(describe(&data_dir).unwrap(), *embedded.connection());
    let pid = postmaster(&data_dir).unwrap();
    embedded.stop().await;
    assert!(!lives(pid));
    assert!(matches!(describe(&data_dir), Err(Error::NotRunning { .. })));

    let embedded = start(&data_dir).await;
    assert_marked(&embedded.url()).await;
    embedded.stop().await;
}

#[tokio::test]
async fn our_settings_are_in_force_and_extra_ones_win() {
    let dir = tempdir().unwrap();
    let mut settings = settings(dir.path());
    settings.extra.push(("max_connections".to_owned(), "17".to_owned()));
    settings.extra.push(("port".to_owned(), "1".to_owned()));
    let embedded = queen_postgres::start(settings).await.unwrap();
    let client = connect(&embedded.url()).await;
    for (name, expected) in [
        ("max_connections", "17"),
        ("port", "5432"),
        ("listen_addresses", ""),
        ("synchronous_commit", "on"),
        ("max_wal_size", "4GB"),
        ("data_checksums", "on"),
        ("server_encoding", "UTF8"),
        ("lc_collate", "C"),
    ] {
        let row = client.query_one("select current_setting($1)", &[&name]).await;
        // lc_collate stopped being a setting in PostgreSQL 16.
        let Ok(row) = row else { continue };
        assert_eq!(row.get::<_, String>(0), expected, "{name}");
    }
    embedded.stop().await;
}

#[tokio::test]
async fn a_long_path_keeps_its_socket_elsewhere() {
    let dir = tempdir().unwrap();
    let data_dir = dir.path().join("long".repeat(30));
    let embedded = start(&data_dir).await;
    let socket_dir = embedded.connection().socket_dir.clone();
    assert!(!socket_dir.starts_with(&data_dir));
    assert_eq!(fs::metadata(&socket_dir).unwrap().mode() & 0o777, 0o700);
    leave_mark(&embedded.url()).await;
    assert_eq!(describe(&data_dir).unwrap().socket_dir, socket_dir);
    embedded.stop().await;
    assert!(!socket_dir.exists(), "left behind in the temporary folder");
}

#[tokio::test]
async fn a_path_may_hold_spaces_quotes_and_commas() {
    let dir = tempdir().unwrap();
    for name in [r#"ann's "own" folder"#, "a, b"] {
        let embedded = start(&dir.path().join(name)).await;
        leave_mark(&embedded.url()).await;
        embedded.stop().await;
    }
}

#[tokio::test]
async fn dropping_it_stops_the_server_too() {
    let dir = tempdir().unwrap();
    drop(start(dir.path()).await);
    eventually("the exit of postgres", async || postmaster(dir.path()).is_none().then_some(())).await;
}

#[tokio::test]
async fn an_ordinary_user_runs_it_as_themselves_and_root_carries_on_as_that_user() {
    const NOBODY: u32 = 65534;
    if !rustix::process::geteuid().is_root() {
        return; // All other tests here already ran as an ordinary user.
    }
    let dir = tempdir().unwrap();
    chown(dir.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let mut other = spawn_other_queen(dir.path(), Some(NOBODY));
    drop(other.stdin.take());
    assert!(other.wait().unwrap().success());

    let embedded = start(dir.path()).await;
    assert_marked(&embedded.url()).await;
    let owner = fs::metadata(dir.path().join("postgres/postmaster.pid")).unwrap().uid();
    assert_eq!(owner, NOBODY);
    embedded.stop().await;
}

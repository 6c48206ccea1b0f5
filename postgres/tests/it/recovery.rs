//! Kills at every moment, and recovery from what they leave behind.

use std::fs;
use std::process::Command;

use rustix::process::Pid;
use tempfile::tempdir;
use tokio::time::timeout;

use crate::{
    PATIENCE, assert_marked, connect, eventually, kill9, leave_mark, lives, postmaster, spawn_other_queen,
    start,
};

#[tokio::test]
async fn a_killed_server_comes_back_with_its_data() {
    let dir = tempdir().unwrap();
    let embedded = start(dir.path()).await;
    leave_mark(&embedded.url()).await;
    for _ in 0..2 {
        // A session that is busy when its postmaster dies keeps the shared memory until it is done.
        let busy = connect(&embedded.url()).await;
        let counting = busy.batch_execute("select count(*) from generate_series(1, 10000000)");
        let before = postmaster(dir.path()).unwrap();
        let kill = async {
            let client = connect(&embedded.url()).await;
            let active =
                "select 1 from pg_stat_activity where query like 'select count%' and state = 'active'";
            let seen = async || client.query_opt(active, &[]).await.unwrap().map(drop);
            eventually("the busy session", seen).await;
            kill9(before);
        };
        let _ = tokio::join!(counting, kill);
        let back = async || postmaster(dir.path()).filter(|pid| *pid != before && lives(*pid));
        eventually("a new postmaster", back).await;
        assert_marked(&embedded.url()).await;
    }
    embedded.stop().await;
}

#[tokio::test]
async fn a_server_that_outlived_its_queen_is_replaced() {
    let dir = tempdir().unwrap();
    let mut other = spawn_other_queen(dir.path(), None);
    other.kill().unwrap();
    other.wait().unwrap();
    let orphan = postmaster(dir.path()).unwrap();
    assert!(lives(orphan));

    let embedded = start(dir.path()).await;
    assert!(!lives(orphan));
    assert_marked(&embedded.url()).await;
    embedded.stop().await;
}

#[tokio::test]
async fn when_queen_and_server_are_both_killed_the_data_is_still_there() {
    let dir = tempdir().unwrap();
    let mut other = spawn_other_queen(dir.path(), None);
    let server = postmaster(dir.path()).unwrap();
    other.kill().unwrap();
    kill9(server);
    other.wait().unwrap();

    let embedded = start(dir.path()).await;
    assert_marked(&embedded.url()).await;
    embedded.stop().await;
}

#[tokio::test]
async fn a_pid_file_that_names_another_program_is_ignored_and_so_is_the_program() {
    let dir = tempdir().unwrap();
    let embedded = start(dir.path()).await;
    leave_mark(&embedded.url()).await;
    let pid_file = dir.path().join("postgres/postmaster.pid");
    let text = fs::read_to_string(&pid_file).unwrap();
    embedded.stop().await;

    let mut bystander = Command::new("sleep").arg("600").spawn().unwrap();
    let lines = text.split_once('\n').unwrap().1;
    fs::write(&pid_file, format!("{}\n{lines}", bystander.id())).unwrap();
    let embedded = start(dir.path()).await;
    assert_marked(&embedded.url()).await;
    embedded.stop().await;
    assert!(lives(Pid::from_raw(bystander.id().cast_signed()).unwrap()));
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}

#[tokio::test]
async fn an_unfinished_cluster_is_thrown_away() {
    let dir = tempdir().unwrap();
    fs::create_dir_all(dir.path().join("postgres.new/base")).unwrap();
    fs::write(dir.path().join("postgres.new/PG_VERSION"), "15\n").unwrap();
    fs::write(dir.path().join("queen.lock"), "4711\n").unwrap();
    let embedded = start(dir.path()).await;
    leave_mark(&embedded.url()).await;
    embedded.stop().await;
    assert!(!dir.path().join("postgres.new").exists());
}

#[tokio::test]
async fn a_server_that_cannot_come_back_does_not_hold_up_the_stop() {
    let dir = tempdir().unwrap();
    let embedded = start(dir.path()).await;
    let log = dir.path().join("postgres.log");
    fs::rename(dir.path().join("postgres/global/pg_control"), dir.path().join("lost")).unwrap();
    kill9(postmaster(dir.path()).unwrap());
    let complaint =
        async || fs::read_to_string(&log).unwrap().contains("could not find the database").then_some(());
    eventually("a failed restart", complaint).await;
    timeout(PATIENCE, embedded.stop()).await.unwrap();
}

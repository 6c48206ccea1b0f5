//! Tests of the embedded server: real starts, kills and refusals. They need an installed PostgreSQL and nothing else.

#![expect(clippy::unwrap_used, reason = "in a test, to panic is to fail")]

mod lifecycle;
mod recovery;
mod refusal;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use queen_postgres::{Embedded, Settings};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};
use tokio_postgres::{Client, NoTls};

const PATIENCE: Duration = Duration::from_secs(30);

fn settings(data_dir: &Path) -> Settings {
    // Small, so that several tests can run at once.
    let extra = vec![("shared_buffers".to_owned(), "16MB".to_owned())];
    Settings { data_dir: data_dir.to_owned(), bin_dir: None, extra }
}

async fn start(data_dir: &Path) -> Embedded {
    queen_postgres::start(settings(data_dir)).await.unwrap()
}

#[expect(clippy::disallowed_methods, reason = "a test's connection lives as long as its client")]
async fn try_connect(url: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

async fn connect(url: &str) -> Client {
    eventually("a connection", async || try_connect(url).await).await
}

/// Writes a row that is only found again in the same cluster.
async fn leave_mark(url: &str) {
    connect(url).await.batch_execute("create table mark as select 42 as answer").await.unwrap();
}

async fn assert_marked(url: &str) {
    let row = connect(url).await.query_one("select answer from mark", &[]).await.unwrap();
    assert_eq!(row.get::<_, i32>(0), 42);
}

/// The pid in `postmaster.pid`.
fn postmaster(data_dir: &Path) -> Option<Pid> {
    let text = fs::read_to_string(data_dir.join("postgres/postmaster.pid")).ok()?;
    text.lines().next()?.parse().ok().and_then(Pid::from_raw)
}

fn kill9(pid: Pid) {
    kill_process(pid, Signal::KILL).unwrap();
}

fn lives(pid: Pid) -> bool {
    // A process that is dead but not reaped has no working folder.
    fs::metadata(format!("/proc/{}/cwd", pid.as_raw_nonzero())).is_ok()
}

async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "no sign of {what}");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Another process that starts the server of `data_dir` and holds it until its stdin closes: this test program, asked to run
/// only `other_queen`.
fn spawn_other_queen(data_dir: &Path, uid: Option<u32>) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--ignored", "--exact", "other_queen", "--nocapture"]).env("OTHER_QUEEN_DIR", data_dir);
    command.current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let ready =
        output.by_ref().lines().map_while(Result::ok).any(|line| line.contains("other queen is ready"));
    assert!(ready, "the other queen did not start");
    // Kept open, because its last output would fail on a broken pipe.
    child.stdout = Some(output.into_inner());
    child
}

#[tokio::test]
#[ignore = "the body of the process that `spawn_other_queen` starts"]
async fn other_queen() {
    let embedded = start(Path::new(&std::env::var_os("OTHER_QUEEN_DIR").unwrap())).await;
    leave_mark(&embedded.url()).await;
    println!("other queen is ready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
    embedded.stop().await;
}

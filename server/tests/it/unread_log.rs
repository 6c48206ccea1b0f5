//! A broker whose log output cannot be written continues to run.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

/// Starts a broker with this as standard error. It has to respond to a change, and to stop on a signal.
async fn works(stderr: Stdio, format: &str) {
    let (database, spool) = (queen_testkit::database().await, TempDir::new().unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_queen"));
    command.args(["--database-url", database.url(), "--log-format", format, "--log-level", "debug"]);
    command.envs([("HOST", "127.0.0.1"), ("PORT", "0")]).env("FILE_BUFFER_DIR", spool.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).kill_on_drop(true);
    let mut broker = command.spawn().unwrap();
    let mut said = BufReader::new(broker.stdout.take().unwrap()).lines();
    let mut url = None;
    while let Some(line) = timeout(Duration::from_secs(60), said.next_line()).await.unwrap().unwrap() {
        if let Some((_, address)) = line.split_once("listening on ") {
            url = Some(address.to_owned());
            break;
        }
    }
    // From here on, standard output has no reader either.
    drop(said);
    let Some(url) = url else { panic!("it ended with {}", broker.wait().await.unwrap()) };
    let body = json!({"queue": "q"}).to_string();
    let asked = reqwest::Client::new().post(format!("{url}/api/v1/configure")).body(body);
    let answer = asked.timeout(Duration::from_secs(20)).send().await.expect("an answer");
    assert_eq!(answer.status().as_u16(), 200);
    let pid = Pid::from_raw(broker.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = timeout(Duration::from_secs(20), broker.wait()).await.expect("it ends").unwrap();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test]
async fn a_log_without_a_reader_holds_up_neither_requests_nor_the_end() {
    for format in ["text", "json"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        works(writer.into(), format).await;
    }
}

#[tokio::test]
async fn a_log_on_a_full_disk_holds_up_neither_the_start_nor_the_end() {
    works(File::options().write(true).open("/dev/full").unwrap().into(), "text").await;
}

//! `consume`: following a queue, running commands, and stopping without losing messages.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::json;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use super::{PATIENCE, QUEEN, end, gone, insist, queen, run, signal, unread};
use crate::support::{Server, eventually};

/// A consumer in the background, and what it prints.
fn start(server: &Server, arguments: &[&str]) -> (Child, Lines<BufReader<ChildStdout>>) {
    let mut child = queen(&server.url, arguments).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    (child, lines)
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    timeout(PATIENCE, lines.next_line()).await.expect("a line").unwrap().expect("a line")
}

#[tokio::test]
async fn messages_are_printed_as_they_come_and_acknowledged_once_they_are() {
    let server = Server::start().await;
    let (child, mut lines) = start(&server, &["consume", "orders", "--group", "g", "--limit", "3"]);
    run(&server.url, &["push", "orders", "1", "2", "-p", "a"]).await.code(0);
    assert_eq!([next(&mut lines).await, next(&mut lines).await], ["1", "2"]);
    run(&server.url, &["push", "orders", "3", "-p", "b"]).await.code(0);
    assert_eq!(next(&mut lines).await, "3");
    assert_eq!(end(child).await.code(0).err, "");
    run(&server.url, &["pop", "orders", "--group", "g"]).await.code(3);
    let idle = ["consume", "orders", "--group", "other", "--idle", "300ms", "--partitions", "5", "--json"];
    let mut all = run(&server.url, &idle).await.code(0).lines();
    all.sort_by_key(|line| line["data"].as_u64());
    let data: Vec<_> = all.iter().map(|line| (&line["partition"], &line["data"])).collect();
    assert_eq!(data, [(&json!("a"), &json!(1)), (&json!("a"), &json!(2)), (&json!("b"), &json!(3))]);
}

#[tokio::test]
async fn a_command_gets_the_payload_and_its_exit_code_decides() {
    let server = Server::start().await;
    run(&server.url, &["queues", "configure", "orders", "retryLimit=0"]).await.code(0);
    run(&server.url, &["push", "orders", r#"{"n":1}"#, r#"{"n":2}"#, "-p", "lane 7"]).await.code(0);
    let script = r#"read line
        echo "$line $QUEEN_QUEUE $QUEEN_PARTITION $QUEEN_GROUP $QUEEN_RETRY_COUNT $QUEEN_URL"
        case "$line" in *2*) echo "first" >&2; echo "no money" >&2; exit 7;; esac"#;
    let consume = ["consume", "orders", "--group", "billing", "--limit", "2", "--exec", script];
    let said = run(&server.url, &consume).await.code(1);
    let line = |n| format!("{{\"n\":{n}}} orders lane 7 billing 0 {}\n", server.url);
    assert_eq!(said.out, line(1) + &line(2));
    assert!(said.err.contains("no money"), "what it says is passed on: {}", said.err);
    let letters = run(&server.url, &["dlq", "list", "orders", "--json"]).await.json();
    assert_eq!((letters.as_array().unwrap().len(), &letters[0]["data"]), (1, &json!({"n": 2})));
    assert_eq!(letters[0]["error"], "exit code 7: first\nno money");
}

/// A command that prints when it has started, and continues on request.
struct Held {
    dir: TempDir,
}

impl Held {
    fn new() -> Self {
        Self { dir: TempDir::new().unwrap() }
    }

    /// `then`: the last command of the script.
    fn script(&self, then: &str) -> String {
        let dir = self.dir.path().display();
        format!("touch {dir}/began; while [ ! -e {dir}/go ]; do sleep 0.05; done; {then}")
    }

    async fn began(&self) {
        let began = self.dir.path().join("began");
        eventually("the command runs", async || began.exists().then_some(())).await;
    }

    fn go(&self) {
        std::fs::write(self.dir.path().join("go"), "").unwrap();
    }
}

#[tokio::test]
async fn a_signal_lets_the_command_finish_and_gives_back_the_rest() {
    let numbers: Vec<String> = (1..=50).map(|number| number.to_string()).collect();
    let numbers: Vec<&str> = numbers.iter().map(String::as_str).collect();
    for kind in [Signal::INT, Signal::TERM, Signal::HUP] {
        let server = Server::start().await;
        let held = Held::new();
        run(&server.url, &[&["push", "orders"], &numbers[..], &["-p", "a"]].concat()).await.code(0);
        let consume = ["consume", "orders", "--group", "g", "--batch", "50", "--lease", "10m"];
        let (child, mut lines) = start(&server, &[&consume[..], &["--exec", &held.script("cat")]].concat());
        held.began().await;
        signal(&child, kind);
        held.go();
        let mut done = Vec::new();
        while let Some(line) =
            timeout(PATIENCE, lines.next_line()).await.expect("a line, or the end").unwrap()
        {
            done.push(line);
        }
        end(child).await.code(130);
        // The signal may be seen only when the next command has begun.
        assert!((1..numbers.len()).contains(&done.len()), "{done:?}");
        let popped = run(&server.url, &["pop", "orders", "--group", "g", "-n", "50"]).await.code(0);
        done.extend(popped.out.lines().map(str::to_owned));
        assert_eq!(done, numbers, "nothing is leased any more");
    }
}

#[tokio::test]
async fn who_is_started_with_hangups_ignored_goes_on_without_a_terminal() {
    let server = Server::start().await;
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("trap '' HUP; exec {QUEEN} consume orders --group g"));
    shell.env("QUEEN_URL", &server.url).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let mut child = shell.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    for message in ["1", "2"] {
        run(&server.url, &["push", "orders", message, "-p", "a"]).await.code(0);
        assert_eq!(next(&mut lines).await, message);
        signal(&child, Signal::HUP);
    }
    run(&server.url, &["push", "orders", "3", "-p", "a"]).await.code(0);
    assert_eq!(next(&mut lines).await, "3");
    signal(&child, Signal::TERM);
    end(child).await.code(130);
}

/// The consumer completes what comes before message 3, and is killed while it processes message 3.
#[tokio::test]
async fn who_is_killed_in_the_middle_of_a_batch_loses_nothing() {
    let server = Server::start().await;
    let dir = TempDir::new().unwrap();
    let (done, pid) = (dir.path().join("done"), dir.path().join("pid"));
    run(&server.url, &["push", "orders", "1", "2", "3", "4", "5", "-p", "a"]).await.code(0);
    let script = format!(
        "read n; if [ $n = 3 ]; then echo $$ > {0}.new; mv {0}.new {0}; sleep 600; fi; echo $n >> {1}",
        pid.display(),
        done.display()
    );
    let consume = ["consume", "orders", "-g", "g", "--batch", "5", "--lease", "2s", "--exec", &script];
    let mut child = queen(&server.url, &consume).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let left = eventually("it is at 3", async || std::fs::read_to_string(&pid).ok()).await;
    signal(&child, Signal::KILL);
    timeout(PATIENCE, child.wait()).await.expect("it ends").unwrap();
    // Nothing else ends the command.
    kill_process_group(Pid::from_raw(left.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    assert_eq!(std::fs::read_to_string(&done).unwrap(), "1\n2\n");

    let again = run(&server.url, &["consume", "orders", "-g", "g", "-n", "3", "--exec", "cat"]).await.code(0);
    assert_eq!(again.out, "3\n4\n5\n", "once its lease is over");
    run(&server.url, &["pop", "orders", "-g", "g"]).await.code(3);
    assert_eq!(run(&server.url, &["dlq", "list", "orders", "--json"]).await.json(), json!([]));
}

#[tokio::test]
async fn a_second_signal_ends_the_command_as_well() {
    let server = Server::start().await;
    let dir = TempDir::new().unwrap();
    let pid = dir.path().join("pid");
    run(&server.url, &["push", "orders", "1"]).await.code(0);
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; sleep 600", pid.display());
    let mut child =
        queen(&server.url, &["consume", "orders", "--exec", &script]).stdout(Stdio::null()).spawn().unwrap();
    let running = eventually("the command runs", async || std::fs::read_to_string(&pid).ok()).await;
    let running = Pid::from_raw(running.trim().parse().unwrap()).unwrap();
    signal(&child, Signal::INT);
    let early = timeout(Duration::from_millis(300), child.wait()).await;
    assert!(early.is_err(), "it waits for the command: {early:?}");
    signal(&child, Signal::TERM);
    end(child).await.code(130);
    eventually("the command is gone", async || {
        rustix::process::test_kill_process(running).is_err().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_reader_that_leaves_ends_it_quietly_without_loss() {
    let server = Server::start().await;
    let (child, mut lines) = start(&server, &["consume", "orders", "--group", "g", "--lease", "10m"]);
    run(&server.url, &["push", "orders", "1", "-p", "a"]).await.code(0);
    assert_eq!(next(&mut lines).await, "1");
    drop(lines);
    assert_eq!(end(child).await.code(0).err, "", "it does not wait for something to write");
    run(&server.url, &["push", "orders", "2", "3", "-p", "a"]).await.code(0);
    let consume = ["consume", "orders", "--group", "g", "--lease", "10m"];
    assert_eq!(unread(&server.url, &consume).await.code(0).err, "");
    let popped = run(&server.url, &["pop", "orders", "--group", "g", "-n", "9"]).await.code(0);
    assert_eq!(popped.out, "2\n3\n");
}

/// The queue has no retries: every failure would be a dead letter.
async fn unforgiving(messages: &[&str]) -> Server {
    let server = Server::start().await;
    run(&server.url, &["queues", "configure", "orders", "retryLimit=0"]).await.code(0);
    run(&server.url, &[&["push", "orders", "-p", "a"], messages].concat()).await.code(0);
    server
}

/// All messages are still there for the next consumer, without failures or dead letters.
async fn untouched(server: &Server, messages: &str) {
    let popped = run(&server.url, &["pop", "orders", "-g", "g", "-n", "9", "--json"]).await.code(0).lines();
    let data: String = popped.iter().map(|message| format!("{}\n", message["data"])).collect();
    assert_eq!(data, messages);
    assert!(popped.iter().all(|message| message["retryCount"] == 0), "{popped:?}");
    assert_eq!(run(&server.url, &["dlq", "list", "orders", "--json"]).await.json(), json!([]));
}

#[tokio::test]
async fn a_closed_standard_output_is_not_a_failure_of_the_message() {
    let server = unforgiving(&["1", "2", "3"]).await;
    let held = Held::new();
    let script = format!("echo heard; {}", held.script("echo unheard; exit 1"));
    let consume = ["consume", "orders", "-g", "g", "--batch", "3", "--lease", "10m", "--exec", &script];
    let (child, mut lines) = start(&server, &consume);
    assert_eq!(next(&mut lines).await, "heard");
    drop(lines);
    held.go();
    assert_eq!(end(child).await.code(0).err, "");
    untouched(&server, "1\n2\n3\n").await;
}

#[tokio::test]
async fn a_command_that_cannot_be_run_is_not_the_messages_fault() {
    let server = unforgiving(&["1", "2", "3"]).await;
    let consume =
        ["consume", "orders", "-g", "g", "--batch", "3", "--lease", "10m", "--exec", "./no-such-thing"];
    let said = run(&server.url, &consume).await.code(1);
    assert!(said.err.contains("cannot run the command") && said.err.contains("not found"), "{}", said.err);
    assert!(!said.err.contains("refused"), "{}", said.err);
    untouched(&server, "1\n2\n3\n").await;
    run(&server.url, &["seek", "orders", "g", "beginning"]).await.code(0);
    let output = queen(&server.url, &consume).env("PATH", "/nowhere").output().await.unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot run sh"), "{output:?}");
    untouched(&server, "1\n2\n3\n").await;
}

#[tokio::test]
async fn who_looks_on_does_not_wait_for_a_broker_that_is_gone() {
    let server = Server::start().await;
    run(&server.url, &["push", "orders", "1"]).await.code(0);
    let (child, _lines) = start(&server, &["consume", "orders", "--watch", "--timeout", "10m"]);
    eventually("it looks on", async || {
        let groups = run(&server.url, &["groups", "list", "--json"]).await.out;
        groups.contains("watch-").then_some(())
    })
    .await;
    gone(&server).await;
    let said = insist(child).await.code(130);
    assert!(said.err.contains("was not deleted"), "{}", said.err);
}

#[tokio::test]
async fn who_looks_on_takes_nothing_away_and_leaves_nothing_behind() {
    let server = Server::start().await;
    run(&server.url, &["push", "orders", "1", "-p", "a"]).await.code(0);
    let (child, mut lines) = start(&server, &["consume", "orders", "--watch"]);
    eventually("it looks on", async || {
        let groups = run(&server.url, &["groups", "list", "--json"]).await.out;
        groups.contains("watch-").then_some(())
    })
    .await;
    run(&server.url, &["push", "orders", "2", "-p", "a"]).await.code(0);
    assert_eq!(next(&mut lines).await, "2", "from now on");
    signal(&child, Signal::TERM);
    end(child).await.code(130);
    let groups = run(&server.url, &["groups", "list", "--json"]).await.code(0).out;
    assert!(!groups.contains("watch-"), "{groups}");
    let popped = run(&server.url, &["pop", "orders", "-n", "9"]).await.code(0);
    assert_eq!(popped.out, "1\n2\n");
}

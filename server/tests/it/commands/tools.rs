//! Common features of all commands: help, exit codes, tokens, completion; and `top` and `bench`.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;

use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpSocket;

use super::{Said, gone, insist, queen, run, unread};
use crate::support::{Server, eventually};

/// A URL without a listener. The port stays reserved until this is dropped.
struct Nobody {
    url: String,
    _port: TcpSocket,
}

fn nobody() -> Nobody {
    let port = TcpSocket::new_v4().unwrap();
    port.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    Nobody { url: format!("http://{}", port.local_addr().unwrap()), _port: port }
}

#[tokio::test]
async fn an_unreachable_broker_has_its_own_exit_code() {
    let nobody = nobody();
    let url = &nobody.url;
    for command in [
        &["queues", "list"][..],
        &["push", "q", "1"],
        &["pop", "q"],
        &["consume", "q"],
        &["top", "--once"],
        &["bench"],
    ] {
        let said = run(url, &[command, &["--timeout", "300ms"]].concat()).await.code(4);
        assert!(said.out.is_empty() && said.err.contains(url) && said.err.contains("--url"), "{}", said.err);
        assert!(!said.err.contains("was not deleted"), "{}", said.err);
    }
}

#[tokio::test]
async fn wrong_usage_is_reported_before_any_request() {
    for arguments in [
        &["push"][..],
        &["pull", "q"],
        &["push", "q", "not json"],
        &["push", "", "1"],
        &["pop", "q", "--batch", "0"],
        &["queues", "list", "--url", "localhost:6632"],
        &["queues", "list", "--token-file", "/nowhere/at/all"],
        &["top"],
    ] {
        let said = run("http://127.0.0.1:1", arguments).await.code(2);
        assert!(said.out.is_empty() && !said.err.is_empty(), "{arguments:?}: {}", said.err);
    }
}

#[tokio::test]
async fn a_token_opens_what_it_is_for_and_nothing_else() {
    let server = Server::start_with(&["--auth-enabled"]).await;
    let created =
        ["key", "create", "--name", "ci", "--role", "read-write", "--database-url", server.database.url()];
    let key = run(&server.url, &created).await.code(0).out.trim().to_owned();
    let none = run(&server.url, &["queues", "list"]).await.code(5);
    assert!(none.out.is_empty(), "{}", none.out);
    run(&server.url, &["push", "q", "1"]).await.code(5);
    run(&server.url, &["consume", "q"]).await.code(5);
    run(&server.url, &["push", "q", "1", "--token", &key]).await.code(0);
    let mut file = NamedTempFile::new().unwrap();
    writeln!(file, "{key}").unwrap();
    let path = file.path().to_str().unwrap();
    run(&server.url, &["pop", "q", "--token-file", path]).await.code(0);
    let refused = run(&server.url, &["queues", "delete", "q", "--yes", "--token-file", path]).await.code(5);
    assert!(!refused.err.contains(&key), "{}", refused.err);
    let output =
        queen(&server.url, &["queues", "list", "--json"]).env("QUEEN_TOKEN", &key).output().await.unwrap();
    assert_eq!(Said::of(&output).json()[0]["name"], "q");
}

#[tokio::test]
async fn who_may_not_tidy_up_may_not_begin() {
    let server = Server::start_with(&["--auth-enabled"]).await;
    let created =
        ["key", "create", "--name", "ci", "--role", "read-write", "--database-url", server.database.url()];
    let key = run(&server.url, &created).await.code(0).out.trim().to_owned();
    let with_key = async |command: &[&str]| run(&server.url, &[command, &["--token", &key]].concat()).await;
    with_key(&["push", "q", "1"]).await.code(0);
    let refused = with_key(&["consume", "q", "--watch", "--idle", "1s"]).await.code(5);
    assert!(refused.err.contains("--group"), "{}", refused.err);
    let refused = with_key(&["bench", "--time", "100ms"]).await.code(5);
    assert!(refused.err.contains("deletes its queue"), "{}", refused.err);
    assert_eq!(with_key(&["groups", "list", "--json"]).await.json(), json!([]));
    assert_eq!(with_key(&["queues", "list", "--json"]).await.json().as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_reader_that_closes_its_pipe_is_not_a_failure() {
    let server = Server::start().await;
    for arguments in [&["openapi"][..], &["queues", "list", "--json"], &["config"]] {
        assert_eq!(unread(&server.url, arguments).await.code(0).err, "", "{arguments:?}");
    }
}

#[tokio::test]
async fn a_frame_of_top_is_text_or_json() {
    let server = Server::start().await;
    run(&server.url, &["push", "orders", "1", "2", "3"]).await.code(0);
    run(&server.url, &["pop", "orders", "-g", "billing"]).await.code(0);
    let text = run(&server.url, &["top", "--once", "--interval", "100ms"]).await.code(0).out;
    for part in
        ["1 queues", "3 messages", "LANE", "push", "BROKER", &server.url, "healthy", "billing", "orders"]
    {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");
    let nobody = nobody();
    let (other, both) = (&nobody.url, format!("{},{}", server.url, nobody.url));
    let view = run(&both, &["top", "--once", "--interval", "100ms", "--json"]).await.json();
    let up: Vec<_> =
        view["brokers"].as_array().unwrap().iter().map(|broker| (&broker["url"], &broker["up"])).collect();
    assert_eq!(up, [(&json!(server.url), &json!(true)), (&json!(other), &json!(false))]);
    assert!(view["brokers"][0]["requestsPerSecond"].as_f64().unwrap() > 0.0, "{view}");
    assert_eq!((&view["messages"]["stored"], &view["groups"][0]["group"]), (&json!(3), &json!("billing")));
    assert_eq!(view["lanes"].as_array().unwrap().len(), 5);
}

#[tokio::test]
async fn a_bench_says_how_fast_it_was_and_leaves_nothing_behind() {
    let server = Server::start().await;
    let bench =
        ["bench", "--time", "500ms", "--producers", "2", "--batch", "20", "--partitions", "4", "--json"];
    let report = run(&server.url, &bench).await.json();
    let number = |name: &str| report[name].as_f64().unwrap();
    assert!(number("pushed") >= 20.0 && report["pushed"] == report["consumed"], "{report}");
    assert!(number("pushedPerSecond") > 0.0 && number("pushP50Ms") <= number("pushP99Ms"), "{report}");
    assert!(number("deliveryMaxMs") > 0.0, "{report}");
    assert_eq!(run(&server.url, &["queues", "list", "--json"]).await.json(), json!([]));
}

#[tokio::test]
async fn a_bench_does_not_wait_for_a_broker_that_is_gone() {
    let server = Server::start().await;
    let child = queen(&server.url, &["bench", "--time", "10m", "--timeout", "10m"]).spawn().unwrap();
    eventually("it has begun", async || {
        let queues = run(&server.url, &["queues", "list", "--json"]).await.json();
        (queues != json!([])).then_some(())
    })
    .await;
    gone(&server).await;
    let said = insist(child).await.code(130);
    assert!(said.err.contains("was not deleted"), "{}", said.err);
}

#[tokio::test]
async fn shells_learn_the_commands() {
    for (shell, word) in
        [("bash", "complete -F _queen"), ("zsh", "#compdef queen"), ("fish", "complete -c queen")]
    {
        let script = run("", &["completions", shell]).await.code(0).out;
        assert!(
            script.contains(word) && script.contains("redrive") && script.contains("partition-from"),
            "{shell}"
        );
        assert!(!script.contains("localhost:5432"), "{shell}");
    }
    run("", &["completions", "tcsh"]).await.code(2);
}

#[tokio::test]
async fn help_teaches_and_tells_the_exit_codes() {
    let help = run("", &["help"]).await.code(0).out;
    for part in ["Broker:", "Messages:", "Administration:", "Tools:", "First steps:", "queen help exit-codes"]
    {
        assert!(help.contains(part), "{part} in\n{help}");
    }
    assert_eq!(run("", &["--help"]).await.code(0).out, help);
    assert!(!help.contains("--port"), "{help}");
    for arguments in [&["help", "exit-codes"][..], &["exit-codes"]] {
        let codes = run("", arguments).await.code(0).out;
        assert!(codes.contains("130  interrupted") && codes.contains("3  nothing found"), "{codes}");
    }
    let push = run("http://broker:6632", &["push", "--help"]).await.code(0).out;
    assert!(
        push.contains("Examples:") && push.contains("QUEEN_URL") && !push.contains("DATABASE_URL"),
        "{push}"
    );
    let serve = run("http://broker:6632", &["serve", "--help"]).await.code(0).out;
    assert!(serve.contains("DATABASE_URL") && !serve.contains("QUEEN_TOKEN"), "{serve}");
}

#[tokio::test]
async fn several_brokers_may_be_named_and_one_of_them_may_be_away() {
    let server = Server::start().await;
    let nobody = nobody();
    let both = format!("{},{}", nobody.url, server.url);
    run(&both, &["push", "orders", "1"]).await.code(0);
    let popped = run(&both, &["consume", "orders", "-n", "1", "--json"]).await.code(0).lines();
    assert_eq!(popped[0]["data"], 1);
}

/// The first line that a broker's own command prints; its reader closes afterwards.
#[tokio::test]
async fn what_is_long_can_be_cut_short() {
    let mut child = queen("", &["openapi"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first: Value = json!(lines.next_line().await.unwrap().unwrap());
    assert_eq!(first, "{");
    drop(lines);
    assert_eq!(child.wait_with_output().await.unwrap().status.code(), Some(0));
}

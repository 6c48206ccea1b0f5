//! `push`, `pop` and `ack`.

use std::process::Stdio;

use serde_json::json;
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

use super::{QUEEN, end, fed, queen, run, unread};
use crate::support::{Server, eventually};

#[tokio::test]
async fn what_is_pushed_as_arguments_is_popped_in_order_and_nothing_else_is_printed() {
    let server = Server::start().await;
    let pushed =
        run(&server.url, &["push", "orders", r#"{"n":1}"#, "-2", r#""drei""#, "-p", "a"]).await.code(0);
    assert_eq!((pushed.out.as_str(), pushed.err.as_str()), ("", ""));
    let popped = run(&server.url, &["pop", "orders", "-n", "10", "--auto-ack"]).await.code(0);
    assert_eq!((popped.out.as_str(), popped.err.as_str()), ("{\"n\":1}\n-2\n\"drei\"\n", ""));
    let nothing = run(&server.url, &["pop", "orders"]).await.code(3);
    assert_eq!(nothing.out, "");
    assert!(nothing.err.contains("there is no message in orders"), "{}", nothing.err);
}

#[tokio::test]
async fn every_line_of_standard_input_is_a_message_and_its_fields_may_name_it() {
    let server = Server::start().await;
    let lines = "{\"customer\":\"a\",\"order\":1}\n\n{\"customer\":\"b\",\"order\":2}\n{\"customer\":\"a\",\"order\":3}";
    let push = ["push", "orders", "--partition-from", "customer", "--id-from", "order", "--json"];
    let results = fed(&server.url, &push, lines).await.code(0).lines();
    let told: Vec<_> = results.iter().map(|line| (&line["transactionId"], &line["status"])).collect();
    assert_eq!(
        told,
        [(&json!("1"), &json!("queued")), (&json!("2"), &json!("queued")), (&json!("3"), &json!("queued"))]
    );
    assert_eq!(results[0]["partitionId"], results[2]["partitionId"]);
    let again = fed(&server.url, &push, lines).await.code(0).lines();
    assert!(again.iter().all(|line| line["status"] == "duplicate"), "{again:?}");
    assert_eq!(again[1]["messageId"], results[1]["messageId"]);
    let popped =
        run(&server.url, &["pop", "orders", "--partition", "a", "-n", "9", "--json"]).await.code(0).lines();
    let ids: Vec<_> = popped.iter().map(|line| line["transactionId"].as_str().unwrap()).collect();
    assert_eq!(ids, ["1", "3"]);
}

#[tokio::test]
async fn files_are_pushed_and_a_line_that_is_no_json_is_named() {
    let server = Server::start().await;
    let file = NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let many: String = (0..2_500).map(|n| format!("{n}\n")).collect();
    std::fs::write(path, &many).unwrap();
    run(&server.url, &["push", "numbers", "--file", path, "--partition", "p"]).await.code(0);
    let popped = run(&server.url, &["pop", "numbers", "-n", "10000", "--auto-ack"]).await.code(0);
    assert!(popped.out == many, "they come in their order");

    std::fs::write(path, many + "oh no\n").unwrap();
    let bad = run(&server.url, &["push", "numbers", "--file", path]).await.code(1);
    for part in ["2,500 pushed", "line 2501", "oh no", "--text"] {
        assert!(bad.err.contains(part), "{part} in {}", bad.err);
    }
    let popped = run(&server.url, &["pop", "numbers", "-n", "10000", "--auto-ack"]).await.code(0);
    assert_eq!(popped.out.lines().count(), 2_500, "as it was told");
    run(&server.url, &["push", "numbers", "1", "oh no"]).await.code(2);
    run(&server.url, &["pop", "numbers"]).await.code(3);
    std::fs::write(path, "oh no\n").unwrap();
    run(&server.url, &["push", "words", "--file", path, "--text"]).await.code(0);
    let popped = run(&server.url, &["pop", "words", "--auto-ack"]).await.code(0);
    assert_eq!(popped.out, "\"oh no\"\n");
    let missing = run(&server.url, &["push", "words", "--file", "/nowhere/at/all"]).await.code(2);
    assert!(missing.err.contains("/nowhere/at/all"), "{}", missing.err);
}

#[tokio::test]
async fn a_message_that_is_refused_ends_it_and_what_was_stored_is_told() {
    let server = Server::start_with(&["--max-message-bytes", "100"]).await;
    let lines = format!("1\n2\n\"{}\"\n4\n5\n", "x".repeat(200));
    let said = fed(&server.url, &["push", "orders", "-p", "a"], &lines).await.code(1);
    let (pushed, rest) = said.err.strip_prefix("queen: ").unwrap().split_once(" pushed, 1 failed: ").unwrap();
    assert!(rest.contains("the limit is 100"), "{rest}");
    let popped = run(&server.url, &["pop", "orders", "-n", "9", "--auto-ack"]).await.code(0);
    assert_eq!(popped.out.lines().count().to_string(), pushed);
    assert!(popped.out.starts_with("1\n2\n"), "{}", popped.out);
}

#[tokio::test]
async fn messages_are_stored_whether_somebody_reads_the_results_or_not() {
    let server = Server::start().await;
    let push = ["push", "orders", "-p", "a", "--json"];
    let mut child = queen(&server.url, &push).stdin(Stdio::piped()).spawn().unwrap();
    let (mut stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let mut results = BufReader::new(stdout).lines();
    stdin.write_all(b"1\n").await.unwrap();
    results.next_line().await.unwrap().expect("a result");
    drop(results);
    for n in 1..5 {
        let stored = eventually("it is stored", async || {
            let popped = run(&server.url, &["pop", "orders", "--auto-ack"]).await;
            (popped.code == 0).then_some(popped.out)
        });
        assert_eq!(stored.await, format!("{n}\n"));
        stdin.write_all(format!("{}\n", n + 1).as_bytes()).await.unwrap();
    }
    drop(stdin);
    assert_eq!(end(child).await.code(0).err, "");
    assert_eq!(run(&server.url, &["pop", "orders", "--auto-ack"]).await.code(0).out, "5\n");
}

#[tokio::test]
async fn a_message_is_one_line_however_it_was_written() {
    let server = Server::start().await;
    let body = "{\"items\":[{\"queue\":\"orders\",\"payload\":{\r\n  \"a\": \"x\\ny\"\n}}]}";
    assert_eq!(server.send(reqwest::Method::POST, "/api/v1/push", Some(body)).await.status, 201);
    let line = "{    \"a\": \"x\\ny\" }\n";
    for group in ["one", "other"] {
        let popped = run(&server.url, &["pop", "orders", "-g", group, "--auto-ack"]).await.code(0);
        assert_eq!(popped.out, line);
    }
    let script =
        ["consume", "orders", "-g", "third", "-n", "1", "--exec", "read -r line; printf '%s\\n' \"$line\""];
    assert_eq!(run(&server.url, &script).await.code(0).out, line);
    let popped = run(&server.url, &["pop", "orders", "-g", "fourth", "--json"]).await.code(0);
    assert_eq!(popped.lines()[0]["data"], json!({"a": "x\ny"}));
    let acked = fed(&server.url, &["ack", "--json"], &popped.out).await.json();
    assert_eq!(acked[0]["success"], true);
}

#[tokio::test]
async fn who_has_only_payloads_is_told_how_to_acknowledge_them() {
    let server = Server::start().await;
    let push = ["push", "orders", "1", "-p", "a", "--transaction-id", "it's; exit 9"];
    run(&server.url, &push).await.code(0);
    run(&server.url, &["push", "orders", "2", "-p", "b"]).await.code(0);
    let pop = ["pop", "orders", "-g", "g", "-n", "9", "--partitions", "9"];
    let popped = run(&server.url, &pop).await.code(0);
    assert_eq!(popped.out.lines().count(), 2);
    let commands: Vec<_> = popped.err.lines().filter(|line| line.starts_with("  queen ack")).collect();
    assert_eq!(commands.len(), 2, "one for each partition: {}", popped.err);
    for command in commands {
        let mut shell = Command::new("/bin/sh");
        shell.arg("-c").arg(command.replacen("queen", QUEEN, 1)).env("QUEEN_URL", &server.url);
        let output = shell.output().await.unwrap();
        assert!(output.status.success(), "{command}: {output:?}");
    }
    run(&server.url, &pop).await.code(3);
    run(&server.url, &["seek", "orders", "g", "beginning"]).await.code(0);
    assert_eq!(run(&server.url, &[&pop[..], &["--json"]].concat()).await.code(0).err, "");
}

#[tokio::test]
async fn what_could_not_be_printed_is_given_back() {
    let server = Server::start().await;
    run(&server.url, &["push", "orders", "1", "2", "-p", "a"]).await.code(0);
    run(&server.url, &["push", "orders", "3", "-p", "b"]).await.code(0);
    let pop = ["pop", "orders", "-g", "g", "-n", "9", "--partitions", "9"];
    for arguments in [&pop[..], &[&pop[..], &["--json"]].concat()] {
        assert_eq!(unread(&server.url, arguments).await.code(0).err, "", "{arguments:?}");
    }
    let popped = run(&server.url, &pop).await.code(0);
    assert_eq!(popped.out.lines().count(), 3, "{}", popped.out);
}

#[tokio::test]
async fn what_pop_prints_as_json_can_be_acknowledged() {
    let server = Server::start().await;
    run(&server.url, &["push", "orders", "1", "2", "3", "-p", "a"]).await.code(0);
    let popped = run(&server.url, &["pop", "orders", "-g", "billing", "-n", "2", "--json"]).await.code(0);
    let lines = popped.lines();
    assert_eq!(lines.len(), 2);
    for (name, value) in [
        ("queue", json!("orders")),
        ("partition", json!("a")),
        ("consumerGroup", json!("billing")),
        ("retryCount", json!(0)),
        ("data", json!(1)),
    ] {
        assert_eq!(lines[0][name], value, "{name}");
    }
    run(&server.url, &["pop", "orders", "-g", "billing"]).await.code(3);
    let acked = fed(&server.url, &["ack", "--json"], &popped.out).await.json();
    assert_eq!((&acked[0]["success"], &acked[1]["leaseReleased"]), (&json!(true), &json!(true)));

    let third =
        run(&server.url, &["pop", "orders", "-g", "billing", "--json"]).await.code(0).lines().remove(0);
    assert_eq!(third["data"], 3);
    let words =
        ["transactionId", "partitionId", "leaseId"].map(|name| third[name].as_str().unwrap().to_owned());
    let by_hand = |lease| {
        let [transaction, partition, _] = &words;
        let about =
            ["ack", transaction, "--partition-id", partition, "--group", "billing", "--status", "retry"];
        [&about[..], &["--lease", lease]].concat().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    let refused = by_hand("01a1dee1-78c9-74f5-9e39-2841dd1669f0.1");
    let refused: Vec<_> = refused.iter().map(String::as_str).collect();
    run(&server.url, &refused).await.code(1);
    let given_back = by_hand(&words[2]);
    let given_back: Vec<_> = given_back.iter().map(String::as_str).collect();
    run(&server.url, &given_back).await.code(0);
    let again = run(&server.url, &["pop", "orders", "-g", "billing"]).await.code(0);
    assert_eq!(again.out, "3\n");
    let nothing = fed(&server.url, &["ack"], "").await.code(3);
    assert!(nothing.err.contains("nothing to acknowledge"), "{}", nothing.err);
    fed(&server.url, &["ack"], "nonsense").await.code(2);
}

#[tokio::test]
async fn an_ack_means_the_message_that_was_popped_where_several_have_its_transaction_id() {
    let server = Server::start().await;
    server.configure("orders", json!({"dedupWindowSeconds": 0})).await;
    for payload in ["1", "2"] {
        run(&server.url, &["push", "orders", payload, "-p", "a", "--transaction-id", "t"]).await.code(0);
    }
    let popped = run(&server.url, &["pop", "orders", "-g", "billing", "-n", "2", "--json"]).await.code(0);
    let [first, second] = popped.lines().try_into().unwrap();
    assert_eq!((&first["data"], &second["data"]), (&json!(1), &json!(2)));
    let word = |name: &str| second[name].as_str().unwrap().to_owned();
    let (partition, lease) = (word("partitionId"), word("leaseId"));
    let about = ["ack", "t", "--partition-id", &partition, "--group", "billing", "--lease", &lease];
    let unknown = "0190a1b2-0000-7000-8000-000000000000";
    run(&server.url, &[&about[..], &["--message-id", unknown]].concat()).await.code(1);
    let acked = fed(&server.url, &["ack", "--json"], &second.to_string()).await.json();
    assert_eq!((&acked[0]["success"], &acked[0]["leaseReleased"]), (&json!(true), &json!(true)));
    run(&server.url, &["pop", "orders", "-g", "billing"]).await.code(3);
}

#[tokio::test]
async fn a_pop_waits_as_long_as_it_is_told() {
    let server = Server::start().await;
    let waiting = run(&server.url, &["pop", "orders", "--wait", "30s"]);
    let push = async {
        eventually("it waits", async || {
            let metrics = server.get("/metrics/prometheus").await.text;
            metrics.contains("queen_parked_pops 1\n").then_some(())
        })
        .await;
        run(&server.url, &["push", "orders", "7"]).await.code(0);
    };
    let (popped, ()) = tokio::join!(waiting, push);
    assert_eq!(popped.code(0).out, "7\n");
    run(&server.url, &["pop", "orders", "--wait", "100ms"]).await.code(3);
}

#[tokio::test]
async fn queues_can_be_read_by_their_labels() {
    let server = Server::start().await;
    run(&server.url, &["push", "shop.orders", "1"]).await.code(0);
    let popped = run(&server.url, &["pop", "--namespace", "shop", "--auto-ack"]).await.code(0);
    assert_eq!(popped.out, "1\n");
    run(&server.url, &["pop"]).await.code(2);
    run(&server.url, &["pop", "orders", "--namespace", "shop"]).await.code(2);
    run(&server.url, &["pop", "orders", "--from", "new"]).await.code(2);
}

//! `dlq`: from a failure to its redrive and purge.

use serde_json::{Value, json};

use super::{end, fed, gone, insist, queen, run};
use crate::support::{Server, eventually};

/// Dead letters 1 to 3 of group `billing`.
async fn given_up(server: &Server) {
    run(&server.url, &["push", "orders", "1", "2", "3", "-p", "a"]).await.code(0);
    let consume = ["consume", "orders", "-g", "billing", "-n", "3", "--exec", "echo boom $(cat) >&2; exit 1"];
    run(&server.url, &["queues", "configure", "orders", "retryLimit=0"]).await.code(0);
    run(&server.url, &consume).await.code(1);
}

/// Makes `many` dead letters of group `billing`.
async fn buried(server: &Server, queue: &str, many: usize) {
    let lines: String = (0..many).map(|n| format!("{n}\n")).collect();
    fed(&server.url, &["push", queue, "-p", "a"], &lines).await.code(0);
    let pop = ["pop", queue, "-g", "billing", "-n", &many.to_string(), "--json"];
    let taken = run(&server.url, &pop).await.code(0).out;
    fed(&server.url, &["ack", "--status", "dead-letter"], &taken).await.code(0);
}

async fn letters(server: &Server, more: &[&str]) -> Vec<Value> {
    let list = [&["dlq", "list", "orders", "--json"], more].concat();
    run(&server.url, &list).await.json().as_array().unwrap().clone()
}

#[tokio::test]
async fn dead_letters_are_listed_pushed_again_and_counted_before() {
    let server = Server::start().await;
    given_up(&server).await;
    let all = letters(&server, &[]).await;
    assert_eq!(all.len(), 3);
    for (name, value) in [
        ("consumerGroup", json!("billing")),
        ("queue", json!("orders")),
        ("partition", json!("a")),
        ("data", json!(3)),
        ("error", json!("exit code 1: boom 3")),
        ("retryCount", json!(0)),
    ] {
        assert_eq!(all[0][name], value, "{name}");
    }
    assert_eq!(letters(&server, &["--group", "other"]).await, Vec::<Value>::new());
    assert_eq!(letters(&server, &["--since", "1h", "--error", "boom 2"]).await.len(), 1);
    assert_eq!(letters(&server, &["--limit", "2", "--offset", "2"]).await.len(), 1);

    let some = ["dlq", "redrive", "orders", "--group", "billing", "--error", "boom 2", "--json"];
    let dry = run(&server.url, &[&some[..], &["--dry-run"]].concat()).await.json();
    assert_eq!(dry, json!({"dryRun": true, "total": 1}));
    let done = run(&server.url, &some).await.json();
    assert_eq!((&done["status"], &done["total"], &done["done"]), (&json!("completed"), &json!(1), &json!(1)));
    let popped = run(&server.url, &["pop", "orders", "-g", "billing", "-n", "9", "--auto-ack"]).await.code(0);
    assert_eq!(popped.out, "2\n");
    assert_eq!(letters(&server, &[]).await.len(), 2);

    buried(&server, "slow", 60).await;
    let slow =
        run(&server.url, &["dlq", "redrive", "slow", "--rate", "1", "--background", "--json"]).await.json();
    let id = slow["id"].as_str().unwrap();
    let listed = run(&server.url, &["dlq", "redrives", "--json"]).await.json();
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["id"]), (2, &slow["id"]));
    let ended = run(&server.url, &["dlq", "redrives", "--cancel", id, "--json"]).await.json();
    assert_eq!(ended["status"], "cancelled");
    let unknown = "01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01";
    run(&server.url, &["dlq", "redrives", "--cancel", unknown]).await.code(3);
    run(&server.url, &["dlq", "list", "nowhere"]).await.code(3);
    run(&server.url, &["dlq", "redrive", "nowhere"]).await.code(3);
}

#[tokio::test]
async fn purging_dead_letters_needs_confirmation() {
    let server = Server::start().await;
    given_up(&server).await;
    let refused = run(&server.url, &["dlq", "purge", "orders"]).await.code(2);
    assert!(refused.err.contains("3 dead letters") && refused.err.contains("--yes"), "{}", refused.err);
    let other =
        run(&server.url, &["dlq", "purge", "orders", "--group", "other", "--yes", "--json"]).await.json();
    assert_eq!(other, json!({"queue": "orders", "purged": 0}));
    assert_eq!(letters(&server, &[]).await.len(), 3);
    let gone = run(&server.url, &["dlq", "purge", "orders", "--yes", "--json"]).await.json();
    assert_eq!(gone["purged"], 3);
    assert_eq!(letters(&server, &[]).await, Vec::<Value>::new());
}

#[tokio::test]
async fn a_long_list_is_complete_or_says_how_much_is_missing() {
    let server = Server::start().await;
    buried(&server, "orders", 1_100).await;
    let list =
        async |limit: &str| run(&server.url, &["dlq", "list", "orders", "--json", "--limit", limit]).await;
    let whole = list("2000").await;
    assert_eq!(whole.err, "");
    assert_eq!(whole.json().as_array().unwrap().len(), 1_100);
    let part = list("1050").await;
    assert!(part.err.contains("50 more; continue with --offset 1050"), "{}", part.err);
    assert_eq!(part.json().as_array().unwrap().len(), 1_050);
}

#[tokio::test]
async fn a_redrive_that_can_no_longer_be_watched_is_named() {
    let server = Server::start().await;
    let mut children = Vec::new();
    for (queue, patience) in [("soon", "5s"), ("late", "10m")] {
        buried(&server, queue, 60).await;
        let redrive = ["dlq", "redrive", queue, "--rate", "1", "--timeout", patience];
        children.push(queen(&server.url, &redrive).spawn().unwrap());
        let many = children.len();
        eventually("it has begun", async || {
            let list = run(&server.url, &["dlq", "redrives", "--json"]).await.json();
            (list.as_array().unwrap().len() == many).then_some(())
        })
        .await;
    }
    let list = run(&server.url, &["dlq", "redrives", "--json"]).await.json();
    let id = |index: usize| list[index]["id"].as_str().unwrap();
    gone(&server).await;
    // The newest is listed first. When the first command times out, the second has seen the id that it watches as well.
    let soon = end(children.remove(0)).await.code(4);
    assert!(soon.err.contains(id(1)), "{}", soon.err);
    let late = insist(children.remove(0)).await.code(130);
    assert!(late.err.contains(id(0)), "{}", late.err);
}

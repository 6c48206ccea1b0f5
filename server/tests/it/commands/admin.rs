//! `queues`, `groups`, `seek` and `ops`.

use serde_json::{Value, json};

use super::run;
use crate::support::{EASILY_STRAINED, Server, Strain, eventually};

fn names(list: &Value, name: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|entry| entry[name].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn queues_are_listed_shown_and_configured() {
    let server = Server::start().await;
    run(&server.url, &["push", "shop.orders", "1", "2", "-p", "a"]).await.code(0);
    run(&server.url, &["push", "parcels", "3"]).await.code(0);
    // The number of partitions is known once the queue was measured.
    let list = eventually("it is measured", async || {
        let list = run(&server.url, &["queues", "list", "--json"]).await.json();
        (list[0]["partitions"] == 1 && list[1]["partitions"] == 1).then_some(list)
    })
    .await;
    assert_eq!(names(&list, "name"), ["parcels", "shop.orders"]);
    assert_eq!((&list[1]["messages"], &list[1]["pending"]), (&json!(2), &json!(2)));
    let found = run(&server.url, &["queues", "list", "--search", "parc", "--json"]).await.json();
    assert_eq!(names(&found, "name"), ["parcels"]);
    let text = run(&server.url, &["queues", "list"]).await.code(0).out;
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["QUEUE", "PARTITIONS", "MESSAGES", "PENDING", "LEASED", "CREATED"]);
    assert_eq!(lines[2][..5], ["shop.orders", "1", "2", "2", "0"]);
    assert!(!text.contains('\t') && !text.contains('\u{1b}') && lines[2][5].ends_with('Z'), "{text}");

    run(&server.url, &["pop", "shop.orders", "-g", "billing"]).await.code(0);
    let shown = run(&server.url, &["queues", "show", "shop.orders", "--json"]).await.json();
    assert_eq!((&shown["namespace"], &shown["processing"]), (&json!("shop"), &json!(1)));
    assert_eq!(
        (names(&shown["partitions"], "name"), names(&shown["groups"], "group")),
        (vec!["a".into()], vec!["billing".into()])
    );
    run(&server.url, &["queues", "show", "nowhere"]).await.code(3);

    let configure = ["queues", "configure", "shop.orders"];
    let options =
        run(&server.url, &[&configure[..], &["leaseTime=7", "retryLimit=1", "--json"]].concat()).await.json();
    assert_eq!((&options["leaseTime"], &options["retryLimit"]), (&json!(7), &json!(1)));
    let text = run(&server.url, &configure).await.code(0).out;
    assert!(text.lines().any(|line| line.split_whitespace().eq(["leaseTime", "7"])), "{text}");
    let wrong = run(&server.url, &[&configure[..], &["leasetime=7"]].concat()).await.code(2);
    assert!(wrong.err.contains("leaseTime"), "{}", wrong.err);
    run(&server.url, &["queues", "configure", "nowhere"]).await.code(3);
    run(&server.url, &["queues", "show", "nowhere"]).await.code(3);
}

#[tokio::test]
async fn clearing_and_deleting_queues_needs_confirmation() {
    let server = Server::start().await;
    run(&server.url, &["push", "orders", "1", "2", "-p", "a"]).await.code(0);
    for action in ["clear", "delete"] {
        let asked = run(&server.url, &["queues", action, "orders"]).await.code(2);
        assert!(asked.err.contains("2 messages") && asked.err.contains("--yes"), "{}", asked.err);
    }
    let cleared = run(&server.url, &["queues", "clear", "orders", "--yes", "--json"]).await.json();
    assert_eq!(cleared, json!({"queue": "orders", "partition": null, "removed": 2}));
    run(&server.url, &["pop", "orders"]).await.code(3);
    let deleted = run(&server.url, &["queues", "delete", "orders", "--yes", "--json"]).await.json();
    assert_eq!(deleted, json!({"queue": "orders", "deleted": true}));
    run(&server.url, &["queues", "delete", "orders", "--yes"]).await.code(3);
    run(&server.url, &["queues", "clear", "orders", "--yes"]).await.code(3);
}

#[tokio::test]
async fn groups_are_listed_shown_and_forgotten() {
    let server = Server::start().await;
    run(&server.url, &["push", "orders", "1", "2", "3", "-p", "a"]).await.code(0);
    run(&server.url, &["consume", "orders", "-g", "billing", "-n", "2"]).await.code(0);
    let list = run(&server.url, &["groups", "list", "--queue", "orders", "--json"]).await.json();
    assert_eq!(
        (&list[0]["group"], &list[0]["lag"], &list[0]["state"]),
        (&json!("billing"), &json!(1), &json!("stable"))
    );
    assert_eq!(run(&server.url, &["groups", "list", "--queue", "other", "--json"]).await.json(), json!([]));
    let shown = run(&server.url, &["groups", "show", "billing", "--json"]).await.json();
    let partition = &shown["partitions"][0];
    assert_eq!(
        (&partition["partition"], &partition["read"], &partition["lag"]),
        (&json!("a"), &json!(2), &json!(1))
    );
    let text = run(&server.url, &["groups", "show", "billing"]).await.code(0).out;
    assert!(text.starts_with("group  billing\n") && text.contains("Partitions\nQUEUE"), "{text}");
    run(&server.url, &["groups", "show", "nobody"]).await.code(3);

    run(&server.url, &["groups", "delete", "billing"]).await.code(2);
    run(&server.url, &["groups", "delete", "billing", "--queue", "other", "--yes"]).await.code(3);
    let deleted = run(&server.url, &["groups", "delete", "billing", "--queue", "orders", "--yes", "--json"])
        .await
        .json();
    assert_eq!(deleted, json!({"group": "billing", "queue": "orders", "partitions": 1}));
    run(&server.url, &["groups", "delete", "billing", "--yes"]).await.code(3);
}

#[tokio::test]
async fn who_reads_is_found_however_many_there_are() {
    let server = Server::start().await;
    // More groups than one page holds: other groups in a queue that sorts first, and the same group in other queues.
    server
        .sql(
            "insert into queen.groups (queue_name, consumer_group)
             select 'alpha', 'group ' || n from generate_series(1, 1200) n
             union all select 'beta ' || n, 'workers' from generate_series(1, 150) n",
        )
        .await;
    run(&server.url, &["push", "zeta", "1", "2"]).await.code(0);
    run(&server.url, &["consume", "zeta", "-g", "workers", "-n", "1"]).await.code(0);
    let all = run(&server.url, &["groups", "list", "--json"]).await.json();
    assert_eq!(all.as_array().unwrap().len(), 1_351);
    let shown = run(&server.url, &["queues", "show", "zeta", "--json"]).await.json();
    assert_eq!(names(&shown["groups"], "group"), ["workers"]);
    let view = run(&server.url, &["top", "--once", "--interval", "100ms", "--json"]).await.json();
    assert_eq!(
        (&view["groups"][0]["group"], &view["groups"][0]["queue"]),
        (&json!("workers"), &json!("zeta"))
    );
    let shown = run(&server.url, &["groups", "show", "workers", "--queue", "zeta", "--json"]).await;
    assert!(!shown.err.contains("not shown"), "the broker is asked for this queue only: {}", shown.err);
    let shown = shown.json();
    assert_eq!(names(&shown["queues"], "queue"), ["zeta"]);
    assert_eq!(names(&shown["partitions"], "queue"), ["zeta"]);
    run(&server.url, &["groups", "show", "workers", "--limit", "1001"]).await.code(2);
    let moved = run(&server.url, &["seek", "zeta", "workers", "end", "--json"]).await.json();
    assert_eq!((&moved["partitions"], &moved["unread"]), (&json!(1), &json!(0)));
    let delete = ["groups", "delete", "workers", "--queue", "zeta", "--yes", "--json"];
    assert_eq!(run(&server.url, &delete).await.json()["partitions"], 1);
    run(&server.url, &delete).await.code(3);
}

#[tokio::test]
async fn a_list_that_is_cut_says_so() {
    let server = Server::start().await;
    for queue in ["a", "b", "c"] {
        run(&server.url, &["push", queue, "1", "-p", queue]).await.code(0);
    }
    run(&server.url, &["push", "c", "1", "-p", "other"]).await.code(0);
    let part = run(&server.url, &["queues", "list", "--limit", "2", "--json"]).await;
    assert!(part.err.contains("there are more"), "{}", part.err);
    assert_eq!(names(&part.json(), "name"), ["c", "b"]);
    assert_eq!(run(&server.url, &["queues", "list", "--limit", "3"]).await.code(0).err, "");
    let part = run(&server.url, &["queues", "show", "c", "--limit", "1", "--json"]).await;
    assert!(part.err.contains("there are more partitions"), "{}", part.err);
    assert_eq!(part.json()["partitions"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_group_is_sent_back_and_forth() {
    let server = Server::start().await;
    run(&server.url, &["push", "orders", "1", "2", "3", "-p", "a"]).await.code(0);
    run(&server.url, &["consume", "orders", "-g", "billing", "-n", "2"]).await.code(0);
    let seek = |to: &'static str| ["seek", "orders", "billing", to, "--json"];
    let dry = run(&server.url, &[&seek("beginning")[..], &["--dry-run"]].concat()).await.json();
    assert_eq!((&dry["replays"], &dry["stored"], &dry["unread"]), (&json!(2), &json!(3), &json!(1)));
    let dry = run(&server.url, &[&seek("end")[..], &["--dry-run"]].concat()).await.json();
    assert_eq!((&dry["replays"], &dry["skips"]), (&json!(0), &json!(1)));
    let dry = run(&server.url, &[&seek("1h")[..], &["--dry-run"]].concat()).await.json();
    assert_eq!((&dry["replays"], &dry["skips"], &dry["unread"]), (&json!(2), &json!(0), &json!(1)));
    let moved = run(&server.url, &seek("beginning")).await.json();
    assert_eq!((&moved["partitions"], &moved["unread"]), (&json!(1), &json!(3)));
    let popped = run(&server.url, &["pop", "orders", "-g", "billing", "-n", "9", "--auto-ack"]).await.code(0);
    assert_eq!(popped.out, "1\n2\n3\n");
    assert_eq!(run(&server.url, &seek("1h")).await.json()["unread"], 3);
    assert_eq!(run(&server.url, &seek("end")).await.json()["unread"], 0);
    run(&server.url, &["seek", "nowhere", "billing", "end"]).await.code(3);
    run(&server.url, &["seek", "orders", "nobody", "end"]).await.code(3);
    run(&server.url, &["seek", "orders", "billing", "start"]).await.code(2);
}

#[tokio::test]
async fn a_group_that_reads_one_partition_is_moved_and_another_only_if_it_is_to_be_created() {
    let server = Server::start().await;
    run(&server.url, &["push", "orders", "1", "2", "-p", "a"]).await.code(0);
    run(&server.url, &["pop", "orders", "-p", "a", "-g", "h"]).await.code(0);
    let shown = run(&server.url, &["groups", "show", "h", "--json"]).await.json();
    assert_eq!(names(&shown["queues"], "queue"), ["orders"]);
    assert_eq!(run(&server.url, &["seek", "orders", "h", "end", "--json"]).await.json()["partitions"], 1);

    let refused = run(&server.url, &["seek", "orders", "new", "end"]).await.code(3);
    let text = "queen: group \"new\" does not read queue \"orders\"; create it with --create\n";
    assert_eq!(refused.err, text);
    let dry =
        run(&server.url, &["seek", "orders", "new", "end", "--create", "--dry-run", "--json"]).await.json();
    assert_eq!((&dry["dryRun"], &dry["skips"]), (&json!(true), &json!(2)));
    run(&server.url, &["seek", "orders", "new", "end"]).await.code(3);
    let created = run(&server.url, &["seek", "orders", "new", "end", "--create"]).await.code(0);
    assert!(created.err.contains("new was created"), "{}", created.err);
    let moved = run(&server.url, &["seek", "orders", "new", "beginning", "--create"]).await.code(0);
    assert!(moved.err.contains("new was moved"), "{}", moved.err);
}

#[tokio::test]
async fn deferred_operations_are_listed_shown_and_cancelled() {
    let server = Server::start_with(&EASILY_STRAINED).await;
    // Not due before the test ends, because an operation in progress cannot be cancelled.
    server
        .sql(
            "create function queen.later() returns trigger language plpgsql as
             $$ begin new.due_at := new.due_at + interval '50 seconds'; return new; end $$;
             create trigger later before insert on queen.deferred for each row
             when (new.queue_name = 'orders') execute function queen.later()",
        )
        .await;
    let strain = Strain::on(&server.database, &[&server.url]).await;
    let pushed = run(&server.url, &["push", "orders", "1", "--json"]).await.code(0).lines().remove(0);
    let id = pushed["operationId"].as_str().expect("it is deferred");
    let list = run(&server.url, &["ops", "list", "--queue", "orders", "--json"]).await.json();
    assert_eq!(names(&list, "id"), [id]);
    let shown = run(&server.url, &["ops", "show", id, "--json"]).await.json();
    assert_eq!(
        (&shown["queue"], &shown["messages"], &shown["type"]),
        (&json!("orders"), &json!(1), &json!("PUSH"))
    );
    let stats = run(&server.url, &["ops", "stats", "--json"]).await.json();
    assert!(stats["queueDepth"].as_u64().unwrap() >= 1 && stats["operations"].is_array(), "{stats}");
    run(&server.url, &["ops", "cancel", id]).await.code(0);
    assert_eq!(run(&server.url, &["ops", "show", id, "--json"]).await.json()["status"], "cancelled");
    let refused = run(&server.url, &["ops", "retry", id]).await.code(1);
    assert!(refused.err.contains("only a failed operation"), "{}", refused.err);
    strain.off(&[&server.url]).await;
    run(&server.url, &["pop", "orders"]).await.code(3);
    let unknown = "01a1dee1-7461-7d02-8a4b-3f1c5f2b8e01";
    for action in ["show", "retry", "cancel"] {
        run(&server.url, &["ops", action, unknown]).await.code(3);
    }
}

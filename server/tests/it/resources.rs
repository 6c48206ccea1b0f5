//! `/api/v1/resources`, `/api/v1/queues` and the reading half of `/api/v1/consumer-groups`.

use serde_json::{Value, json};

use crate::support::{EASILY_STRAINED, Server, Strain, array, eventually, numbers};

/// What the group still has to read, as an autoscaler requests it.
async fn depth(server: &Server, queue: &str, group: &str) -> Value {
    server.get(&format!("/api/v1/resources/queues/{queue}/depth?group={group}")).await.json()
}

fn names(list: &Value, key: &str) -> Vec<String> {
    list.as_array().unwrap().iter().map(|entry| entry[key].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn an_empty_broker_answers_with_empty_lists_and_zeros() {
    let server = Server::start().await;
    for (path, key) in [
        ("resources/queues", "queues"),
        ("resources/partitions", "partitions"),
        ("resources/namespaces", "namespaces"),
        ("resources/tasks", "tasks"),
    ] {
        assert_eq!(server.get(&format!("/api/v1/{path}")).await.json()[key], json!([]), "{path}");
    }
    for path in ["consumer-groups", "consumer-groups/lagging"] {
        assert_eq!(server.get(&format!("/api/v1/{path}")).await.json(), json!([]), "{path}");
    }
    assert_eq!(server.get("/api/v1/consumer-groups/nobody").await.json(), json!({}));
    let overview = server.get("/api/v1/resources/overview").await.json();
    assert_eq!((&overview["queues"], &overview["messages"]["pending"]), (&json!(0), &json!(0)));
    assert_eq!((&overview["lag"]["time"]["max"], &overview["statsAge"]), (&json!(0.0), &json!(-1.0)));
}

#[tokio::test]
async fn what_does_not_exist_is_not_found_and_bad_names_are_refused() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..1)).await;
    for path in ["resources/queues/none", "resources/queues/none/depth", "resources/partitions?queue=none"] {
        let reply = server.get(&format!("/api/v1/{path}")).await;
        assert_eq!(reply.status, 404, "{path}");
        assert_eq!(reply.json()["error"], "queue not found");
    }
    for path in ["queues/none/clear", "queues/q/clear?partition=none"] {
        assert_eq!(server.delete(&format!("/api/v1/{path}")).await.status, 404, "{path}");
    }
    let seek = "/api/v1/consumer-groups/g/queues/q/partitions/none/seek";
    assert_eq!(server.post(seek, json!({})).await.status, 404);
    let long = "x".repeat(256);
    for path in [
        format!("resources/queues/{long}"),
        format!("resources/queues/q/depth?group={long}"),
        format!("resources/queues?namespace={long}"),
        format!("resources/queues/q?after={long}"),
        "resources/queues/a%00b".to_owned(),
        format!("consumer-groups/{long}"),
    ] {
        assert_eq!(server.get(&format!("/api/v1/{path}")).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn a_pushed_message_is_in_every_number_at_once() {
    let server = Server::start().await;
    server.push("shop.mail", "p", &numbers(0..3)).await;
    server.push("shop.mail", "r", &numbers(0..1)).await;
    server.push("other", "p", &numbers(0..2)).await;
    // Messages are counted as they are pushed. Partitions have to be looked up, for which a
    // list of all queues has 20 ms.
    let listed = eventually("partitions are counted", async || {
        let listed = server.get("/api/v1/resources/queues").await.json();
        let queues = listed["queues"].as_array().unwrap();
        let stored: i64 = queues.iter().filter_map(|queue| queue["messages"]["total"].as_i64()).sum();
        assert_eq!(stored, 6, "at once");
        queues.iter().all(|queue| queue["partitions"] != 0).then_some(listed)
    })
    .await;
    assert_eq!(names(&listed["queues"], "name"), ["other", "shop.mail"], "the newest first");
    let mail = &listed["queues"][1];
    assert_eq!(mail["messages"], json!({"total": 4, "pending": 4, "processing": 0}));
    assert_eq!(
        (&mail["partitions"], &mail["namespace"], &mail["task"]),
        (&json!(2), &json!("shop"), &json!("mail"))
    );
    let detail = server.get("/api/v1/resources/queues/shop.mail").await.json();
    assert_eq!(names(&detail["partitions"], "name"), ["p", "r"]);
    let counts = |total: i64| json!({"total": total, "pending": total, "processing": 0, "completed": 0, "failed": 0, "deadLetter": 0});
    assert_eq!((&detail["totals"], &detail["partitions"][0]["stats"]), (&counts(4), &counts(3)));
    assert!(detail["partitions"][0]["oldestMessage"].is_string());
    let overview = server.get("/api/v1/resources/overview").await.json();
    assert_eq!((&overview["queues"], &overview["partitions"]), (&json!(2), &json!(3)));
    assert_eq!(overview["messages"]["pending"], 6);
    let namespaces = server.get("/api/v1/resources/namespaces").await.json();
    let shop =
        namespaces["namespaces"].as_array().unwrap().iter().find(|n| n["namespace"] == "shop").unwrap();
    assert_eq!((&shop["queues"], &shop["messages"]["total"]), (&json!(1), &json!(4)));
    let tasks = server.get("/api/v1/resources/tasks").await.json();
    assert!(names(&tasks["tasks"], "task").contains(&"mail".to_owned()));
    let busiest = server.get("/api/v1/resources/partitions?limit=2").await.json();
    let pending: Vec<i64> =
        busiest["partitions"].as_array().unwrap().iter().map(|p| p["pending"].as_i64().unwrap()).collect();
    assert_eq!(pending, [3, 2]);
}

#[tokio::test]
async fn lists_of_queues_are_filtered_and_paged_without_gaps() {
    let server = Server::start().await;
    for number in 0..7 {
        let body = json!({"queue": format!("Orders-{number}"), "namespace": "shop", "task": if number < 2 { "a" } else { "b" }});
        server.call("/api/v1/configure", body).await;
    }
    let mut seen = Vec::new();
    for page in 0..4 {
        let path = format!("/api/v1/resources/queues?limit=2&offset={}", page * 2);
        seen.extend(names(&server.get(&path).await.json()["queues"], "name"));
    }
    seen.sort();
    let all: Vec<String> = (0..7).map(|number| format!("Orders-{number}")).collect();
    assert_eq!(seen, all);
    let listed = async |query: &str| {
        names(&server.get(&format!("/api/v1/resources/queues?{query}")).await.json()["queues"], "name").len()
    };
    assert_eq!(listed("namespace=shop&task=a").await, 2);
    assert_eq!(listed("search=orders-3").await, 1);
    assert_eq!(listed("search=%25").await, 0, "a percent sign is a percent sign");
    assert_eq!(listed("limit=many").await, 7);
    assert_eq!(listed("namespace=none").await, 0);
}

#[tokio::test]
async fn depth_follows_each_group_and_a_new_one_has_everything_before_it() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..4)).await;
    server.push("q", "r", &numbers(0..1)).await;
    let popped = server.pop("/queue/q?consumerGroup=g&batch=9").await.unwrap();
    let before = depth(&server, "q", "g").await;
    assert_eq!((&before["pending"], &before["partitionsPending"]), (&json!(5), &json!(2)));
    server.ack_all(&popped.messages, &vec!["completed"; popped.messages.len()]).await;
    let after = depth(&server, "q", "g").await;
    let (left, read) = if popped.messages.len() == 4 { (1, "r") } else { (4, "p") };
    assert_eq!((&after["pending"], &after["effectivePending"]), (&json!(left), &json!(left)));
    assert_eq!(after["partitions"], json!([{"partition": read, "pending": left}]));
    assert_eq!(depth(&server, "q", "new").await["pending"], 5);
    assert_eq!(server.get("/api/v1/resources/queues/q/depth").await.json()["group"], "__QUEUE_MODE__");
}

#[tokio::test]
async fn depth_of_a_group_that_came_before_its_queue_counts_partitions_it_has_not_read_yet() {
    let server = Server::start().await;
    assert!(server.pop("/queue/q?consumerGroup=g").await.is_none());
    for (partition, count) in [("a", 14), ("b", 10), ("c", 5)] {
        server.push("q", partition, &numbers(0..count)).await;
    }
    let popped = server.pop("/queue/q/partition/a?consumerGroup=g&batch=1").await.unwrap();
    server.ack_all(&popped.messages, &["completed"]).await;
    let left = depth(&server, "q", "g").await;
    assert_eq!((&left["pending"], &left["partitionsPending"]), (&json!(28), &json!(3)));
    let parts = [("a", 13), ("b", 10), ("c", 5)];
    let parts = parts.map(|(partition, pending)| json!({"partition": partition, "pending": pending}));
    assert_eq!(left["partitions"], json!(parts));
}

#[tokio::test]
async fn depth_counts_a_named_partition_that_a_group_waits_for() {
    let server = Server::start().await;
    assert!(server.pop("/queue/q/partition/a?consumerGroup=g&subscriptionMode=new").await.is_none());
    server.push("q", "a", &numbers(0..3)).await;
    server.push("q", "b", &numbers(0..4)).await;
    let left = depth(&server, "q", "g").await;
    assert_eq!(
        (&left["pending"], &left["partitions"]),
        (&json!(3), &json!([{"partition": "a", "pending": 3}]))
    );
}

#[tokio::test]
async fn groups_show_how_they_subscribed() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..1)).await;
    for (group, query, shown) in [
        ("a", "", "all"),
        ("b", "&subscriptionMode=all", "all"),
        ("c", "&subscriptionMode=from_beginning", "from_beginning"),
        ("d", "&subscriptionMode=new", "new"),
        ("e", "&subscriptionMode=new-only", "new-only"),
        ("f", "&subscriptionFrom=now", "now"),
        ("g", "&subscriptionFrom=2020-01-01T00:00:00Z", "timestamp"),
        // A word that is too long is not stored; the list shows what it means.
        ("h", &format!("&subscriptionMode={}", "x".repeat(65)), "all"),
    ] {
        server.pop(&format!("/queue/q?consumerGroup={group}{query}")).await;
        let listed = server.get("/api/v1/consumer-groups?queue=q").await.json();
        let listed = array(listed).into_iter().find(|listed| listed["name"] == group).unwrap();
        assert_eq!(listed["subscriptionMode"], shown, "{query}");
    }
    // The first word stays, as does the position.
    server.pop("/queue/q?consumerGroup=d&subscriptionMode=all").await;
    let listed = server.get("/api/v1/consumer-groups?queue=q").await.json();
    assert_eq!(array(listed).iter().filter(|group| group["subscriptionMode"] == "new").count(), 1);
}

#[tokio::test]
async fn groups_are_listed_by_queue_with_their_state() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..3)).await;
    server.pop("/queue/q?consumerGroup=reads").await.unwrap();
    server.pop("/queue/q").await.unwrap();
    assert!(server.pop("/queue/q?consumerGroup=new&subscriptionMode=new").await.is_none());
    server.travel("10 minutes").await;
    let listed = server.get("/api/v1/consumer-groups").await.json();
    assert_eq!(names(&listed, "name"), ["__QUEUE_MODE__", "new", "reads"]);
    let [shared, new, reads] = listed.as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!(
        (&shared["state"], &new["state"], &reads["state"]),
        (&json!("Lagging"), &json!("Dead"), &json!("Lagging"))
    );
    assert_eq!((&reads["topics"], &reads["totalLag"]), (&json!(["q"]), &json!(3)));
    assert!(reads["maxTimeLag"].as_f64().unwrap() >= 600.0, "{reads}");
    assert_eq!((&new["totalLag"], &new["subscriptionMode"]), (&json!(0), &json!("new")));
    assert!(new["subscriptionTimestamp"].is_string() && reads["subscriptionTimestamp"].is_null());
    let detail = server.get("/api/v1/consumer-groups/reads").await.json();
    let partition = &detail["q"]["partitions"][0];
    assert_eq!((&partition["partition"], &partition["offsetLag"]), (&json!("p"), &json!(3)));
    assert_eq!(partition["leaseActive"], false, "ten minutes are more than a lease");
    let lagging = server.get("/api/v1/consumer-groups/lagging?minLagSeconds=60").await.json();
    assert_eq!(names(&lagging, "partition_name"), ["p", "p"]);
    assert_eq!(lagging[0]["lag_hours"], 0.17);
    assert_eq!(server.get("/api/v1/consumer-groups/lagging").await.json(), json!([]), "an hour by default");
}

#[tokio::test]
async fn partitions_are_searched_and_paged_by_what_is_unread() {
    let server = Server::start().await;
    for (partition, count) in [("customer-1", 2), ("Customer-2", 4), ("supplier", 3)] {
        server.push("q", partition, &numbers(0..count)).await;
    }
    let listed = async |query: &str| {
        let reply = server.get(&format!("/api/v1/resources/partitions?queue=q&{query}")).await;
        names(&reply.json()["partitions"], "partition")
    };
    assert_eq!(listed("").await, ["Customer-2", "supplier", "customer-1"]);
    assert_eq!(listed("search=CUSTOMER").await, ["Customer-2", "customer-1"]);
    assert_eq!(listed("limit=1&offset=1").await, ["supplier"]);
    assert_eq!(listed("search=%25").await, Vec::<String>::new());
    assert_eq!(listed("search=").await.len(), 3);
    let long = format!("/api/v1/resources/partitions?search={}", "x".repeat(256));
    assert!(server.get(&long).await.is_error(400, "bad_request"));
    let everywhere = server.get("/api/v1/resources/partitions?search=supp").await.json();
    assert_eq!(names(&everywhere["partitions"], "partition"), ["supplier"]);
}

#[tokio::test]
async fn groups_of_a_queue_are_listed_with_their_leases_and_holders() {
    let server = Server::start().await;
    server.configure("q", json!({"leaseTime": 100})).await;
    for (partition, count) in [("a", 2), ("b", 5), ("c", 3)] {
        server.push("q", partition, &numbers(0..count)).await;
    }
    server.push("other", "a", &numbers(0..1)).await;
    let before =
        server.get("/api/v1/resources/overview").await.json()["timestamp"].as_str().unwrap().to_owned();
    let held = server.pop("/queue/q/partition/a?consumerGroup=g").await.unwrap();
    for path in [
        "/queue/q/partition/b?consumerGroup=g&autoAck=true",
        "/queue/q/partition/c?consumerGroup=g&autoAck=true",
    ] {
        server.pop(path).await.unwrap();
    }
    server.pop("/queue/other?consumerGroup=g").await.unwrap();
    let listed = server.get("/api/v1/consumer-groups?queue=q").await.json();
    assert_eq!(
        (names(&listed, "name"), names(&listed, "queueName")),
        (vec!["g".to_owned()], vec!["q".to_owned()])
    );
    assert_eq!(server.get("/api/v1/consumer-groups?queue=nowhere").await.json(), json!([]));

    let detail = async |query: &str| {
        let reply = server.get(&format!("/api/v1/consumer-groups/g?{query}")).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        reply.json()
    };
    let both = detail("").await;
    assert_eq!(both.as_object().unwrap().keys().collect::<Vec<_>>(), ["other", "q"]);
    let one = detail("queue=q&limit=2").await;
    assert_eq!(one.as_object().unwrap().len(), 1);
    assert_eq!(
        names(&one["q"]["partitions"], "partition"),
        ["b", "a"],
        "four and two are unread, both of c and a: by name"
    );
    assert_eq!(names(&detail("queue=q&limit=2&offset=2").await["q"]["partitions"], "partition"), ["c"]);
    assert_eq!(names(&detail("queue=q&search=C").await["q"]["partitions"], "partition"), ["c"]);
    assert_eq!(detail("queue=nowhere").await, json!({}));

    let (b, a) = (&one["q"]["partitions"][0], &one["q"]["partitions"][1]);
    assert_eq!((&b["leasedSince"], &b["leaseExpiresAt"]), (&Value::Null, &Value::Null), "nobody has it");
    let held_as = held.body["leaseId"].as_str().unwrap();
    assert!(held_as.starts_with(a["workerId"].as_str().unwrap()), "{a}");
    assert_eq!((&a["heldBy"], &b["heldBy"]), (&json!({"name": null, "address": "127.0.0.1"}), &Value::Null));
    let (since, until) = (a["leasedSince"].as_str().unwrap(), a["leaseExpiresAt"].as_str().unwrap());
    assert!(before.as_str() <= since && since < until && a["leaseActive"] == true, "{before} {a}");
    server.call(&format!("/api/v1/lease/{held_as}/extend"), json!({"seconds": 500})).await;
    let longer = detail("queue=q&search=a").await["q"]["partitions"][0].clone();
    assert_eq!(longer["leasedSince"], a["leasedSince"], "it is the same lease");
    assert!(longer["leaseExpiresAt"].as_str().unwrap() > until, "{longer}");
    server.travel("1 hour").await;
    let ended = detail("queue=q&search=a").await["q"]["partitions"][0].clone();
    assert_eq!((&ended["leasedSince"], &ended["leaseExpiresAt"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn a_lease_that_waits_for_deferred_acknowledgements_tells_its_own_end() {
    let server = Server::start_with(&EASILY_STRAINED).await;
    // Not due before the test ends, because an executed operation holds no lease.
    server
        .sql(
            "create function queen.later() returns trigger language plpgsql as
             $$ begin new.due_at := new.due_at + interval '50 seconds'; return new; end $$;
             create trigger later before insert on queen.deferred for each row execute function queen.later()",
        )
        .await;
    let (strain, _, message) = Strain::on_acks(&server).await;
    let path = format!(
        "/api/v1/consumer-groups/__QUEUE_MODE__?queue=acks&search={}",
        message["partition"].as_str().unwrap()
    );
    let detail = server.get(&path).await.json();
    let partitions = detail["acks"]["partitions"].as_array().unwrap();
    let found = partitions.iter().find(|each| each["partition"] == message["partition"]).unwrap();
    let (since, until) = (found["leasedSince"].as_str().unwrap(), found["leaseExpiresAt"].as_str().unwrap());
    let micros = |time: &str| queen_protocol::parse_time("", time).unwrap();
    // The deferred acknowledgement holds it for a month; the lease itself lasts five minutes.
    assert_eq!((micros(until) - micros(since)) / 1_000_000, 300, "{found}");
    drop(strain);
}

#[tokio::test]
async fn a_partition_can_be_skipped_to_its_end() {
    let server = Server::start().await;
    server.push("q", "p", &numbers(0..3)).await;
    server.push("q", "r", &numbers(0..1)).await;
    let held = server.pop("/queue/q/partition/p?consumerGroup=g").await.unwrap();
    let path = "/api/v1/consumer-groups/g/queues/q/partitions/p/seek";
    let moved = server.call(path, json!({})).await;
    assert_eq!((&moved["updated"], &moved["cursorMovedTo"]), (&json!(true), &json!(3)));
    // The seek ended the lease, and did not change the other partition.
    let late = server.ack(&held.messages[0], "completed").await;
    assert_eq!(late["noop"], true, "{late}");
    assert!(server.pop("/queue/q/partition/p?consumerGroup=g").await.is_none());
    assert!(server.pop("/queue/q/partition/r?consumerGroup=g").await.is_some());
}

#[tokio::test]
async fn a_cleared_queue_is_empty_and_works_on() {
    let server = Server::start().await;
    server.configure("q", json!({"leaseTime": 7})).await;
    server.push("q", "p", &numbers(0..3)).await;
    server.push("q", "r", &numbers(0..2)).await;
    let cleared = server.delete("/api/v1/queues/q/clear?partition=p").await.json();
    assert_eq!(cleared, json!({"cleared": true, "queue": "q", "partition": "p", "deleted": 3}));
    assert!(server.pop("/queue/q/partition/p").await.is_none());
    let cleared = server.delete("/api/v1/queues/q/clear").await.json();
    assert_eq!((&cleared["deleted"], &cleared["partition"]), (&json!(2), &Value::Null));
    assert_eq!(server.configure("q", json!({})).await["options"]["leaseTime"], 7);
    server.push("q", "p", &numbers(3..4)).await;
    assert_eq!(server.pop("/queue/q").await.unwrap().data(), [3]);
    let refreshed = server.call("/api/v1/stats/refresh", json!({})).await;
    assert_eq!(refreshed["success"], true);
}
